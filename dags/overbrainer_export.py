"""Export a fine-tuned run to GGUF, by hand or triggered with conf.

# Export a run

Takes a finished run, `runs/<run-id>/`, to a checked GGUF file in `runs/<run-id>/output/gguf/`,
with its Ollama Modelfile and, if you give a name, an Ollama model.

| task | what it does |
| --- | --- |
| `stage_model` | checks the run and the machine, then brings the model there unless it is there |
| `run_export` | merges, converts and quantizes; its log shows the job's own lines as they come |
| `deliver_gguf` | brings the GGUF back, verifies it, writes `Modelfile` and `export.json` |
| `ollama_create` | creates the Ollama model; skipped without a name or without `ollama` |
| `discard_staged` | removes what was sent, however the export went |

Stopping `run_export` stops the job on the machine. A retry finds a job that still runs.
"""

from airflow.sdk import DAG, Param

from overbrainer_airflow.export.quantize import DEFAULT_QUANTIZE, QUANTIZE_TYPES
from overbrainer_airflow.task_groups import export_run

with DAG(
    dag_id="overbrainer_export",
    description="Export a fine-tuned run to GGUF and Ollama",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["overbrainer"],
    params={
        "run_id": Param(
            type="string",
            pattern="^[A-Za-z0-9_-]{1,128}$",
            title="Run",
            description="The run's id: the name of its directory under runs/.",
        ),
        "quantize": Param(
            DEFAULT_QUANTIZE,
            type="string",
            enum=list(QUANTIZE_TYPES),
            title="Quantize type",
            description="Q4_K_M suits most models; F16 and BF16 are not quantized.",
        ),
        "machine": Param(
            "",
            type="string",
            pattern="^[A-Za-z0-9_.-]*$",
            title="Machine",
            description="The id of the ssh connection; empty exports on the worker itself.",
        ),
        "ollama_name": Param(
            "",
            type="string",
            pattern="^([A-Za-z0-9_][A-Za-z0-9_./:-]*)?$",
            title="Ollama model",
            description="The model to create, such as my-model:q4; empty creates none.",
        ),
    },
):
    export_run(
        "{{ params.run_id }}",
        quantize="{{ params.quantize }}",
        ssh_conn_id="{{ params.machine }}",
        ollama_name="{{ params.ollama_name }}",
    )
