"""One transfer between a directory here and one on a machine, over a link that is there."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.agent.digests import (
    WORTH_REMEMBERING,
    digest_of,
    is_still,
    remember,
)
from overbrainer_airflow.machines.agent.parts import open_part, part_of, publish, reserve_part
from overbrainer_airflow.machines.bundles import Placed, SmallFiles
from overbrainer_airflow.machines.ends import Fetching, Sending
from overbrainer_airflow.machines.link import Link, linked
from overbrainer_airflow.machines.manifest import FileDigest, Manifest
from overbrainer_airflow.machines.progress import progress_lines
from overbrainer_airflow.machines.protocol import Machine, Progress
from overbrainer_airflow.machines.ranges import move_file

_LARGE = WORTH_REMEMBERING

# An SSH server lets a channel have 2 MiB on the way: over a long way, several connections at once.
_ONE_LINK_UP_TO = 64 << 20
_SECONDS_A_LINK = 0.012
_MOST_LINKS = 4

# Names in one request, so that its answer comes before anyone wonders.
_ASKED_AT_ONCE = 1000


@dataclass(frozen=True)
class Transferred:
    """A tree that is whole at both ends.

    Attributes:
        manifest: its files.
        moved: bytes of content that were moved for it; what was there already is not among them.
    """

    manifest: Manifest
    moved: int


@dataclass
class TreeTransfer:
    """Moves files between two directories; see `overbrainer_airflow.machines.transfer`.

    Attributes:
        machine: the machine.
        control: the link that hashes there.
        local: the directory here.
        remote: the directory there.
    """

    machine: Machine
    control: Link
    local: Path
    remote: str
    _manifest: dict[str, FileDigest] = field(default_factory=dict)
    _moved: int = 0

    async def send(self, names: Sequence[str]) -> Transferred:
        """Send files and return what they are."""
        sizes, (there, parts) = await asyncio.gather(
            asyncio.to_thread(self._sizes_here, names), self._sizes_there(names)
        )
        await self._find_equal([name for name in names if there[name] == sizes[name]], sizes)
        missing = self._missing(sizes)
        count = _Count(missing, progress_lines(f"Sends to {self.machine.name}"))
        async with self._links(missing.values()) as links:
            small = SmallFiles(links[0], self.local, self.remote, self._noting(count))
            await small.send([(name, size) for name, size in missing.items() if size < _LARGE])
            for name, size in missing.items():
                if size >= _LARGE:
                    await self._send_large(name, size, parts[name] or 0, links, count)
        return Transferred(self._manifest, self._moved)

    async def equal(self, names: Sequence[str]) -> Manifest | None:
        """Return the files if the very same are at both ends; content is read when sizes agree."""
        sizes, (there, _) = await asyncio.gather(
            asyncio.to_thread(self._sizes_here, names), self._sizes_there(names)
        )
        if there != sizes:
            return None
        await self._find_equal(names, sizes)
        return None if self._missing(sizes) else self._manifest

    async def fetch(self, names: Sequence[str], expected: Manifest | None = None) -> Transferred:
        """Fetch files and return what they are; each is what ``expected`` says of it, if given."""
        sizes: dict[str, int] = {}
        there, _ = await self._sizes_there(names)
        for name, size in there.items():
            if size is None:
                raise TransferError(
                    f"machine {self.machine.name}: there is no file {self.remote}/{name}: clear "
                    "the task that makes it"
                )
            if expected is not None and size != expected[name].size:
                raise self._unexpected(name, f"{size} bytes", f"{expected[name].size} bytes")
            sizes[name] = size
        here = await asyncio.to_thread(self._sizes_found_here, names)
        await self._find_equal([name for name in names if here.get(name) == sizes[name]], sizes)
        for name, found in self._manifest.items():
            if expected is not None and found != expected[name]:
                raise self._unexpected(name, f"SHA-256 {found.sha256}", expected[name].sha256)
        missing = self._missing(sizes)
        count = _Count(missing, progress_lines(f"Fetches from {self.machine.name}"))
        # What is expected is compared before it gets its name, which bundles do not do.
        alone = [n for n, size in missing.items() if size >= _LARGE or expected is not None]
        async with self._links(missing.values()) as links:
            small = SmallFiles(links[0], self.local, self.remote, self._noting(count))
            await small.fetch([(n, size) for n, size in missing.items() if n not in alone])
            for name in alone:
                wanted = expected[name].sha256 if expected is not None else None
                await self._fetch_large(name, missing[name], links, count, wanted)
        return Transferred(self._manifest, self._moved)

    def _sizes_here(self, names: Sequence[str]) -> dict[str, int]:
        return {name: os.stat(f"{self.local}/{name}").st_size for name in names}  # noqa: PTH116

    def _sizes_found_here(self, names: Sequence[str]) -> dict[str, int | None]:
        if not self.local.is_dir():
            return {}
        return {name: _size(self.local / name) for name in names}

    def _missing(self, sizes: dict[str, int]) -> dict[str, int]:
        return {name: size for name, size in sizes.items() if name not in self._manifest}

    async def _sizes_there(
        self, names: Sequence[str]
    ) -> tuple[dict[str, int | None], dict[str, int | None]]:
        files: dict[str, int | None] = {}
        parts: dict[str, int | None] = {}
        groups = _some(names)
        asked = [self.control.ask("sizes", root=self.remote, names=some) for some in groups]
        for some, answer in zip(groups, await asyncio.gather(*asked), strict=True):
            files.update(zip(some, answer["files"], strict=True))
            parts.update(zip(some, answer["parts"], strict=True))
        return files, parts

    async def _find_equal(self, names: Sequence[str], sizes: dict[str, int]) -> None:
        """Note the files that are the same at both ends; both hash at the same time."""
        for some in _some(names):
            answer, ours = await asyncio.gather(
                self.control.ask("digests", root=self.remote, names=some),
                asyncio.to_thread(self._digests_here, some),
            )
            for name, here, there in zip(some, ours, answer["sha256"], strict=True):
                if here == there:
                    self._manifest[name] = FileDigest(sizes[name], here)

    def _digests_here(self, names: list[str]) -> list[str]:
        return [digest_of(str(self.local / name)) for name in names]

    def _noting(self, count: "_Count") -> Placed:
        def note(name: str, digest: FileDigest) -> None:
            self._manifest[name] = digest
            self._moved += digest.size
            count.finish(digest.size)

        return note

    @asynccontextmanager
    async def _links(self, sizes: Iterable[int]) -> AsyncIterator[list[Link]]:
        """Yield links for the bytes: one, or several over a long way, each its own connection."""
        async with AsyncExitStack() as stack:
            count = await self._links_for(max(sizes, default=0))
            if count == 1:
                # The agent that writes the bytes hashes them as they pass.
                yield [self.control]
                return
            apart = [linked(self.machine, apart=True) for _ in range(count)]
            opening = [stack.enter_async_context(link) for link in apart]
            opened = await asyncio.gather(*opening, return_exceptions=True)
            # A server that lets in fewer carries it over those.
            yield [link for link in opened if isinstance(link, Link)] or [self.control]

    async def _links_for(self, largest: int) -> int:
        if largest < _ONE_LINK_UP_TO:
            return 1
        asked = time.monotonic()
        await self.control.ask("ping")
        return min(_MOST_LINKS, math.ceil((time.monotonic() - asked) / _SECONDS_A_LINK))

    async def _send_large(
        self, name: str, size: int, left: int, links: list[Link], count: "_Count"
    ) -> None:
        path = self.local / name
        remote = f"{self.remote}/{name}"
        with path.open("rb") as file, ThreadPoolExecutor(1) as thread:
            before = os.fstat(file.fileno())
            if before.st_size != size:
                raise self._written_to(path)
            await self.control.ask("reserve", path=remote, size=size)
            ends = Sending(path, file.fileno(), remote, self.control, links, thread)
            moved = await move_file(name, size, left, ends, count.report)
        if not await asyncio.to_thread(is_still, str(path), before, moved.sha256):
            raise self._written_to(path)
        remember(str(path), moved.sha256, before)
        await self.control.ask("publish", root=self.remote, files=[[name, size, moved.sha256]])
        self._done(name, size, moved.sha256, moved.sent, count)

    async def _fetch_large(
        self, name: str, size: int, links: list[Link], count: "_Count", wanted: str | None
    ) -> None:
        path = self.local / name
        left = _size(Path(part_of(str(path)))) or 0
        await asyncio.to_thread(reserve_part, str(path), size)
        descriptor = open_part(str(path))
        try:
            remote = f"{self.remote}/{name}"
            with ThreadPoolExecutor(1) as thread:
                ends = Fetching(path, descriptor, remote, self.control, links, thread)
                moved = await move_file(name, size, left, ends, count.report)
        finally:
            os.close(descriptor)
        if wanted is not None and moved.sha256 != wanted:
            Path(part_of(str(path))).unlink()
            raise self._unexpected(name, f"SHA-256 {moved.sha256}", wanted)
        await asyncio.to_thread(publish, [(str(path), size, moved.sha256)])
        self._done(name, size, moved.sha256, moved.sent, count)

    def _done(self, name: str, size: int, digest: str, moved: int, count: "_Count") -> None:
        self._manifest[name] = FileDigest(size, digest)
        self._moved += moved
        count.finish(size)

    def _written_to(self, path: Path) -> TransferError:
        return TransferError(
            f"{path} was written to while it was sent to {self.machine.name}: what arrived of it "
            "gets no name there, try again once nothing writes to the run"
        )

    def _unexpected(self, name: str, found: str, wanted: str) -> TransferError:
        return TransferError(
            f"machine {self.machine.name}: {self.remote}/{name} changed since it was made: it has "
            f"{found}, expected were {wanted}: nothing was replaced, clear the export's tasks to "
            "make it again"
        )


class _Count:
    """How far all of a transfer is."""

    def __init__(self, missing: dict[str, int], progress: Progress) -> None:
        self._total = sum(missing.values())
        self._finished = 0
        self._progress = progress

    def report(self, done: int, _size: int) -> None:
        """Tell that so much of the file under way is proven."""
        self._progress(self._finished + done, self._total)

    def finish(self, size: int) -> None:
        """Tell that a file of this size is in its place."""
        self._finished += size
        self._progress(self._finished, self._total)


def _some(names: Sequence[str]) -> list[list[str]]:
    return [list(names[at : at + _ASKED_AT_ONCE]) for at in range(0, len(names), _ASKED_AT_ONCE)]


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
