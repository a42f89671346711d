"""What every machine can do; where it is and how it is reached is its own affair."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.runtime import MachineSettings

COMMAND_TIMEOUT = 60.0
"""Seconds for one short command; the job itself never runs inside one."""

REMOVAL_TIMEOUT = 600.0
"""Seconds to remove a model: tens of GB, on file systems that take their time."""

HASH_TIMEOUT = 6 * 3600.0
"""Seconds for a command that reads whole models."""

#: Called with the bytes done so far and the bytes in all.
Progress = Callable[[int, int], None]

#: Takes bytes as they arrive.
Sink = Callable[[bytes], object]


@dataclass(frozen=True)
class Completed:
    """A shell script that ended by itself."""

    status: int
    stdout: bytes
    stderr: str


class Session(Protocol):
    """A shell script that stays and answers, a request a line."""

    async def ask(self, request: str, *, timeout: float = COMMAND_TIMEOUT) -> bytes:
        """Send one line and return the one line that answers it, without its newline.

        Raises:
            MachineError: the connection was lost, or no answer came within ``timeout`` seconds.
        """
        ...

    async def read(self, size: int, *, timeout: float = COMMAND_TIMEOUT) -> bytes:
        """Return the ``size`` bytes that follow an answer.

        Raises:
            MachineError: the connection was lost, or they did not come within ``timeout`` seconds.
        """
        ...

    async def tell(self, request: str) -> None:
        """Send one line that is not answered.

        Raises:
            MachineError: the connection was lost.
        """
        ...


class Pipe(Protocol):
    """Bytes to and from a program on a machine."""

    async def send(self, data: bytes) -> None:
        """Send ``data``, once there is room for it.

        Raises:
            MachineError: the program or the connection is gone.
        """
        ...

    async def line(self) -> bytes:
        """Return the next line, without its newline.

        Raises:
            MachineError: the program or the connection is gone.
        """
        ...

    async def receive(self, size: int, sink: Sink) -> None:
        """Give the next ``size`` bytes to ``sink`` as they arrive.

        Raises:
            MachineError: the program or the connection is gone.
            OSError: the sink raised it.
        """
        ...


class Machine(Protocol):
    """Somewhere that runs shell and holds files. Paths on it are absolute and use ``/``."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def settings(self) -> MachineSettings:
        """How it is set up."""
        ...

    async def run(self, script: str, *, timeout: float = COMMAND_TIMEOUT) -> Completed:
        """Run a POSIX shell script in the home directory and wait for its end, in seconds.

        Raises:
            MachineError: it cannot be reached, or the script did not end in time.
        """
        ...

    def session(self, script: str) -> AbstractAsyncContextManager[Session]:
        """Start a POSIX shell script that reads requests and answers them, until it is left.

        Raises:
            MachineError: the machine cannot be reached.
        """
        ...

    def pipe(self, script: str, *, apart: bool = False) -> AbstractAsyncContextManager[Pipe]:
        """Start a POSIX shell script whose input and output carry bytes, until it is left.

        Args:
            script: the shell; it must not read before it has said something.
            apart: whether it gets a connection of its own, so that it shares no other's limits.

        Raises:
            MachineError: the machine cannot be reached.
        """
        ...

    async def put(self, local: Path, remote: str, progress: Progress | None = None) -> None:
        """Copy one file to the machine, into a directory that exists.

        Raises:
            MachineError: the machine cannot be reached or cannot write the file.
        """
        ...

    async def get(self, remote: str, local: Path, progress: Progress | None = None) -> None:
        """Copy one file from the machine.

        Raises:
            MachineError: the machine cannot be reached or cannot read the file.
        """
        ...

    async def close(self) -> None:
        """Let go of the machine; it may be used again and then reconnects."""
        ...


async def run_checked(machine: Machine, script: str, *, timeout: float = COMMAND_TIMEOUT) -> bytes:
    """Run a script that has to succeed and return its output.

    Raises:
        MachineError: it failed; the message has its last error line.
    """
    done = await machine.run(script, timeout=timeout)
    if done.status != 0:
        lines = done.stderr.strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        raise MachineError(f"machine {machine.name}: exit code {done.status}: {said}")
    return done.stdout
