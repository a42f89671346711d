"""The two ends of a large file's way: a file here, an agent there, links between them."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.agent.digests import RunningDigest
from overbrainer_airflow.machines.agent.parts import part_of, write_at
from overbrainer_airflow.machines.link import Link

_BLOCK = 1 << 18

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
    """

    local: Path
    descriptor: int
    remote: str
    control: Link
    links: Sequence[Link]
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
        await link.ask("write", path=self.remote, at=start, size=end - start, data=blocks)

    async def here(self, start: int, end: int) -> str:
        """See `Ends.here`."""
        return await asyncio.to_thread(self._digest.upto, start, end)

    async def there(self, start: int, end: int) -> str:
        """See `Ends.there`."""
        answer = await self.control.ask("upto", path=part_of(self.remote), start=start, end=end)
        return str(answer["sha256"])

    def _blocks(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            block = os.pread(self.descriptor, min(_BLOCK, end - start), start)
            if not block:
                raise TransferError(f"{self.local} became shorter while it was sent: try again")
            yield block
            start += len(block)


@dataclass
class Fetching:
    """See `overbrainer_airflow.machines.ranges.Ends`: from a file there to a part here.

    Attributes:
        local: what it will be called.
        descriptor: its part, open for writing.
        remote: the file.
        control: the link that hashes.
        links: the links that carry bytes.
    """

    local: Path
    descriptor: int
    remote: str
    control: Link
    links: Sequence[Link]
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
        target = _Target(self.descriptor, start)
        await link.ask("read", path=self.remote, at=start, size=end - start, sink=target.take)
        target.flush()

    async def here(self, start: int, end: int) -> str:
        """See `Ends.here`."""
        return await asyncio.to_thread(self._digest.upto, start, end)

    async def there(self, start: int, end: int) -> str:
        """See `Ends.there`."""
        answer = await self.control.ask("upto", path=self.remote, start=start, end=end)
        return str(answer["sha256"])


@dataclass
class _Target:
    """A place in a file: what arrives in small packets is written in large blocks."""

    descriptor: int
    at: int
    waiting: list[bytes] = field(default_factory=list)
    size: int = 0

    def take(self, data: bytes) -> None:
        self.waiting.append(data)
        self.size += len(data)
        if self.size >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self.waiting)
        write_at(self.descriptor, memoryview(data), self.at)
        self.at += len(data)
        self.waiting.clear()
        self.size = 0
