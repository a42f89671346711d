"""Bytes to and from a program on a machine: through an SSH channel, or through two local pipes."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import asyncssh

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.protocol import COMMAND_TIMEOUT, Pipe, Sink
from overbrainer_airflow.machines.shell import framed

T = TypeVar("T")

WINDOW = 8 << 20
"""Bytes that a server may send before it hears that they arrived."""

PACKET = 1 << 18

_UNSENT = 2 << 20
_LONGEST_BANNER = 1000
_GONE = "the program at its end is gone"


class ProgramGoneError(MachineError):
    """The program at the other end ended of itself, the way to it is still there."""


async def begin(pipe: Pipe, script: str, mark: str) -> None:
    """Start ``script`` at the other end and pass over what a login shell says before it.

    Raises:
        MachineError: it does not start.
    """
    await pipe.send(framed(script, mark, reads=True))
    for _ in range(_LONGEST_BANNER):
        if await asyncio.wait_for(pipe.line(), COMMAND_TIMEOUT) == mark.encode():
            return
    raise MachineError("the login shell did not run a POSIX shell script")


class SSHPipe(asyncssh.SSHClientSession[bytes]):
    """See `Pipe`. What arrives goes to the sink at once, without being copied together before."""

    def __init__(self) -> None:
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._arrived = bytearray()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._sink: Sink | None = None
        self._left = 0
        self._errors = bytearray()
        self._end: BaseException | None = None
        self._refused: OSError | None = None

    async def send(self, data: bytes) -> None:
        """See `Pipe.send`."""
        await self._room.wait()
        if self._end is not None or self._channel is None:
            raise self._gone()
        try:
            self._channel.write(data)
        except OSError as error:
            raise self._gone() from error

    async def line(self) -> bytes:
        """See `Pipe.line`."""
        seen = 0
        while (end := self._arrived.find(b"\n", seen)) < 0:
            seen = len(self._arrived)
            await self._more()
        line = bytes(self._arrived[:end])
        del self._arrived[: end + 1]
        return line

    async def receive(self, size: int, sink: Sink) -> None:
        """See `Pipe.receive`."""
        first = bytes(self._arrived[:size])
        del self._arrived[:size]
        if first:
            sink(first)
        self._left, self._sink = size - len(first), sink
        try:
            while self._left:
                await self._more()
        finally:
            self._left, self._sink = 0, None
        if self._refused is not None:
            raise self._refused

    async def _more(self) -> None:
        if self._end is not None:
            raise self._refused or self._gone()
        self._news.clear()
        await self._news.wait()

    def _gone(self) -> MachineError:
        if self._end is None or isinstance(self._end, ProgramGoneError):
            lines = self._errors.decode("utf-8", "replace").strip().splitlines()
            return ProgramGoneError(f"{_GONE}: {lines[-1]}" if lines else _GONE)
        return MachineError(f"the connection was lost: {self._end}")

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Keep the channel."""
        self._channel = chan
        chan.set_write_buffer_limits(high=_UNSENT)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Give what arrives to who waits for it."""
        if datatype is not None:
            self._errors = (self._errors + data)[-PACKET:]
            return
        if self._sink is not None and self._left:
            mine = data if len(data) <= self._left else data[: self._left]
            try:
                self._sink(mine)
            except OSError as error:
                self._refused = self._end = error
                self._left = 0
                if self._channel is not None:
                    self._channel.abort()
            self._left = max(0, self._left - len(mine))
            data = data[len(mine) :]
        self._arrived += data
        if self._arrived or not self._left:
            self._news.set()

    def pause_writing(self) -> None:
        """Let senders wait."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Let senders go on."""
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everyone who waits."""
        if self._end is None:
            self._end = exc or ProgramGoneError(_GONE)
        self._news.set()
        self._room.set()


@dataclass(frozen=True)
class StreamPipe:
    """See `Pipe`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """See `Pipe.send`."""
        self.writer.write(data)
        await self._answered(self.writer.drain())

    async def line(self) -> bytes:
        """See `Pipe.line`."""
        return (await self._answered(self.reader.readuntil())).rstrip(b"\n")

    async def receive(self, size: int, sink: Sink) -> None:
        """See `Pipe.receive`."""
        while size:
            data = await self._answered(self.reader.read(min(size, PACKET)))
            if not data:
                raise ProgramGoneError(_GONE)
            sink(data)
            size -= len(data)

    async def _answered(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except (ConnectionError, EOFError) as error:
            raise ProgramGoneError(_GONE) from error
