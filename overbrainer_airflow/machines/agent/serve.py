"""The machine's end of a transfer: obeys the requests that arrive on its standard input.

A request is one line of JSON and, for some, the bytes that it announces; so is an answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import stat
import sys
from typing import Any, BinaryIO, Dict

from overbrainer_airflow.machines.agent.digests import WORTH_REMEMBERING, RunningDigest, digest_of
from overbrainer_airflow.machines.agent.locks import give_up, holder, take
from overbrainer_airflow.machines.agent.parts import (
    open_part,
    part_of,
    publish,
    reserve_part,
    write_at,
    write_out,
    write_part,
)

Answer = Dict[str, Any]

_BLOCK = 1 << 18
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.10 is the first to name
_PIPE_SIZE = 1 << 20

# Who hears nothing for so long has lost its worker, even if nobody told it: a worker that is there
# asks every minute.
_SILENCE = 300


class WorkerGoneError(Exception):
    """The input ended amid a request."""


class Agent:
    """Answers requests, each by the method of its name, until there are no more."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(0, _SET_PIPE_SIZE, _PIPE_SIZE)
        self._input = open(0, "rb", buffering=_BLOCK)  # noqa: SIM115 - for the process's life
        self._buffer = memoryview(bytearray(2 * _BLOCK))
        self._digests: dict[str, RunningDigest] = {}
        self._place: list[Any] = []
        self._part: os.stat_result | None = None
        self._written = 0

    def serve(self) -> None:
        """Answer until the input ends."""
        _answer({"python": sys.version.split()[0]})
        while True:
            signal.alarm(_SILENCE)
            line = self._input.readline()
            signal.alarm(0)
            if not line:
                break
            request = json.loads(line.decode())
            try:
                _answer(getattr(self, "do_" + request.pop("do"))(**request))
            except OSError as error:
                _answer({"error": str(error)})
        if self._place:
            self.do_unlock()

    def do_ping(self) -> Answer:
        """Answer, so that the way here and back can be timed."""
        return {}

    def do_lock(self, folder: str, owner: str) -> Answer:
        """Take the destination for this transfer, or tell who has it."""
        held = take(folder, owner, ends_earlier_try=True)
        if held is None:
            return {"holder": holder(folder)}
        self._place = [folder, held]
        return {"holder": None}

    def do_unlock(self) -> Answer:
        """Let others have the destination."""
        give_up(*self._place)
        self._place = []
        return {}

    def do_sizes(self, root: str, names: list[str]) -> Answer:
        """Tell the size of each regular file, and of its part."""
        if not os.path.isdir(root):
            return {"files": [None] * len(names), "parts": [None] * len(names)}
        paths = [os.path.join(root, name) for name in names]
        parts = [part_of(path) for path in paths]
        return {"files": list(map(_size, paths)), "parts": list(map(_size, parts))}

    def do_digests(self, root: str, names: list[str]) -> Answer:
        """Tell the SHA-256 of whole files."""
        return {"sha256": [digest_of(os.path.join(root, name)) for name in names]}

    def do_upto(self, path: str, start: int, end: int) -> Answer:
        """Tell the SHA-256 of the first ``end`` bytes of a file, having told that of ``start``."""
        return {"sha256": self._digest(path).upto(start, end)}

    def do_write(self, path: str, at: int, size: int, hashes: bool) -> Answer:  # noqa: FBT001
        """Write the bytes that follow into the part of a file, hashed as they pass or not."""
        start, end = at, at + size
        digest = self._digest(part_of(path))
        if hashes:
            digest.begin(at)
        try:
            descriptor = open_part(path)
            try:
                if hashes:
                    self._check_same(path, os.fstat(descriptor))
                while size:
                    block = self._take(size)
                    size -= len(block)
                    write_at(descriptor, block, at)
                    digest.take(block)
                    at += len(block)
                signal.alarm(0)
                write_out(descriptor, start, end)
            finally:
                os.close(descriptor)
        except OSError:
            self._skip(size)
            raise
        digest.end()
        self._written = max(self._written, end)
        return {}

    def do_bundle(self, root: str, files: list[list[Any]]) -> Answer:
        """Write the bytes that follow into the parts of small files; tell their SHA-256."""
        contents = [self._input.read(size) for _, size in files]
        if sum(map(len, contents)) != sum(size for _, size in files):
            raise WorkerGoneError
        for (name, _), content in zip(files, contents):  # noqa: B905 - for Python 3.7
            write_part(os.path.join(root, name), content)
        return {"sha256": [hashlib.sha256(content).hexdigest() for content in contents]}

    def do_read(self, path: str, at: int, size: int) -> Answer:
        """Send bytes of a file."""
        with open(path, "rb", buffering=0) as file:
            found = os.fstat(file.fileno()).st_size
            if found < at + size:
                raise OSError(f"{path} has {found} bytes, {at + size} were expected")
            _answer({"bytes": size})
            # The bytes are promised: that some are missing can only be told by going away.
            try:
                while size:
                    count = _send(file, at, size)
                    if not count:
                        raise OSError(f"{path} became shorter")
                    at, size = at + count, size - count
            except OSError as error:
                sys.exit(f"cannot read {path}: {error}")
        return {}

    def do_fetch(self, root: str, names: list[str]) -> Answer:
        """Send the content of small files; tell their sizes and SHA-256."""
        contents = []
        for name in names:
            with open(os.path.join(root, name), "rb", buffering=0) as file:
                contents.append(file.read())
        _answer({"bytes": sum(map(len, contents))})
        _write(b"".join(contents))
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        return {"sizes": list(map(len, contents)), "sha256": digests}

    def do_reserve(self, path: str, size: int) -> Answer:
        """Take the room for a large file."""
        self._part, self._written = reserve_part(path, size), 0
        return {}

    def do_publish(self, root: str, files: list[list[Any]]) -> Answer:
        """Give parts their names."""
        for name, size, _ in files:
            if size >= WORTH_REMEMBERING:
                path = os.path.join(root, name)
                self._check_same(path, os.stat(part_of(path)))
        publish([(os.path.join(root, name), size, digest) for name, size, digest in files])
        return {}

    def do_prune(self, root: str, keep: list[str], spare: list[str]) -> Answer:
        """Remove the files below ``root`` that are not to be kept, nor in directories to spare."""
        wanted = {os.path.join(root, name) for name in keep}
        spared = tuple(os.path.join(root, name, "") for name in spare)
        found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
        removed = [path for path in found if path not in wanted and not path.startswith(spared)]
        for path in removed:
            os.unlink(path)
        return {"removed": removed}

    def _check_same(self, path: str, found: os.stat_result) -> None:
        """Refuse a part that somebody has replaced or cut: what was proven of it is gone."""
        if self._part is None or not os.path.samestat(self._part, found):
            raise OSError(f"{part_of(path)} was replaced while it was being written")
        if found.st_size < self._written:
            raise OSError(f"{part_of(path)} was cut while it was being written")

    def _digest(self, path: str) -> RunningDigest:
        """Return the digest of the one large file that is under way."""
        if path not in self._digests:
            self._digests = {path: RunningDigest(path)}
        return self._digests[path]

    def _take(self, size: int) -> memoryview:
        signal.alarm(_SILENCE)
        count = self._input.readinto(self._buffer[:size])  # type: ignore[attr-defined]
        if not count:
            raise WorkerGoneError
        return self._buffer[:count]

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._take(size))


def _size(path: str) -> Any:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):
            return found.st_size
    return None


def _send(file: BinaryIO, at: int, size: int) -> int:
    with contextlib.suppress(OSError, AttributeError):
        return os.sendfile(1, file.fileno(), at, size)
    block = os.pread(file.fileno(), min(size, _BLOCK), at)
    _write(block)
    return len(block)


def _answer(answer: Answer) -> None:
    _write(json.dumps(answer).encode() + b"\n")


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    """Serve; a worker that goes away is the end and no error."""
    os.umask(0o022)
    with contextlib.suppress(WorkerGoneError, BrokenPipeError):
        Agent().serve()
