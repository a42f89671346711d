"""The second task: the export itself, as a job that outlives whoever watches it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from overbrainer_airflow.errors import JobError, NoGGUFError, OverbrainerError
from overbrainer_airflow.export.quantize import GGUF_DIR
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.follow import follow
from overbrainer_airflow.machines.log_lines import LogLines
from overbrainer_airflow.machines.manifest import machine_manifest
from overbrainer_airflow.machines.runtime import job_command
from overbrainer_airflow.operators.base import about, failing_fast, run_async
from overbrainer_airflow.operators.handover import (
    ExportedGGUF,
    StagedExport,
    job_of,
    read_handover,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

    from overbrainer_airflow.machines.detached_job import Poll
    from overbrainer_airflow.machines.protocol import Machine


class RunExportOperator(BaseOperator):
    """Runs a staged export on its machine and shows its log.

    The job is started once: a try that finds it running follows it, one that finds its GGUF takes
    it, and only a job that ended otherwise is started again. Stopping the task stops the job.

    Args:
        staged: what `StageModelOperator` returned.

    Returns:
        `ExportedGGUF`, as a dictionary.

    Raises:
        JobError: the job failed, was lost or was cancelled; the message has the log's last line.
        NoGGUFError: it succeeded and left no GGUF.
        MachineError: the machine cannot be reached.
    """

    template_fields: Sequence[str] = ("staged",)
    ui_color = "#d8e8f3"

    def __init__(self, *, staged: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.staged = staged
        self._stop: Callable[[], object] | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Run the export; see the class."""
        with failing_fast():
            staged = read_handover(StagedExport, self.staged, self.task_id)
        return run_async(self._export(staged)).plain()

    def on_kill(self) -> None:
        """Cancel the job: somebody stopped the task.

        Called by a signal in the middle of `execute`, which then cancels the job itself, or after
        `execute` was interrupted by its timeout.
        """
        if self._stop is not None:
            self._stop()
        else:
            run_async(_cancel(read_handover(StagedExport, self.staged, self.task_id)))

    async def _export(self, staged: StagedExport) -> ExportedGGUF:
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None  # noqa: S101 - a coroutine that runs is a task's
        self._stop = lambda: loop.call_soon_threadsafe(this.cancel)
        try:
            async with MachineHook(staged.ssh_conn_id).machine() as machine:
                await self._start(machine, staged)
                end, lines = await self._follow(machine, staged)
                return await _result(machine, staged, end, lines)
        except asyncio.CancelledError:
            self.log.warning("The task was stopped, cancels the job in %s", staged.job_dir)
            await _cancel(staged)
            raise JobError(
                f"run {staged.run_id}: the task was stopped and its job cancelled"
            ) from None
        except OverbrainerError as error:
            raise about(f"export of run {staged.run_id} to {staged.quantize}", error) from error
        finally:
            self._stop = None

    async def _start(self, machine: Machine, staged: StagedExport) -> None:
        job = job_of(staged)
        outcome = await detached_job.start(
            machine,
            staged.job_dir,
            job_command(machine.settings, job.command()),
            job.env(staged.job_dir) | {"OVERBRAINER_CACHE": f"{staged.workdir}/.cache"},
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

    async def _follow(self, machine: Machine, staged: StagedExport) -> tuple[Poll, LogLines]:
        """Show the job's log until it has ended; return its last look and the log's lines."""
        lines = LogLines()
        async for look in follow(machine, staged.job_dir):
            for line in lines.feed(look.log):
                self.log.info("%s", line)
        for line in lines.end():
            self.log.info("%s", line)
        return look, lines


async def _result(
    machine: Machine, staged: StagedExport, end: Poll, lines: LogLines
) -> ExportedGGUF:
    where = f"{staged.job_dir} on machine {machine.name}"
    said = next((line for line in reversed(lines.last) if line.startswith("export: ")), None)
    reason = said or (lines.last[-1] if lines.last else "it printed nothing")
    if end.state == "cancelled":
        raise JobError(f"the job in {where} was cancelled; a retry starts it again")
    if end.state != "exited":
        raise JobError(
            f"the job in {where} was lost: its processes are gone without an exit code, killed or "
            f"ended by a restart of the machine; a retry starts it again. Its last line: {reason}"
        )
    if end.exit_code != 0:
        raise JobError(f"the job in {where} ended with exit code {end.exit_code}: {reason}")
    file = f"{GGUF_DIR}/{staged.file}"
    made = (await machine_manifest(machine, staged.job_dir, [file])).get(file)
    if made is None or made.size == 0:
        raise NoGGUFError(f"the job left no GGUF file {staged.file} in {staged.job_dir}/{GGUF_DIR}")
    return ExportedGGUF(**staged.model_dump(), size=made.size, sha256=made.sha256)


async def _cancel(staged: StagedExport) -> None:
    async with MachineHook(staged.ssh_conn_id).machine() as machine:
        await detached_job.cancel(machine, staged.job_dir)
