"""The second task: the export itself, as a job that outlives whoever watches it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperator

from overbrainer_airflow.errors import JobError, NoGGUFError, OverbrainerError
from overbrainer_airflow.export.quantize import GGUF_DIR
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.hooks.secrets import read_secrets
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.container import JobPlace, container_launch, root_in
from overbrainer_airflow.machines.manifest import machine_manifest
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.runtime import native_launch
from overbrainer_airflow.machines.watch import JobEnd
from overbrainer_airflow.operators.base import about, failing_fast, run_async
from overbrainer_airflow.operators.handover import (
    ExportedGGUF,
    StagedExport,
    job_of,
    read_handover,
)
from overbrainer_airflow.operators.stages import SAID, stage_summary, what_failed
from overbrainer_airflow.triggers.export_job import ExportJobTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from airflow.sdk import Context

    from overbrainer_airflow.machines.runtime import Launch, MachineSettings

T = TypeVar("T")

JOB_TIMEOUT = timedelta(hours=24)
DEFERRABLE: bool = conf.getboolean("operators", "default_deferrable", fallback=False)


class RunExportOperator(BaseOperator):
    """Runs a staged export on its machine and shows its log.

    The job is started once: a try that finds it running follows it, one that finds its GGUF takes
    it, and only a job that ended otherwise is started again. Stopping the task stops the job.

    Args:
        staged: what `StageModelOperator` returned.
        deferrable: whether the triggerer follows the job, so that it holds no worker; Airflow's
            ``[operators] default_deferrable`` when not given.
        job_timeout: how long the job may take from its start, over all tries that follow it; then
            it is cancelled. None sets no limit.
        unreachable_timeout: how long the machine may stay unreachable before the task fails; the
            job goes on meanwhile.
        secrets: environment variables of the job, each with where its value is kept:
            ``{"HF_TOKEN": "connection:hugging_face"}`` (the password) or ``"variable:hf_token"``.

    Returns:
        `ExportedGGUF`, as a dictionary.

    Raises:
        JobError: the job failed, was lost, was cancelled or took too long; the message has its
            last words.
        NoGGUFError: it succeeded and left no GGUF.
        MachineError: the machine cannot be reached.
    """

    template_fields: Sequence[str] = ("staged",)
    ui_color = "#d8e8f3"

    def __init__(
        self,
        *,
        staged: Any,
        deferrable: bool = DEFERRABLE,
        job_timeout: timedelta | None = JOB_TIMEOUT,
        unreachable_timeout: timedelta = timedelta(minutes=15),
        secrets: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.staged = staged
        self.deferrable = deferrable
        self.job_timeout = job_timeout
        self.unreachable_timeout = unreachable_timeout
        self.secrets = dict(secrets or {})
        self._stop: Callable[[], object] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the export; see the class."""
        with failing_fast():
            staged = read_handover(StagedExport, self.staged, self.task_id)
        return self._export(context, staged, restarted=False)

    def execute_complete(
        self, context: Context, event: dict[str, Any], *, restarted: bool
    ) -> dict[str, Any]:
        """Take the result once the triggerer says that the job has ended."""
        with failing_fast():
            staged = read_handover(StagedExport, self.staged, self.task_id)
        if "error" in event:
            raise JobError(f"{_subject(staged)}: {event['error']}")
        return self._complete(context, staged, JobEnd(**event), restarted=restarted)

    def _export(self, context: Context, staged: StagedExport, *, restarted: bool) -> dict[str, Any]:
        """Start or find the job, and have it followed to its end."""
        self._wait_for(staged, self._start(staged))
        trigger = self._trigger(staged, watcher=str(context["ti"].id))
        if self.deferrable:
            self.defer(
                trigger=trigger,
                method_name="execute_complete",
                kwargs={"restarted": restarted},
            )
        end = self._wait_for(staged, self._watch(staged, trigger))
        return self._complete(context, staged, end, restarted=restarted)

    def _complete(
        self, context: Context, staged: StagedExport, end: JobEnd, *, restarted: bool
    ) -> dict[str, Any]:
        """Take the job's result; a job that was stopped for an earlier try is started anew.

        A cleared task may find its job before the one who cleared it has had it cancelled.
        """
        if end.how == "cancelled" and not restarted:
            self.log.info("The job was cancelled for an earlier try, starts it again")
            return self._export(context, staged, restarted=True)
        return self._finish(staged, end)

    def on_kill(self) -> None:
        """Cancel the job: somebody stopped the task.

        Called by a signal in the middle of `execute`, which then cancels the job itself, or after
        `execute` was interrupted by its timeout.
        """
        if self._stop is not None:
            self._stop()
        else:
            run_async(_cancel(read_handover(StagedExport, self.staged, self.task_id)))

    def _trigger(self, staged: StagedExport, watcher: str) -> ExportJobTrigger:
        limit = self.job_timeout
        return ExportJobTrigger(
            ssh_conn_id=staged.ssh_conn_id,
            job_dir=staged.job_dir,
            watcher=watcher,
            mark=SAID,
            time_limit=None if limit is None else limit.total_seconds(),
            unreachable=self.unreachable_timeout.total_seconds(),
        )

    def _wait_for(self, staged: StagedExport, work: Coroutine[object, object, T]) -> T:
        """Wait for ``work`` on this worker; a task that is stopped meanwhile cancels its job."""

        async def stoppable() -> T:
            loop, this = asyncio.get_running_loop(), asyncio.current_task()
            assert this is not None  # noqa: S101 - a coroutine that runs is a task's
            self._stop = lambda: loop.call_soon_threadsafe(this.cancel)
            try:
                return await work
            except asyncio.CancelledError:
                self.log.warning("The task was stopped, cancels the job in %s", staged.job_dir)
                await _cancel(staged)
                raise JobError("the task was stopped, its job cancelled") from None
            finally:
                self._stop = None

        try:
            return run_async(stoppable())
        except OverbrainerError as error:
            raise about(_subject(staged), error) from error

    async def _watch(self, staged: StagedExport, trigger: ExportJobTrigger) -> JobEnd:
        """Watch the job from this worker, as the triggerer would."""
        async with MachineHook(staged.ssh_conn_id).machine() as machine:
            return await trigger.watch(machine, lambda line: self.log.info("%s", line))

    async def _start(self, staged: StagedExport) -> None:
        async with MachineHook(staged.ssh_conn_id).machine() as machine:
            secrets = await asyncio.to_thread(read_secrets, self.secrets)
            outcome = await detached_job.start(
                machine,
                staged.job_dir,
                _launch(machine.settings, staged, secrets),
                inputs=staged.inputs,
                result=f"{GGUF_DIR}/{staged.file}",
            )
        if outcome == "different":
            raise JobError(
                f"a job made of other files runs in {staged.job_dir} on machine {machine.name}: "
                "stage the model again once it has ended"
            )
        said = {
            "started": "Starts the job in %s on %s",
            "running": "Finds the job running in %s on %s, follows it",
            "finished": "Finds the job finished in %s on %s, takes its result",
        }
        self.log.info(said[outcome], staged.job_dir, machine.name)

    def _finish(self, staged: StagedExport, end: JobEnd) -> dict[str, Any]:
        """Say how the export went, and return its result or raise its reason."""
        if summary := stage_summary(end.marked):
            self.log.info("Stages: %s", summary)
        if reason := what_failed(end, staged.job_dir):
            for line in end.last:
                self.log.info("  %s", line)
            raise JobError(f"{_subject(staged)}: {reason}")
        exported = self._wait_for(staged, _result(staged))
        self.log.info("Made %s, %s", staged.file, human_size(exported.size))
        return exported.plain()


def _launch(settings: MachineSettings, staged: StagedExport, secrets: Mapping[str, str]) -> Launch:
    """Return how the export is started on a machine that is set up like this."""
    job = job_of(staged)
    place = JobPlace(
        name=f"overbrainer-{staged.export_id}",
        run_dir=str(PurePosixPath(staged.job_dir).parents[1]),
        job_dir=staged.job_dir,
        workdir=staged.workdir,
    )
    env = job.env(root_in(settings, place))
    if settings.runtime == "container":
        return container_launch(settings, place, job.command(), env, secrets)
    env["OVERBRAINER_CACHE"] = f"{staged.workdir}/.cache"
    return native_launch(settings, job.command(), env | dict(secrets))


def _subject(staged: StagedExport) -> str:
    where = staged.ssh_conn_id or "this worker"
    return f"export of run {staged.run_id} to {staged.quantize} on {where}"


async def _result(staged: StagedExport) -> ExportedGGUF:
    file = f"{GGUF_DIR}/{staged.file}"
    async with MachineHook(staged.ssh_conn_id).machine() as machine:
        made = (await machine_manifest(machine, staged.job_dir, [file])).get(file)
    if made is None or made.size == 0:
        raise NoGGUFError(f"the job left no GGUF file {staged.file} in {staged.job_dir}/{GGUF_DIR}")
    return ExportedGGUF(**staged.model_dump(), size=made.size, sha256=made.sha256)


async def _cancel(staged: StagedExport) -> None:
    async with MachineHook(staged.ssh_conn_id).machine() as machine:
        await detached_job.cancel(machine, staged.job_dir)
