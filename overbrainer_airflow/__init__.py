"""Export fine-tuned models to GGUF and Ollama from Apache Airflow.

A run is one fine-tuning, ``runs/<run-id>/``. Its export is four tasks: the model goes to a
machine (`StageModelOperator`), ``export.sh`` merges, converts and quantizes it there as a job that
outlives any connection (`RunExportOperator`), the checked GGUF comes back
(`DeliverGGUFOperator`), and Ollama serves it (`OllamaCreateOperator`).

`overbrainer_airflow.export` and `overbrainer_airflow.machines` do the work and know nothing of
Airflow; the operators join them.
"""

__version__ = "0.1.0"
