"""SHA-256 of files: going on from where it was, and remembered while the file stays what it is."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import Any, Union

_BLOCK = 1 << 20

Buffer = Union[bytes, memoryview]  # noqa: UP007 - for Python 3.7

# Digests of smaller files cost less to compute than to look up.
WORTH_REMEMBERING = 1 << 20

# A kernel's clock for files ticks every 10 ms at least; some file systems keep whole seconds only.
_FINE_TICK = 50_000_000
_COARSE_TICK = 2_100_000_000
_SECOND = 1_000_000_000


class RunningDigest:
    """The SHA-256 of a file's first bytes, which goes on from any place that it once reached.

    Bytes that pass in order on their way into or out of the file are hashed then, all others are
    read from it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._states = {0: hashlib.sha256()}
        self._passed: dict[int, Any] = {}
        self._passing: Any = None
        self._at = -1

    def begin(self, at: int) -> None:
        """Say that the bytes from ``at`` on are about to pass."""
        self._passed = {end: state for end, state in self._passed.items() if end <= at}
        if at != self._at:
            known = self._states.get(at)
            self._passing = known.copy() if known else None
            self._at = at

    def take(self, data: Buffer) -> None:
        """Hash bytes that pass."""
        self._at += len(data)
        if self._passing is not None:
            self._passing.update(data)

    def end(self) -> None:
        """Say that the bytes of a range have passed."""
        if self._passing is not None:
            self._passed[self._at] = self._passing.copy()

    def upto(self, start: int, end: int) -> str:
        """Return the digest of the first ``end`` bytes in hex, having reached ``start`` before.

        Raises:
            OSError: the file cannot be read, or is shorter.
        """
        self._states[end] = self._passed.pop(end, None) or self._read(start, end)
        return str(self._states[end].hexdigest())

    def _read(self, start: int, end: int) -> Any:
        state = self._states[start].copy()
        buffer = memoryview(bytearray(min(_BLOCK, end - start)))
        with open(self._path, "rb", buffering=0) as file:
            file.seek(start)
            while start < end:
                count = file.readinto(buffer[: end - start])
                if not count:
                    raise OSError(f"{self._path} ends at {start} bytes, {end} were expected")
                state.update(buffer[:count])
                start += count
        return state


def digest_of(path: str) -> str:
    """Return the SHA-256 of a whole file in hex, remembered if it can be.

    Raises:
        OSError: it cannot be read, or was written to meanwhile.
    """
    known = remembered(path)
    if known is not None:
        return known
    before = os.stat(path)
    digest = RunningDigest(path).upto(0, before.st_size)
    if not is_still(path, before, digest):
        raise OSError(f"{path} was written to while it was read")
    remember(path, digest, before)
    return digest


def is_still(path: str, was: os.stat_result, digest: str) -> bool:
    """Tell whether a file still has the content whose digest was computed while it was ``was``.

    A new hard link to it and a change of its modes set the change time, too: then it is read again.

    Raises:
        OSError: it cannot be read.
    """
    now = os.stat(path)
    if identity(now) == identity(was):
        return True
    if now.st_size != was.st_size or now.st_mtime_ns != was.st_mtime_ns:
        return False
    return RunningDigest(path).upto(0, now.st_size) == digest


def remembered(path: str) -> str | None:
    """Return the digest that was computed of ``path`` before, if it is still that of its content.

    It is when size, modification time, change time, inode and device are what they were. The change
    time is the kernel's: a program that writes other content and then sets the old modification
    time again cannot set that one.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(_memory_of(path)) as file:
            note = json.load(file)
        if note["is"] == identity(os.stat(path)):
            return str(note["sha256"])
    return None


def remember(path: str, digest: str, was: os.stat_result) -> None:
    """Remember the digest of ``path``, computed while it was as ``was`` says.

    A second write within one tick of the kernel's clock leaves the change time as it is. So a file
    that changed just now is not remembered.
    """
    if was.st_size < WORTH_REMEMBERING or settles_in(was) > 0:
        return
    with contextlib.suppress(OSError):
        if identity(os.stat(path)) != identity(was):
            return
        note = _memory_of(path)
        draft = f"{note}.{os.getpid()}"
        os.makedirs(os.path.dirname(note), 0o700, exist_ok=True)
        with open(draft, "w") as file:
            json.dump({"path": path, "is": identity(was), "sha256": digest}, file)
        os.replace(draft, note)


def remember_new(files: dict[str, str]) -> None:
    """Remember the digests of files that were put in place just now."""
    found = {path: os.stat(path) for path in files}
    waits = [settles_in(was) for was in found.values() if was.st_size >= WORTH_REMEMBERING]
    time.sleep(max([wait for wait in waits if wait <= _FINE_TICK], default=0) / _SECOND)
    for path, was in found.items():
        remember(path, files[path], was)


def settles_in(was: os.stat_result) -> int:
    """Return the nanoseconds until a write to the file is certain to change its change time."""
    tick = _FINE_TICK if was.st_ctime_ns % _SECOND else _COARSE_TICK
    return max(0, was.st_ctime_ns + tick - time.time_ns())


def identity(was: os.stat_result) -> list[int]:
    """Return what says that a file is still the same one, with the same content."""
    return [was.st_size, was.st_mtime_ns, was.st_ctime_ns, was.st_ino, was.st_dev]


def _memory_of(path: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
    return os.path.join(cache, "overbrainer", "digests", name + ".json")
