"""Machines: moving bytes to them and running shell on them. No Airflow and no model in here."""
