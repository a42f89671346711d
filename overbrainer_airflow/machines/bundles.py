"""Many small files: they travel together, and nobody waits for one of them."""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.agent.digests import identity
from overbrainer_airflow.machines.agent.parts import publish, write_part
from overbrainer_airflow.machines.link import Link
from overbrainer_airflow.machines.manifest import FileDigest, Manifest

log = logging.getLogger(__name__)

_BUNDLE = 4 << 20
_FILES = 1000

# Files that get their names together. A disk takes as long for one of them as for thousands.
_PUBLISHED_AT_ONCE = 256 << 20

# Bundles on their way at once: the next one leaves while the last is written and confirmed.
_UNDER_WAY = 3

#: Told the name and the content's digest of each file that is in its place.
Placed = Callable[[str, FileDigest], None]


#: Names and sizes.
Sizes = Sequence[tuple[str, int]]


@dataclass
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
    _whole: dict[str, FileDigest] = field(default_factory=dict)

    async def send(self, sizes: Sizes) -> None:
        """Send files, by their names and sizes.

        Raises:
            TransferError: one arrived twice with other content.
            OSError: one cannot be read.
        """
        for some in _groups(sizes, _PUBLISHED_AT_ONCE):
            await self._all(self._send(bundle) for bundle in _groups(some, _BUNDLE, _FILES))
            files = [[name, digest.size, digest.sha256] for name, digest in self._whole.items()]
            await self.link.ask("publish", root=self.remote, files=files)
            self._tell()

    async def fetch(self, sizes: Sizes) -> None:
        """Fetch files, by their names and sizes.

        Raises:
            TransferError: one arrived twice with other content.
            OSError: one cannot be written.
        """
        for some in _groups(sizes, _PUBLISHED_AT_ONCE):
            await self._all(self._fetch(bundle) for bundle in _groups(some, _BUNDLE, _FILES))
            files = [(f"{self.local}/{n}", d.size, d.sha256) for n, d in self._whole.items()]
            await asyncio.to_thread(publish, files)
            self._tell()

    def _tell(self) -> None:
        for name, digest in self._whole.items():
            self.placed(name, digest)
        self._whole.clear()

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

    async def _send(self, bundle: Sizes, *, again: bool = False) -> None:
        names = [name for name, _ in bundle]
        contents = await asyncio.to_thread(self._read, names)
        files = [[name, len(content)] for name, content in zip(names, contents, strict=True)]
        answer, ours = await asyncio.gather(
            self.link.ask("bundle", root=self.remote, files=files, data=_once(contents)),
            asyncio.to_thread(_digests, names, contents),
        )
        wrong = self._compare(ours, dict(zip(names, answer["sha256"], strict=True)))
        if wrong:
            self._check_first_time(wrong, again=again)
            await self._send(wrong, again=True)

    def _read(self, names: list[str]) -> list[bytes]:
        contents = []
        for name in names:
            with open(f"{self.local}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - faster
                before = os.fstat(file.fileno())
                content = file.read(before.st_size + 1)
                if len(content) != before.st_size or identity(os.fstat(file.fileno())) != (
                    identity(before)
                ):
                    raise TransferError(
                        f"{self.local}/{name} was written to while it was sent: try again once "
                        "nothing writes to the run"
                    )
                contents.append(content)
        return contents

    async def _fetch(self, bundle: Sizes, *, again: bool = False) -> None:
        names = [name for name, _ in bundle]
        arrived = bytearray()
        answer = await self.link.ask("fetch", root=self.remote, names=names, sink=arrived.extend)
        contents = list(_split(memoryview(arrived), answer["sizes"]))
        ours = await asyncio.to_thread(self._place, names, contents)
        wrong = self._compare(ours, dict(zip(names, answer["sha256"], strict=True)))
        if wrong:
            self._check_first_time(wrong, again=again)
            await self._fetch(wrong, again=True)

    def _place(self, names: list[str], contents: list[memoryview]) -> Manifest:
        for name, content in zip(names, contents, strict=True):
            write_part(f"{self.local}/{name}", content)
        return _digests(names, contents)

    def _compare(self, ours: Manifest, theirs: dict[str, str]) -> Sizes:
        """Note the files whose digests are the same at both ends and return the others."""
        right = {name: found for name, found in ours.items() if found.sha256 == theirs[name]}
        self._whole.update(right)
        return [(name, found.size) for name, found in ours.items() if name not in right]

    def _check_first_time(self, wrong: Sizes, *, again: bool) -> None:
        names = [name for name, _ in wrong]
        if again:
            raise TransferError(
                f"machine {self.link.machine}: {self.remote}/{names[0]} arrived with other "
                "content, twice: check the memory and the disks of both machines"
            )
        log.warning("%s arrived damaged, moves it again", ", ".join(names))


async def _some(tasks: set["asyncio.Task[None]"]) -> set["asyncio.Task[None]"]:
    """Wait until one of the tasks is done and return those that are not."""
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return left


async def _once(contents: list[bytes]) -> AsyncIterator[bytes]:
    yield b"".join(contents)


def _digests(names: list[str], contents: Sequence[bytes | memoryview]) -> dict[str, FileDigest]:
    each = zip(names, contents, strict=True)
    return {name: FileDigest(len(c), sha256(c).hexdigest()) for name, c in each}


def _groups(sizes: Sizes, most: int, count: float = math.inf) -> Iterator[Sizes]:
    """Yield files in their order, so many of them and so many bytes at once."""
    group: list[tuple[str, int]] = []
    total = 0
    for name, size in sizes:
        if group and (total + size > most or len(group) == count):
            yield group
            group, total = [], 0
        group.append((name, size))
        total += size
    if group:
        yield group


def _split(data: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
