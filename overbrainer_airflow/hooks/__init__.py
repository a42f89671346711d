"""Hooks: machines and servers from Airflow connections."""
