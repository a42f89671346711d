"""A shell script that stays and answers, over whatever streams a machine has to it."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.protocol import COMMAND_TIMEOUT

T = TypeVar("T")

_LONGEST_BANNER = 1000


class Reader(Protocol):
    """The part of asyncio's and asyncssh's readers that a session needs."""

    async def readline(self) -> bytes:
        """Return a line with its newline, less at the end."""
        ...

    async def readexactly(self, n: int) -> bytes:
        """Return ``n`` bytes or raise `asyncio.IncompleteReadError`."""
        ...


class Writer(Protocol):
    """The part of asyncio's and asyncssh's writers that a session needs."""

    def write(self, data: bytes) -> None:
        """Send ``data``, later perhaps."""
        ...

    async def drain(self) -> None:
        """Wait until there is room for more."""
        ...


@dataclass(frozen=True)
class StreamSession:
    """See `overbrainer_airflow.machines.protocol.Session`."""

    name: str
    reader: Reader
    writer: Writer

    async def begin(self, mark: str) -> None:
        """Wait until the script runs: what a login shell says before is passed over."""
        for _ in range(_LONGEST_BANNER):
            if await self._answer(self.reader.readline(), COMMAND_TIMEOUT) == f"{mark}\n".encode():
                return
        raise MachineError(f"{self.name}: the login shell did not run a POSIX shell script")

    async def ask(self, request: str, *, timeout: float = COMMAND_TIMEOUT) -> bytes:
        """See `Session.ask`."""
        await self.tell(request)
        return (await self._answer(self.reader.readline(), timeout)).rstrip(b"\n")

    async def read(self, size: int, *, timeout: float = COMMAND_TIMEOUT) -> bytes:
        """See `Session.read`."""
        return await self._answer(self.reader.readexactly(size), timeout) if size else b""

    async def tell(self, request: str) -> None:
        """See `Session.tell`."""
        try:
            self.writer.write(f"{request}\n".encode())
            await asyncio.wait_for(self.writer.drain(), COMMAND_TIMEOUT)
        except (OSError, asyncio.TimeoutError) as error:
            raise self._lost() from error

    async def _answer(self, reading: Awaitable[bytes], timeout: float) -> bytes:
        try:
            answer = await asyncio.wait_for(reading, timeout)
        except asyncio.TimeoutError:
            raise MachineError(f"{self.name} does not answer within {timeout:g} s") from None
        except (OSError, EOFError) as error:
            raise self._lost() from error
        if not answer:
            raise self._lost()
        return answer

    def _lost(self) -> MachineError:
        return MachineError(f"{self.name}: the connection was lost")
