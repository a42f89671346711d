"""Following a detached job to its end, over connections that may break."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from overbrainer_airflow.errors import JobError, MachineError
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.detached_job import Poll
from overbrainer_airflow.machines.progress import human_duration
from overbrainer_airflow.machines.protocol import Machine

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often a job is looked at, in seconds.

    Attributes:
        first: the wait after the first look.
        growth: each wait is this much longer than the one before.
        longest: no wait is longer.
        unreachable: how long the machine may stay unreachable.
    """

    first: float = 0.5
    growth: float = 1.2
    longest: float = 15.0
    unreachable: float = 15 * 60.0

    def after(self, wait: float) -> float:
        """Return the wait that follows ``wait``."""
        return min(max(wait, self.first) * self.growth, self.longest)


PACE = Pace()


async def follow(
    machine: Machine, directory: str, offset: int = 0, pace: Pace = PACE
) -> AsyncIterator[Poll]:
    """Yield each look at a job until it has ended and its log is read to the last byte.

    Raises:
        JobError: the machine stayed unreachable longer than ``pace`` allows.
        asyncio.CancelledError: the caller was cancelled; the job goes on.
    """
    wait = pace.first
    while True:
        look = await _poll_again_and_again(machine, directory, offset, pace)
        offset += len(look.log)
        yield look
        if offset < look.log_size and look.log:
            continue
        if look.ended:
            return
        await asyncio.sleep(wait)
        wait = pace.after(wait)


async def _poll_again_and_again(
    machine: Machine,
    directory: str,
    offset: int,
    pace: Pace,
    clock: Callable[[], float] = time.monotonic,
) -> Poll:
    """Poll until the machine answers, reconnecting with growing, scattered waits."""
    since = None
    wait = pace.first
    while True:
        try:
            return await detached_job.poll(machine, directory, offset)
        except MachineError as error:
            since = clock() if since is None else since
            gone = clock() - since
            if gone >= pace.unreachable:
                raise JobError(
                    f"{error}: unreachable for {human_duration(gone)}. The job in {directory} may "
                    "still run there: a retry of this task finds it and follows it on"
                ) from error
            log.warning("%s; tries again, the job goes on meanwhile", error)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            wait = pace.after(wait * 1.5)
