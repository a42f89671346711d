"""The last task: the delivered model in Ollama."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import BaseOperator

from overbrainer_airflow.errors import OllamaError
from overbrainer_airflow.export.ollama import (
    Failed,
    NotFound,
    check_ollama_name,
    ollama_create,
)
from overbrainer_airflow.operators.base import failing_fast, looks_templated
from overbrainer_airflow.operators.handover import DeliveredGGUF, read_handover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class OllamaCreateOperator(BaseOperator):
    """Creates an Ollama model from a delivered GGUF with the ``ollama`` command of the worker.

    Without a name, or where ``ollama`` is not installed, the task is skipped; the log then has
    the command to run by hand.

    Args:
        delivered: what `DeliverGGUFOperator` returned.
        name: the model's name, ``[namespace/]model[:tag]``; empty skips the task.

    Returns:
        A dictionary with ``name``, and ``sha256`` of the GGUF that the model was made from.

    Raises:
        AirflowFailException: the name is none that Ollama can serve.
        OllamaError: a file is missing, or ``ollama create`` failed; the message has its last line.
    """

    template_fields: Sequence[str] = ("delivered", "name")
    ui_color = "#f0e2ef"

    def __init__(self, *, delivered: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delivered = delivered
        self.name = name
        if name and not looks_templated(name):
            check_ollama_name(name)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Create the model; see the class."""
        with failing_fast():
            delivered = read_handover(DeliveredGGUF, self.delivered, self.task_id)
            if not self.name:
                raise AirflowSkipException("no Ollama name was given")
            name = check_ollama_name(self.name)
        for path in map(Path, (delivered.gguf, delivered.modelfile)):
            if not path.is_file():
                raise OllamaError(f"Ollama model {name}: there is no {path}: deliver it again")
        self.log.info("Creates the Ollama model %s from %s", name, delivered.gguf)
        outcome = ollama_create(Path(delivered.modelfile).parent, name)
        if isinstance(outcome, NotFound):
            self.log.warning(
                "ollama is not installed on this worker, run by hand: %s", outcome.command
            )
            raise AirflowSkipException("ollama is not installed on this worker")
        if isinstance(outcome, Failed):
            raise OllamaError(f"ollama create {name}: {outcome.reason}")
        self.log.info("Created the Ollama model %s", name)
        return {"name": name, "sha256": delivered.record["sha256"]}
