"""Following a detached job to its end, over connections that may break.

One connection and one shell on the machine stay for the whole job; a look is one line there and one
answer back, with the job's state and the next bytes of its log. The shell waits beside the job
before it answers, so that the end of a job is known within a second however rare looks are. How
much of the log was shown is
kept on the machine, by the name of the watcher: one that is restarted goes on where it was.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from overbrainer_airflow.errors import JobError, MachineError
from overbrainer_airflow.machines.detached_job import Status, parse_state
from overbrainer_airflow.machines.job_shell import watch_script
from overbrainer_airflow.machines.log_lines import LogLines
from overbrainer_airflow.machines.progress import human_duration
from overbrainer_airflow.machines.protocol import COMMAND_TIMEOUT, Machine, Session

log = logging.getLogger(__name__)

_RECONNECTS_LOGGED = 3

# Showing lines takes time, and an event loop has other things to do.
_LINES_AT_ONCE = 500


@dataclass(frozen=True)
class Pace:
    """How often a job that goes on is looked at, in seconds.

    Attributes:
        first: the wait before the second look.
        growth: each wait is this much longer than the one before.
        longest: no wait is longer.
        reconnect: the wait before the first new connection; it doubles.
        unreachable: how long the machine may stay unreachable.
    """

    first: float = 1.0
    growth: float = 1.2
    longest: float = 15.0
    reconnect: float = 0.5
    unreachable: float = 15 * 60.0

    def after(self, wait: float) -> float:
        """Return the wait that follows ``wait``."""
        return min(max(wait, self.first) * self.growth, self.longest)


PACE = Pace()


@dataclass(frozen=True)
class Look:
    """What one look at a job brought.

    Attributes:
        status: what the job is at.
        age: seconds since the job was started, by the machine's clock.
        lines: the lines of its log that are new.
    """

    status: Status
    age: float
    lines: list[str]


async def follow(
    machine: Machine, directory: str, watcher: str = "anybody", pace: Pace = PACE
) -> AsyncGenerator[Look, None]:
    """Yield each look at a job until it has ended and its log is shown to the last byte.

    Args:
        machine: where the job is.
        directory: the job directory.
        watcher: one word that names who shows the log; it is shown to each watcher once.
        pace: how often to look, and how long to wait for an unreachable machine.

    Raises:
        JobError: the machine stayed unreachable longer than ``pace`` allows.
        asyncio.CancelledError: the caller was cancelled; the job goes on.
    """
    script, shown = watch_script(directory, watcher), _Shown()
    since: float | None = None
    failures = 0
    while True:
        try:
            async with aclosing(_watch(machine, script, shown, pace)) as looks:
                async for look in looks:
                    since, failures = None, 0
                    yield look
            return  # noqa: TRY300 - the loop is for what the except clause handles
        except MachineError as error:
            since = time.monotonic() if since is None else since
            gone = time.monotonic() - since
            if gone >= pace.unreachable:
                raise JobError(
                    f"{error}: unreachable for {human_duration(gone)}. The job in {directory} may "
                    "still run there: a retry of this task finds it and follows it on"
                ) from error
            failures += 1
            if failures <= _RECONNECTS_LOGGED:
                log.warning("%s; connects again, the job goes on meanwhile", error)
            wait = min(pace.reconnect * 2**failures, pace.longest)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - no secret


@dataclass
class _Shown:
    """How much of the log was shown; a broken connection does not make that uncertain."""

    offset: int | None = None
    lines: LogLines = field(default_factory=LogLines)


async def _watch(
    machine: Machine, script: str, shown: _Shown, pace: Pace
) -> AsyncGenerator[Look, None]:
    """Yield looks over one connection, for as long as it holds."""
    async with machine.session(script) as session:
        if shown.offset is None:
            shown.offset = int(await session.ask("from"))
        wait, pause = pace.first, 0
        while True:
            status, age, size, piece = await _look(session, shown.offset, pause)
            shown.offset += len(piece)
            new = shown.lines.feed(piece)
            last = status.ended and shown.offset >= size
            if last:
                new += shown.lines.end()
            for begin in range(0, max(len(new), 1), _LINES_AT_ONCE):
                yield Look(status, age, new[begin : begin + _LINES_AT_ONCE])
                await asyncio.sleep(0)
            if piece or last:
                await session.tell(f"shown {shown.offset - shown.lines.pending}")
            if last:
                await session.ask("from")  # answered once the line before it is written down
                return
            pause = 0
            if shown.offset >= size:
                pause = round(wait)
                wait = pace.after(wait)


async def _look(session: Session, offset: int, pause: int) -> tuple[Status, float, int, bytes]:
    request = session.ask(f"look {offset} {pause}", timeout=pause + COMMAND_TIMEOUT)
    answer = (await request).decode("ascii", "replace")
    *state, age, size, count = answer.split() or ["", "", "", ""]
    if not (age.lstrip("-").isdecimal() and size.isdecimal() and count.isdecimal()):
        raise MachineError(f"the job's state cannot be read from {answer[:100]!r}")
    return parse_state(state), float(age), int(size), await session.read(int(count))
