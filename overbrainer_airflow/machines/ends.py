"""The two ends of a large file's way: a file here, an agent there, links between them.

The disk and the digest here have a thread of their own, so that neither waits for the network.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.agent.digests import RunningDigest
from overbrainer_airflow.machines.agent.parts import part_of, write_at, write_out
from overbrainer_airflow.machines.link import Link

_BLOCK = 1 << 20

# A second range is under way on each link while the first one is being acknowledged.
_PER_LINK = 2


@dataclass
class Sending:
    """See `overbrainer_airflow.machines.ranges.Ends`: from a file here to a part there.

    Attributes:
        local: the file.
        descriptor: the file, open for reading.
        remote: what it will be called.
        control: the link that hashes.
        links: the links that carry bytes.
        thread: one, for the disk and the digest here.
    """

    local: Path
    descriptor: int
    remote: str
    control: Link
    links: Sequence[Link]
    thread: ThreadPoolExecutor
    _digest: RunningDigest = field(init=False)

    def __post_init__(self) -> None:
        self._digest = RunningDigest(str(self.local))

    @property
    def movers(self) -> int:
        """See `Ends.movers`."""
        return _PER_LINK * len(self.links)

    async def move(self, mover: int, start: int, end: int) -> None:
        """See `Ends.move`."""
        link = self.links[mover % len(self.links)]
        blocks = self._blocks(start, end)
        await link.ask(
            "write",
            path=self.remote,
            at=start,
            size=end - start,
            hashes=link is self.control,
            data=blocks,
        )

    async def here(self, start: int, end: int) -> str:
        """See `Ends.here`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self._digest.upto, start, end)

    async def there(self, start: int, end: int) -> str:
        """See `Ends.there`."""
        answer = await self.control.ask("upto", path=part_of(self.remote), start=start, end=end)
        return str(answer["sha256"])

    async def _blocks(self, start: int, end: int) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        coming = loop.run_in_executor(self.thread, self._first, start, end)
        while start < end:
            block = await coming
            start += len(block)
            if start < end:
                coming = loop.run_in_executor(self.thread, self._next, start, end)
            yield block

    def _first(self, start: int, end: int) -> bytes:
        if self.links[0] is self.control:
            self._digest.begin(start)
        return self._next(start, end)

    def _next(self, start: int, end: int) -> bytes:
        block = os.pread(self.descriptor, min(_BLOCK, end - start), start)
        if not block:
            raise TransferError(f"{self.local} became shorter while it was sent: try again")
        self._digest.take(block)
        if start + len(block) == end:
            self._digest.end()
        return block


@dataclass
class Fetching:
    """See `overbrainer_airflow.machines.ranges.Ends`: from a file there to a part here.

    Attributes:
        local: what it will be called.
        descriptor: its part, open for writing.
        remote: the file.
        control: the link that hashes.
        links: the links that carry bytes.
        thread: one, for the disk and the digest here.
    """

    local: Path
    descriptor: int
    remote: str
    control: Link
    links: Sequence[Link]
    thread: ThreadPoolExecutor
    _digest: RunningDigest = field(init=False)

    def __post_init__(self) -> None:
        self._digest = RunningDigest(part_of(str(self.local)))

    @property
    def movers(self) -> int:
        """See `Ends.movers`."""
        return _PER_LINK * len(self.links)

    async def move(self, mover: int, start: int, end: int) -> None:
        """See `Ends.move`."""
        link = self.links[mover % len(self.links)]
        follows = self.links[0] is self.control
        target = _Target(self.descriptor, start, end, self._digest, self.thread, follows=follows)
        await link.ask("read", path=self.remote, at=start, size=end - start, sink=target.take)
        await target.written()

    async def here(self, start: int, end: int) -> str:
        """See `Ends.here`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self._digest.upto, start, end)

    async def there(self, start: int, end: int) -> str:
        """See `Ends.there`."""
        answer = await self.control.ask("upto", path=self.remote, start=start, end=end)
        return str(answer["sha256"])


class _Target:
    """A range of a file: what arrives in small packets is written in large blocks."""

    def __init__(
        self,
        descriptor: int,
        start: int,
        end: int,
        digest: RunningDigest,
        thread: ThreadPoolExecutor,
        *,
        follows: bool,
    ) -> None:
        self._descriptor = descriptor
        self._at = self._start = start
        self._end = end
        self._digest = digest
        self._thread = thread
        # Ranges that arrive over several links are out of order: they are read when they are due.
        self._follows = follows
        self._waiting: list[bytes] = []
        self._size = 0
        self._writes: list[Future[None]] = []

    def take(self, data: bytes) -> None:
        """Take what arrives next."""
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= _BLOCK or self._at + self._size == self._end:
            write = self._write if self._writes else self._write_first
            self._writes.append(self._thread.submit(write, self._waiting, self._at))
            self._at += self._size
            self._waiting, self._size = [], 0

    async def written(self) -> None:
        """Return once all of it is written.

        Raises:
            OSError: it cannot be.
        """
        await asyncio.gather(*map(asyncio.wrap_future, self._writes))

    def _write_first(self, arrived: list[bytes], at: int) -> None:
        if self._follows:
            self._digest.begin(at)
        self._write(arrived, at)

    def _write(self, arrived: list[bytes], at: int) -> None:
        data = b"".join(arrived)
        write_at(self._descriptor, memoryview(data), at)
        self._digest.take(data)
        if at + len(data) == self._end:
            self._digest.end()
            write_out(self._descriptor, self._start, self._end)
