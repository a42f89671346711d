"""The export itself: values, files and the script. No Airflow and no machine in here."""
