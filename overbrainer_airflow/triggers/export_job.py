"""Follows an export job while its task holds no worker."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from overbrainer_airflow.errors import OverbrainerError
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.follow import PACE, Pace
from overbrainer_airflow.machines.watch import watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from overbrainer_airflow.machines.protocol import Machine
    from overbrainer_airflow.machines.watch import JobEnd


class ExportJobTrigger(BaseTrigger):
    """Shows a job's log in the task's and fires once the job has ended.

    A triggerer that stops or restarts leaves the job alone, and the next one goes on in the log
    where it was. A person who stops or clears the task cancels the job (from Airflow 3.3 on, whose
    triggers hear of it).

    Args:
        ssh_conn_id: the machine's connection; None is the triggerer's own machine.
        job_dir: the job directory there.
        watcher: one word that names the task's try.
        mark: what the lines that tell of the job's steps start with.
        time_limit: seconds that the job may take from its start.
        unreachable: seconds that the machine may stay unreachable.

    Its event's payload is a `machines.watch.JobEnd` as a dictionary, or ``{"error": message}``.
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str | None,
        job_dir: str,
        watcher: str,
        mark: str,
        time_limit: float | None,
        unreachable: float = PACE.unreachable,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ssh_conn_id = ssh_conn_id
        self.job_dir = job_dir
        self.watcher = watcher
        self.mark = mark
        self.time_limit = time_limit
        self.unreachable = unreachable

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer makes the same trigger from."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "ssh_conn_id": self.ssh_conn_id,
                "job_dir": self.job_dir,
                "watcher": self.watcher,
                "mark": self.mark,
                "time_limit": self.time_limit,
                "unreachable": self.unreachable,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job, then fire once."""
        try:
            async with MachineHook(self.ssh_conn_id).machine() as machine:
                end = await self.watch(machine, lambda line: self.log.info("%s", line))
        except OverbrainerError as error:
            payload: dict[str, Any] = {"error": str(error)}
        else:
            payload = asdict(end)
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def watch(self, machine: Machine, show: Callable[[str], None]) -> JobEnd:
        """Follow the job on ``machine``; an operator that holds its worker does the same.

        Raises:
            JobError: the machine stayed unreachable for too long; the job may still run.
        """
        return await watch(
            machine,
            self.job_dir,
            self.watcher,
            show,
            mark=self.mark,
            time_limit=self.time_limit,
            pace=Pace(unreachable=self.unreachable),
        )

    async def on_kill(self) -> None:
        """Cancel the job: a person stopped or cleared the task (Airflow 3.3 and later)."""
        self.log.warning("The task was stopped, cancels the job in %s", self.job_dir)
        async with MachineHook(self.ssh_conn_id).machine() as machine:
            await detached_job.cancel(machine, self.job_dir)
