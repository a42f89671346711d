"""One large file from one end to the other: ranges on the way, digests of what has arrived.

Both ends hash the file in order, right behind the bytes, while these are still in memory. A range
is right when the digests of all bytes up to its end are the same at both ends, so what an earlier
transfer left is proven in the same way as what has just been sent, and the last digest is the
file's own.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.protocol import Progress

log = logging.getLogger(__name__)

RANGE = 16 << 20
"""Bytes that are sent again when they did not arrive as they were."""

# Ranges that may have left before the oldest of them is proven: they must still be in memory then.
_AHEAD = 8

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Ends(Protocol):
    """The two ends of a file's way."""

    @property
    def movers(self) -> int:
        """How many ranges may be on their way at once."""
        ...

    async def move(self, mover: int, start: int, end: int) -> None:
        """Bring a range over; it is written when this returns."""
        ...

    async def here(self, start: int, end: int) -> str:
        """Return the digest here of the first ``end`` bytes, having that of ``start``."""
        ...

    async def there(self, start: int, end: int) -> str:
        """Return the digest there of the first ``end`` bytes, having that of ``start``."""
        ...


@dataclass(frozen=True)
class Moved:
    """A file that is whole at both ends.

    Attributes:
        sha256: of its content, in hex.
        sent: bytes that were moved for it.
    """

    sha256: str
    sent: int


async def move_file(what: str, size: int, left: int, ends: Ends, progress: Progress) -> Moved:
    """Bring a file over and prove it.

    Args:
        what: what messages call it.
        size: its size.
        left: bytes at its start that an earlier transfer may have left.
        ends: where it goes from and to.
        progress: told the proven bytes.

    Raises:
        TransferError: a range arrived twice with other content.
    """
    transfer = _Transfer(what, size, min(left, size), ends, progress)
    return await transfer.run()


class _Transfer:
    def __init__(self, what: str, size: int, left: int, ends: Ends, progress: Progress) -> None:
        self._what = what
        self._ends = ends
        self._progress = progress
        self._ranges = [(start, min(start + RANGE, size)) for start in range(0, size, RANGE)]
        self._claimed = sum(end <= left for _, end in self._ranges)
        self._todo = set(range(self._claimed, len(self._ranges)))
        self._there = set(range(self._claimed))
        self._proven = 0
        self._sent = 0
        self._change = asyncio.Condition()

    async def run(self) -> Moved:
        if self._claimed:
            log.info("Finds %s begun, compares what is there", self._what)
        proving = asyncio.create_task(self._prove())
        movers = [asyncio.create_task(self._mover(index)) for index in range(self._ends.movers)]
        tasks = [proving, *movers]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return Moved(proving.result(), self._sent)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _mover(self, mover: int) -> None:
        while True:
            async with self._change:
                await self._change.wait_for(self._next_is_near)
                index = min(self._todo)
                self._todo.remove(index)
            start, end = self._ranges[index]
            await self._ends.move(mover, start, end)
            self._sent += end - start
            async with self._change:
                self._there.add(index)
                self._change.notify_all()

    def _next_is_near(self) -> bool:
        return bool(self._todo) and min(self._todo) < self._proven + _AHEAD

    def _next_is_there(self) -> bool:
        return self._proven in self._there

    async def _prove(self) -> str:
        digest = EMPTY
        again: set[int] = set()
        while self._proven < len(self._ranges):
            index = self._proven
            async with self._change:
                await self._change.wait_for(self._next_is_there)
            bounds = self._ranges[index]
            here, there = await asyncio.gather(self._ends.here(*bounds), self._ends.there(*bounds))
            if here == there:
                digest = here
                self._progress(bounds[1], self._ranges[-1][1])
                await self._set_proven(index + 1)
            elif index < self._claimed:
                log.info("%s is the same up to byte %d, goes on from there", self._what, bounds[0])
                await self._move_again(range(index, self._claimed))
                self._claimed = index
            elif index in again:
                raise TransferError(
                    f"{self._what} arrived with other content, twice: SHA-256 of its first "
                    f"{bounds[1]} bytes is {here} here and {there} there: check the memory and "
                    "the disks of both machines"
                )
            else:
                log.warning(
                    "%s arrived damaged between bytes %d and %d, sends that again",
                    self._what,
                    *bounds,
                )
                again.add(index)
                await self._move_again(range(index, index + 1))
        return digest

    async def _set_proven(self, count: int) -> None:
        async with self._change:
            self._proven = count
            self._change.notify_all()

    async def _move_again(self, indexes: range) -> None:
        async with self._change:
            self._there.difference_update(indexes)
            self._todo.update(indexes)
            self._change.notify_all()
