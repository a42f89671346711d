"""The first task: a run's model where a machine can export it."""

from __future__ import annotations

import hashlib
from pathlib import Path
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
    SCRIPT_FILE,
    export_script,
)
from overbrainer_airflow.export.staging import model_files, prepare
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.manifest import local_manifest, machine_manifest, manifest_digest
from overbrainer_airflow.machines.preflight import check_tools, look_at
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.transfer import check_space, send_tree
from overbrainer_airflow.operators.base import (
    failing_fast,
    llama_cpp_release,
    looks_templated,
    run_async,
    runs_directory,
)
from overbrainer_airflow.operators.handover import StagedExport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
    from overbrainer_airflow.machines.manifest import FileDigest
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id
        self.quantize = quantize
        self.ssh_conn_id = ssh_conn_id
        self.runs_dir = runs_dir
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
            manifest = await local_manifest(run.run_dir, model_files(run.run_dir, run.model))
            home = await self._run_dir_with(machine, run, facts.workdir, manifest)
            in_place = home is not None
            run_dir = home or f"{facts.workdir}/{run.run_id}"
            job = (
                ExportJob.in_place(run.run_id, quantize, run.model, release=release)
                if in_place
                else ExportJob.staged(run.run_id, quantize, run.run_dir, run.model, release)
            )
            staged = StagedExport(
                run_id=run.run_id,
                export_id=export_id,
                quantize=quantize,
                ssh_conn_id=self.ssh_conn_id or None,
                runs_dir=str(run.run_dir.parent),
                model=run.model,
                workdir=facts.workdir,
                job_dir=f"{run_dir}/{EXPORTS_DIR}/{export_id}",
                file=job.file_name,
                in_place=in_place,
                inputs=_inputs(manifest, job),
                release=release,
            )
            if await self._runs_already(machine, staged):
                return staged
            sent = await self._send(machine, job, staged, {} if in_place else manifest)
            return staged.model_copy(update={"bytes_sent": sent})

    async def _run_dir_with(
        self, machine: Machine, run: RunModel, workdir: str, manifest: Mapping[str, FileDigest]
    ) -> str | None:
        """Return the run's directory on the machine if it holds the very same model."""
        if not self.ssh_conn_id:
            return str(run.run_dir)
        for directory in dict.fromkeys([run.remote_dir, f"{workdir}/{run.run_id}"]):
            if directory is None or not directory.startswith("/"):
                continue
            if await machine_manifest(machine, directory, manifest) == manifest:
                self.log.info("Finds the model on %s in %s", machine.name, directory)
                return directory
        return None

    async def _runs_already(self, machine: Machine, staged: StagedExport) -> bool:
        """Whether this export's job runs: then nothing of it must be touched."""
        job = await detached_job.status(machine, staged.job_dir)
        if job.state != "running":
            return False
        if job.inputs != staged.inputs:
            raise JobError(
                f"run {staged.run_id}: a job made of other files runs in {staged.job_dir} on "
                f"machine {machine.name}: nothing was sent; mark that task failed to stop it, "
                "then try again"
            )
        self.log.info("Finds the job running in %s, sends nothing", staged.job_dir)
        return True

    async def _send(
        self,
        machine: Machine,
        job: ExportJob,
        staged: StagedExport,
        manifest: Mapping[str, FileDigest],
    ) -> int:
        """Bring the job directory to the machine and return the bytes that it took."""
        local = Path(staged.runs_dir) / staged.run_id / EXPORTS_DIR / staged.export_id
        prepare(job, local)
        if staged.ssh_conn_id is None:
            self.log.info("Exports in place, in %s", staged.job_dir)
            return 0
        files = dict(manifest) | await local_manifest(local, [local / SCRIPT_FILE])
        total = sum(entry.size for entry in files.values())
        await check_space(machine, staged.workdir, total, f"the model of run {staged.run_id}")
        self.log.info(
            "Sends %d files, %s, to %s on %s",
            len(files),
            human_size(total),
            staged.job_dir,
            machine.name,
        )
        sent = await send_tree(machine, local, staged.job_dir, files)
        self.log.info("Sent %s, all verified by SHA-256", human_size(sent))
        return sent


def _inputs(manifest: Mapping[str, FileDigest], job: ExportJob) -> str:
    """Return one digest of all that decides what the job makes."""
    parts = [manifest_digest(manifest), job.quantize, job.model, job.release.model_dump_json()]
    return hashlib.sha256("\0".join([*parts, export_script()]).encode()).hexdigest()


def _export_id(context: Context) -> str:
    """Return the export id of this task instance, the same for each of its tries."""
    instance, dag_run = context["ti"], context["dag_run"]
    return export_id_for(
        dag_run.run_after, instance.dag_id, instance.run_id, instance.task_id, instance.map_index
    )
