"""What Airflow is told of this package: its modules and the `[overbrainer]` section."""

from typing import Any

from overbrainer_airflow import __version__


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, in Airflow's own format."""
    return {
        "package-name": "overbrainer-airflow",
        "name": "overbrainer",
        "description": "Exports fine-tuned models to GGUF and Ollama.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": "overbrainer",
                "external-doc-url": "https://github.com/ggml-org/llama.cpp",
                "tags": ["service"],
            }
        ],
        "operators": [
            {
                "integration-name": "overbrainer",
                "python-modules": [
                    "overbrainer_airflow.operators.stage_model",
                    "overbrainer_airflow.operators.run_export",
                    "overbrainer_airflow.operators.deliver_gguf",
                    "overbrainer_airflow.operators.ollama_create",
                    "overbrainer_airflow.operators.discard_staged",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "overbrainer",
                "python-modules": ["overbrainer_airflow.triggers.export_job"],
            }
        ],
        "hooks": [
            {
                "integration-name": "overbrainer",
                "python-modules": ["overbrainer_airflow.hooks.machine"],
            }
        ],
        "config": {
            "overbrainer": {
                "description": "Exports of fine-tuned models to GGUF and Ollama.",
                "options": {
                    "runs_dir": {
                        "description": (
                            "Directory of the runs, one directory a run. Every worker that "
                            "stages or delivers must see it. Relative to the process's own "
                            "working directory unless absolute."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/srv/overbrainer/runs",
                        "default": "runs",
                    },
                    "llama_cpp_release": {
                        "description": (
                            "JSON file that pins another llama.cpp release, or a mirror of one, "
                            "with the fields of overbrainer_airflow.export.llama_cpp."
                            "LlamaCppRelease. The release that this package pins when empty."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/etc/overbrainer/llama_cpp.json",
                        "default": "",
                    },
                    "local_machine": {
                        "description": (
                            "Settings of the worker itself as a machine, in JSON, as an ssh "
                            "connection has them in its extra under overbrainer."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": '{"venv": "/opt/axolotl"}',
                        "default": "",
                    },
                },
            }
        },
    }
