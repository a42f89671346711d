"""A machine reached over SSH, through one connection that is opened when it is first needed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import asyncssh

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.decoys import spare_decoys
from overbrainer_airflow.machines.pipes import PACKET, WINDOW, SSHPipe, begin
from overbrainer_airflow.machines.protocol import (
    COMMAND_TIMEOUT,
    Completed,
    Pipe,
    Progress,
    Session,
)
from overbrainer_airflow.machines.runtime import MachineSettings
from overbrainer_airflow.machines.session import StreamSession
from overbrainer_airflow.machines.shell import SHELL_COMMAND, after_mark, framed, new_mark

CONNECT_TIMEOUT = 30.0

# A connection that passes nothing is found dead after these seconds times those questions, and is
# kept open by whatever stands between.
_KEEPALIVE = 15
_UNANSWERED = 4

_CONNECT_TRIES = 7
_CONNECT_WAIT = 0.1

Connect = Callable[[], Awaitable[asyncssh.SSHClientConnection]]


@dataclass
class SSHMachine:
    """A machine behind an SSH server.

    Attributes:
        name: what messages call it, such as the connection's id and host.
        connect: opens a connection whose host key has been checked.
        settings: how the machine is set up.
    """

    name: str
    connect: Connect
    settings: MachineSettings = field(default_factory=MachineSettings)
    _connection: asyncssh.SSHClientConnection | None = field(default=None, init=False, repr=False)

    async def run(self, script: str, *, timeout: float = COMMAND_TIMEOUT) -> Completed:
        """See `Machine.run`."""
        connection = await self._connected()
        mark = new_mark()
        try:
            done = await asyncio.wait_for(
                connection.run(SHELL_COMMAND, input=framed(script, mark), encoding=None),
                timeout,
            )
        except asyncio.TimeoutError:
            await self.close()
            raise MachineError(
                f"machine {self.name}: a command did not end within {timeout:g} s: the machine "
                "may be overloaded or unreachable"
            ) from None
        except (asyncssh.Error, OSError) as error:
            await self.close()
            raise MachineError(f"machine {self.name}: the connection was lost: {error}") from error
        output, errors = _bytes(done.stdout), _bytes(done.stderr).decode("utf-8", "replace")
        if done.exit_status is None and done.exit_signal is None:
            await self.close()
            raise MachineError(f"machine {self.name}: the connection was lost during a command")
        status = 255 if done.exit_status is None else done.exit_status
        try:
            return Completed(status, after_mark(output, mark), errors)
        except MachineError as error:
            raise MachineError(f"machine {self.name}: {error} {errors.strip()[-200:]}") from None

    @asynccontextmanager
    async def session(self, script: str) -> AsyncIterator[Session]:
        """See `Machine.session`."""
        connection = await self._connected()
        mark = new_mark()
        try:
            process = await asyncio.wait_for(
                connection.create_process(SHELL_COMMAND, encoding=None, stderr=asyncssh.DEVNULL),
                CONNECT_TIMEOUT,
            )
        except (asyncssh.Error, OSError, asyncio.TimeoutError) as error:
            await self.close()
            raise MachineError(f"machine {self.name}: the connection was lost: {error}") from error
        try:
            process.stdin.write(framed(script, mark, reads=True))
            session = StreamSession(f"machine {self.name}", process.stdout, process.stdin)
            await session.begin(mark)
            yield session
        except MachineError:
            await self.close()
            raise
        except asyncssh.Error as error:
            await self.close()
            raise MachineError(f"machine {self.name}: the connection was lost: {error}") from error
        finally:
            process.close()

    @asynccontextmanager
    async def pipe(self, script: str, *, apart: bool = False) -> AsyncIterator[Pipe]:
        """See `Machine.pipe`."""
        connection = await (self._connect_again_and_again() if apart else self._connected())
        mark = new_mark()
        try:
            channel, pipe = await self._open_pipe(connection)
            try:
                await self._begin(pipe, script, mark)
                yield pipe
            finally:
                channel.abort()
        except asyncssh.ChannelOpenError as error:
            raise MachineError(
                f"machine {self.name}: its sshd opens no further session ({error}): raise its "
                "MaxSessions"
            ) from error
        except (asyncssh.Error, asyncio.TimeoutError) as error:
            raise MachineError(f"machine {self.name}: the connection was lost: {error}") from error
        finally:
            if apart:
                connection.abort()

    async def _begin(self, pipe: Pipe, script: str, mark: str) -> None:
        try:
            await begin(pipe, script, mark)
        except MachineError as error:
            raise MachineError(f"machine {self.name}: {error}") from error

    @staticmethod
    async def _open_pipe(
        connection: asyncssh.SSHClientConnection,
    ) -> tuple[asyncssh.SSHClientChannel[bytes], SSHPipe]:
        opening = connection.create_session(
            SSHPipe, SHELL_COMMAND, encoding=None, window=WINDOW, max_pktsize=PACKET
        )
        channel, session = await asyncio.wait_for(opening, CONNECT_TIMEOUT)
        return channel, cast("SSHPipe", session)

    async def put(self, local: Path, remote: str, progress: Progress | None = None) -> None:
        """See `Machine.put`."""
        async with self._sftp(f"send {local} to {remote}") as sftp:
            await sftp.put(local, remote, progress_handler=_handler(progress))

    async def get(self, remote: str, local: Path, progress: Progress | None = None) -> None:
        """See `Machine.get`."""
        async with self._sftp(f"fetch {remote} to {local}") as sftp:
            await sftp.get(remote, local, progress_handler=_handler(progress))

    @asynccontextmanager
    async def _sftp(self, what: str) -> AsyncIterator[asyncssh.SFTPClient]:
        connection = await self._connected()
        try:
            async with connection.start_sftp_client() as sftp:
                yield sftp
        except (asyncssh.Error, OSError) as error:
            raise MachineError(f"machine {self.name}: cannot {what}: {error}") from error

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            await connection.wait_closed()

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._connection = await self._connect_again_and_again()
        return self._connection

    async def _connect_again_and_again(self) -> asyncssh.SSHClientConnection:
        """Connect; a server that hangs up may have too many logins at once and is asked again."""
        for attempt in range(1, _CONNECT_TRIES + 1):
            try:
                return await asyncio.wait_for(self._kept_alive(), CONNECT_TIMEOUT)
            except (asyncssh.ConnectionLost, ConnectionResetError) as error:
                if attempt == _CONNECT_TRIES:
                    raise self._unreachable(error) from error
                wait = _CONNECT_WAIT * 2**attempt
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            except (asyncssh.Error, OSError, asyncio.TimeoutError) as error:
                raise self._unreachable(error) from error
        raise AssertionError("the last try returns or raises")

    async def _kept_alive(self) -> asyncssh.SSHClientConnection:
        connection = await self.connect()
        connection.set_keepalive(_KEEPALIVE, _UNANSWERED)
        spare_decoys(connection)
        return connection

    def _unreachable(self, error: Exception) -> MachineError:
        match error:
            case asyncssh.HostKeyNotVerifiable():
                why = (
                    f"its host key is not the one that is known, or none is known ({error}): put "
                    "the key that the machine's owner confirms into the connection's extra as "
                    "host_key, such as 'ssh-ed25519 AAAA...'"
                )
            case asyncssh.PermissionDenied():
                why = (
                    f"it refuses the login ({error}): check the connection's login, key_file and "
                    "private_key"
                )
            case asyncio.TimeoutError():
                why = (
                    f"it does not answer within {CONNECT_TIMEOUT:g} s: check its address and that "
                    "it is on"
                )
            case asyncssh.ConnectionLost() | ConnectionResetError():
                why = (
                    f"it cannot be reached, it hangs up before the login ({error}): check its "
                    "sshd's log, many logins at once need a larger MaxStartups"
                )
            case _:
                why = f"it cannot be reached ({error}): check the connection's host and port"
        return MachineError(f"machine {self.name}: {why}")


def _handler(progress: Progress | None) -> Callable[[bytes, bytes, int, int], None] | None:
    if progress is None:
        return None
    return lambda _source, _target, done, total: progress(done, total)


def _bytes(output: object) -> bytes:
    return output if isinstance(output, bytes) else b""
