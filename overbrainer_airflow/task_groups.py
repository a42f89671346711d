"""The export of a run as a task group, for any DAG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import TaskGroup

from overbrainer_airflow.export.quantize import DEFAULT_QUANTIZE
from overbrainer_airflow.operators.deliver_gguf import DeliverGGUFOperator
from overbrainer_airflow.operators.discard_staged import DiscardStagedOperator
from overbrainer_airflow.operators.ollama_create import OllamaCreateOperator
from overbrainer_airflow.operators.run_export import DEFERRABLE, JOB_TIMEOUT, RunExportOperator
from overbrainer_airflow.operators.stage_model import StageModelOperator

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta


def export_run(
    run_id: str,
    *,
    quantize: str = DEFAULT_QUANTIZE,
    ssh_conn_id: str | None = None,
    ollama_name: str | None = None,
    runs_dir: str | None = None,
    keep_model: bool = False,
    group_id: str = "export",
    job_timeout: timedelta | None = JOB_TIMEOUT,
    secrets: Mapping[str, str] | None = None,
    deferrable: bool = DEFERRABLE,
    pool: str = "default_pool",
) -> TaskGroup:
    """Return the tasks that export one run: stage, run, deliver, create.

    What was staged is discarded at the end, however the export went. ``run_id``, ``quantize``,
    ``ssh_conn_id``, ``ollama_name`` and ``runs_dir`` may be templates.

    Args:
        run_id: the run.
        quantize: the quantize type.
        ssh_conn_id: the machine's ``ssh`` connection; None or empty is the worker.
        ollama_name: the Ollama model to create; None or empty skips that.
        runs_dir: the directory of the runs; ``[overbrainer] runs_dir`` when None.
        keep_model: whether a model that is sent stays on the machine for the next export; see
            `StageModelOperator`.
        group_id: the group's id.
        job_timeout: how long the job may take; then it is cancelled.
        secrets: environment variables of the job and where they are kept; see
            `RunExportOperator`.
        deferrable: whether the triggerer follows the job, so that it holds no worker.
        pool: the pool that the export itself takes a slot of.

    Raises:
        InvalidInputError: a name or type that is no template cannot be right.
    """
    with TaskGroup(group_id) as group:
        stage = StageModelOperator(
            task_id="stage_model",
            run_id=run_id,
            quantize=quantize,
            ssh_conn_id=ssh_conn_id,
            runs_dir=runs_dir,
            keep_model=keep_model,
        )
        run = RunExportOperator(
            task_id="run_export",
            staged=stage.output,
            job_timeout=job_timeout,
            secrets=secrets,
            deferrable=deferrable,
            pool=pool,
        )
        deliver = DeliverGGUFOperator(task_id="deliver_gguf", exported=run.output)
        create = OllamaCreateOperator(
            task_id="ollama_create", delivered=deliver.output, name=ollama_name
        )
        discard = DiscardStagedOperator(task_id="discard_staged", staged=stage.output)
        stage >> run >> deliver >> create
        deliver >> discard.as_teardown(setups=stage)
    return group
