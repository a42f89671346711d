"""The first task: a run's model where a machine can export it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from overbrainer_airflow.errors import JobError
from overbrainer_airflow.export.ids import check_run_id, export_id_for
from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.quantize import DEFAULT_QUANTIZE, check_quantize
from overbrainer_airflow.export.runs import EXPORTS_DIR, RunModel, model_of
from overbrainer_airflow.export.script import (
    MERGE_PROGRAM,
    PYTHON_MODULES,
    export_script,
)
from overbrainer_airflow.export.space import room_for
from overbrainer_airflow.export.staging import model_files, model_size
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.manifest import local_manifest, manifest_digest
from overbrainer_airflow.machines.preflight import check_tools, look_at
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.space import check_space, check_space_here
from overbrainer_airflow.operators.base import (
    failing_fast,
    llama_cpp_release,
    looks_templated,
    run_async,
    runs_directory,
)
from overbrainer_airflow.operators.handover import StagedExport
from overbrainer_airflow.operators.model_place import Place, Sending, find_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
    from overbrainer_airflow.machines.manifest import Manifest
    from overbrainer_airflow.machines.protocol import Machine


class StageModelOperator(BaseOperator):
    """Puts a run's model where a machine can export it, and the export's script beside it.

    The run, the names and the machine are checked before anything is sent. A machine that holds
    the very same model exports it in place; otherwise the model is sent into the job directory.

    Args:
        run_id: the run, the name of its directory under ``runs_dir``.
        quantize: the quantize type, in upper or lower case.
        ssh_conn_id: the machine's ``ssh`` connection; None or empty is this worker.
        runs_dir: the directory of the runs; ``[overbrainer] runs_dir`` when None.
        keep_model: whether a model that has to be sent stays on the machine, where the next export
            of the same model finds it.

    Returns:
        `StagedExport`, as a dictionary.

    Raises:
        AirflowFailException: a name, type or setting is wrong; retrying would not help.
        OverbrainerError: the run is not ready, or the machine not reachable or not fit.
    """

    template_fields: Sequence[str] = ("run_id", "quantize", "ssh_conn_id", "runs_dir")
    ui_color = "#e4f0e2"

    def __init__(
        self,
        *,
        run_id: str,
        quantize: str = DEFAULT_QUANTIZE,
        ssh_conn_id: str | None = None,
        runs_dir: str | None = None,
        keep_model: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id
        self.quantize = quantize
        self.ssh_conn_id = ssh_conn_id
        self.runs_dir = runs_dir
        self.keep_model = keep_model
        if not looks_templated(run_id):
            check_run_id(run_id)
        if not looks_templated(quantize):
            check_quantize(quantize)

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage the model; see the class."""
        with failing_fast():
            run = model_of(runs_directory(self.runs_dir), self.run_id)
            quantize = check_quantize(self.quantize)
            release = llama_cpp_release()
        if run.partial:
            self.log.warning("The export of %s is partial: %s", run.run_id, run.partial)
        staged = run_async(self._stage(run, quantize, release, _export_id(context)))
        return staged.plain()

    async def _stage(
        self, run: RunModel, quantize: str, release: LlamaCppRelease, export_id: str
    ) -> StagedExport:
        async with MachineHook(self.ssh_conn_id).machine() as machine:
            self.log.info("Checks machine %s for run %s", machine.name, run.run_id)
            facts = await look_at(machine)
            release.check_platform(facts.platform)
            merges = [MERGE_PROGRAM] if run.kind == "adapter" else []
            await check_tools(machine, PYTHON_MODULES, merges)
            names = [
                path.relative_to(run.run_dir).as_posix()
                for path in model_files(run.run_dir, run.model)
            ]
            place = await find_place(
                machine, run, facts.workdir, names, here=not self.ssh_conn_id, keep=self.keep_model
            )
            job = (
                ExportJob.in_place(run.run_id, quantize, run.model, release=release)
                if place.in_place
                else ExportJob.staged(run.run_id, quantize, run.run_dir, run.model, release)
            )
            job_dir = f"{place.run_dir}/{EXPORTS_DIR}/{export_id}"
            running = await self._runs_already(machine, run, job, job_dir, names)
            if not running:
                await self._check_room(
                    machine, job, run, place=place, job_dir=job_dir, workdir=facts.workdir
                )
            sending = Sending(machine, run, job, place, job_dir, export_id)
            manifest, sent = (running, 0) if running else await sending.bring(names)
            return StagedExport(
                run_id=run.run_id,
                export_id=export_id,
                quantize=quantize,
                ssh_conn_id=self.ssh_conn_id or None,
                runs_dir=str(run.run_dir.parent),
                model=run.model,
                workdir=facts.workdir,
                job_dir=job_dir,
                file=job.file_name,
                in_place=place.in_place,
                inputs=_inputs(manifest, job),
                release=release,
                bytes_sent=sent,
            )

    async def _runs_already(
        self, machine: Machine, run: RunModel, job: ExportJob, job_dir: str, names: list[str]
    ) -> Manifest | None:
        """Return what the export's job is made of if it runs: then nothing must be touched."""
        found = await detached_job.status(machine, job_dir)
        if found.state != "running":
            return None
        manifest = await local_manifest(run.run_dir, names)
        if found.inputs != _inputs(manifest, job):
            raise JobError(
                f"run {run.run_id}: a job made of other files runs in {job_dir} on "
                f"machine {machine.name}: nothing was sent; mark that task failed to stop it, "
                "then try again"
            )
        self.log.info("Finds the job running in %s, sends nothing", job_dir)
        return manifest

    async def _check_room(
        self,
        machine: Machine,
        job: ExportJob,
        run: RunModel,
        *,
        place: Place,
        job_dir: str,
        workdir: str,
    ) -> None:
        """Make sure that the export has room before any of it is sent."""
        room = room_for(run, job.quantize)
        size = 0 if place.manifest is not None else model_size(run)
        what = f"the export of run {run.run_id} to {job.quantize} (model {human_size(size)}, "
        what += f"job about {human_size(room.job)})"
        there = f"{place.run_dir}/{run.model}" if place.in_place else f"{job_dir}/{run.model}"
        await check_space(machine, workdir, size + room.job, what, counting=there if size else None)
        if self.ssh_conn_id:
            check_space_here(run.run_dir, room.quantized, f"the GGUF of run {run.run_id}")


def _inputs(manifest: Manifest, job: ExportJob) -> str:
    """Return one digest of all that decides what the job makes."""
    parts = [manifest_digest(manifest), job.quantize, job.model, job.release.model_dump_json()]
    return hashlib.sha256("\0".join([*parts, export_script()]).encode()).hexdigest()


def _export_id(context: Context) -> str:
    """Return the export id of this task instance, the same for each of its tries."""
    instance, dag_run = context["ti"], context["dag_run"]
    return export_id_for(
        dag_run.run_after, instance.dag_id, instance.run_id, instance.task_id, instance.map_index
    )
