"""Many small files: they travel together, and nobody waits for one of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.agent.parts import publish, write_part
from overbrainer_airflow.machines.link import Link
from overbrainer_airflow.machines.manifest import FileDigest

log = logging.getLogger(__name__)

_BUNDLE = 4 << 20
_FILES = 1000

# Bundles on their way at once: the next one leaves while the last is written and confirmed.
_UNDER_WAY = 3

#: Told the name and the content's digest of each file that is in its place.
Placed = Callable[[str, FileDigest], None]


Again = Callable[[list[str]], Coroutine[None, None, None]]


@dataclass(frozen=True)
class SmallFiles:
    """Files to move together.

    Attributes:
        link: carries them.
        local: the directory here.
        remote: the directory there.
        placed: told of each file.
    """

    link: Link
    local: Path
    remote: str
    placed: Placed

    async def send(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Send files, by their names and sizes.

        Raises:
            TransferError: one arrived twice with other content.
            OSError: one cannot be read.
        """
        await self._all(self._send(bundle) for bundle in _bundles(sizes))

    async def fetch(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Fetch files, by their names and sizes.

        Raises:
            TransferError: one arrived twice with other content.
            OSError: one cannot be written.
        """
        await self._all(self._fetch(bundle) for bundle in _bundles(sizes))

    @staticmethod
    async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
        under_way: set[asyncio.Task[None]] = set()
        try:
            for one in work:
                under_way.add(asyncio.create_task(one))
                if len(under_way) == _UNDER_WAY:
                    under_way = await _some(under_way)
            while under_way:
                under_way = await _some(under_way)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _send(self, names: list[str], *, again: bool = False) -> None:
        contents = await asyncio.to_thread(self._read, names)
        files = [[name, len(content)] for name, content in zip(names, contents, strict=True)]
        answer = await self.link.ask("bundle", root=self.remote, files=files, data=_each(contents))
        found = dict(zip(names, contents, strict=True))
        right = await self._compare(found, answer["sha256"], [len(c) for c in contents])
        await self.link.ask(
            "publish", root=self.remote, files=[[n, d.size, d.sha256] for n, d in right.items()]
        )
        await self._finish(names, right, None if again else partial(self._send, again=True))

    def _read(self, names: list[str]) -> list[bytes]:
        return [(self.local / name).read_bytes() for name in names]

    async def _fetch(self, names: list[str], *, again: bool = False) -> None:
        arrived = bytearray()
        answer = await self.link.ask("fetch", root=self.remote, names=names, sink=arrived.extend)
        found = dict(zip(names, _split(bytes(arrived), answer["sizes"]), strict=True))
        right = await self._compare(found, answer["sha256"], answer["sizes"])
        await asyncio.to_thread(self._place, {name: found[name] for name in right}, right)
        await self._finish(names, right, None if again else partial(self._fetch, again=True))

    @staticmethod
    async def _compare(
        found: dict[str, bytes], theirs: list[str], sizes: list[int]
    ) -> dict[str, FileDigest]:
        """Return the files whose digests are the same at both ends."""
        digests = await asyncio.to_thread(
            lambda: [sha256(content).hexdigest() for content in found.values()]
        )
        each = zip(found, digests, theirs, sizes, strict=True)
        return {name: FileDigest(size, ours) for name, ours, other, size in each if ours == other}

    def _place(self, contents: dict[str, bytes], right: dict[str, FileDigest]) -> None:
        for name, content in contents.items():
            write_part(str(self.local / name), content)
        if right:
            publish([(str(self.local / n), d.size, d.sha256) for n, d in right.items()])

    async def _finish(
        self, names: list[str], right: dict[str, FileDigest], again: Again | None
    ) -> None:
        for name, digest in right.items():
            self.placed(name, digest)
        wrong = [name for name in names if name not in right]
        if wrong and again is None:
            raise TransferError(
                f"machine {self.link.machine}: {self.remote}/{wrong[0]} arrived with other "
                "content, twice: check the memory and the disks of both machines"
            )
        if wrong and again is not None:
            log.warning("%s arrived damaged, moves it again", ", ".join(wrong))
            await again(wrong)


async def _some(tasks: set["asyncio.Task[None]"]) -> set["asyncio.Task[None]"]:
    """Wait until one of the tasks is done and return those that are not."""
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return left


async def _each(contents: list[bytes]) -> AsyncIterator[bytes]:
    yield b"".join(contents)


def _bundles(sizes: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    names: list[str] = []
    total = 0
    for name, size in sizes:
        if names and (total + size > _BUNDLE or len(names) == _FILES):
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def _split(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
