"""The worker itself as a machine."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.pipes import StreamPipe, begin
from overbrainer_airflow.machines.protocol import (
    COMMAND_TIMEOUT,
    Completed,
    Pipe,
    Progress,
    Session,
)
from overbrainer_airflow.machines.runtime import MachineSettings
from overbrainer_airflow.machines.session import StreamSession
from overbrainer_airflow.machines.shell import after_mark, framed, new_mark

_LONGEST_LINE = 1 << 26


@dataclass(frozen=True)
class LocalMachine:
    """This machine, as the user that the worker runs as."""

    settings: MachineSettings = field(default_factory=MachineSettings)
    name: str = "this worker"

    async def run(self, script: str, *, timeout: float = COMMAND_TIMEOUT) -> Completed:
        """See `Machine.run`."""
        mark = new_mark()
        process = await _shell(stderr=asyncio.subprocess.PIPE)
        try:
            output, errors = await asyncio.wait_for(
                process.communicate(framed(script, mark)), timeout
            )
        except asyncio.TimeoutError:
            raise MachineError(
                f"{self.name}: a command did not end within {timeout:g} s: the machine may be "
                "overloaded"
            ) from None
        finally:
            await _end(process)
        status = process.returncode if process.returncode is not None else -1
        return Completed(status, after_mark(output, mark), errors.decode("utf-8", "replace"))

    @asynccontextmanager
    async def session(self, script: str) -> AsyncIterator[Session]:
        """See `Machine.session`."""
        mark = new_mark()
        process = await _shell(stderr=asyncio.subprocess.DEVNULL)
        try:
            assert process.stdin is not None  # noqa: S101 - both are pipes
            assert process.stdout is not None  # noqa: S101
            process.stdin.write(framed(script, mark, reads=True))
            session = StreamSession(self.name, process.stdout, process.stdin)
            await session.begin(mark)
            yield session
        finally:
            await _end(process)

    @asynccontextmanager
    async def pipe(self, script: str, *, apart: bool = False) -> AsyncIterator[Pipe]:  # noqa: ARG002
        """See `Machine.pipe`."""
        mark = new_mark()
        process = await _shell(stderr=asyncio.subprocess.DEVNULL)
        try:
            assert process.stdin is not None  # noqa: S101 - both are pipes
            assert process.stdout is not None  # noqa: S101
            pipe = StreamPipe(process.stdout, process.stdin)
            await begin(pipe, script, mark)
            yield pipe
        finally:
            await _end(process)

    async def put(self, local: Path, remote: str, progress: Progress | None = None) -> None:
        """See `Machine.put`."""
        await self._copy(local, Path(remote), progress)

    async def get(self, remote: str, local: Path, progress: Progress | None = None) -> None:
        """See `Machine.get`."""
        await self._copy(Path(remote), local, progress)

    async def close(self) -> None:
        """Nothing is held."""

    async def _copy(self, source: Path, target: Path, progress: Progress | None) -> None:
        try:
            await asyncio.to_thread(shutil.copyfile, source, target)
        except OSError as error:
            raise MachineError(f"{self.name}: cannot copy {source} to {target}: {error}") from error
        if progress is not None:
            size = target.stat().st_size
            progress(size, size)


async def _shell(stderr: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "sh",
        "-s",
        cwd=Path.home(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        limit=_LONGEST_LINE,
        start_new_session=True,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
