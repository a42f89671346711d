"""Watching a job to its end: its log shown, its time limit kept, its last words remembered."""

from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.follow import PACE, Pace, follow
from overbrainer_airflow.machines.protocol import Machine

_LAST_LINES = 20
_MARKED_LINES = 100


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    Attributes:
        how: by itself, lost, cancelled by somebody, or cancelled at its time limit.
        exit_code: of the job's command, when it ended by itself.
        last: the last lines of its log.
        marked: the lines of its log that start with the mark.
    """

    how: Literal["exited", "lost", "cancelled", "timeout"]
    exit_code: int | None
    last: list[str]
    marked: list[str]


async def watch(
    machine: Machine,
    directory: str,
    watcher: str,
    show: Callable[[str], None],
    *,
    mark: str,
    time_limit: float | None = None,
    pace: Pace = PACE,
) -> JobEnd:
    """Show a job's log until it ends; cancel it at its time limit.

    Args:
        machine: where the job is.
        directory: the job directory.
        watcher: one word that names who shows the log.
        show: called with each line.
        mark: what the lines that tell of the job's steps start with.
        time_limit: seconds that the job may take from its start, whoever watches it then.
        pace: how often to look, and how long to wait for an unreachable machine.

    Raises:
        JobError: the machine stayed unreachable for too long; the job may still run.
        asyncio.CancelledError: the caller was cancelled; the job goes on.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    marked: deque[str] = deque(maxlen=_MARKED_LINES)
    over_time = False
    async with aclosing(follow(machine, directory, watcher, pace)) as looks:
        async for look in looks:
            for line in look.lines:
                show(line)
                last.append(line)
                if line.startswith(mark):
                    marked.append(line)
            if time_limit is not None and look.age > time_limit and not look.status.ended:
                over_time = True
                await detached_job.cancel(machine, directory)
    status = look.status
    if status.state == "lost":
        await detached_job.cancel(machine, directory)  # its container may have outlived it
    how: Literal["exited", "lost", "cancelled", "timeout"] = "lost"
    if over_time and status.state != "exited":
        how = "timeout"
    elif status.state in ("exited", "cancelled"):
        how = "exited" if status.state == "exited" else "cancelled"
    return JobEnd(how, status.exit_code, list(last), list(marked))
