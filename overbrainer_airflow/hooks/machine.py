"""A machine from an Airflow connection of type ``ssh``, or this worker."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.sdk import BaseHook

from overbrainer_airflow.errors import InvalidInputError, MachineError
from overbrainer_airflow.machines.local import LocalMachine
from overbrainer_airflow.machines.runtime import settings_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import asyncssh
    from airflow.sdk import Connection

    from overbrainer_airflow.machines.protocol import Machine

EXTRA_KEY = "overbrainer"


class MachineHook(BaseHook):
    """Gives the machine behind an ``ssh`` connection; its settings are in the extra.

    Args:
        ssh_conn_id: the connection, or None for this worker, whose settings are
            ``[overbrainer] local_machine``.
    """

    conn_name_attr = "ssh_conn_id"

    def __init__(self, ssh_conn_id: str | None = None) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id or None

    @asynccontextmanager
    async def machine(self) -> AsyncIterator[Machine]:
        """Yield the machine; whatever was opened to it is closed at the end.

        Raises:
            InvalidInputError: there is no such connection, or its settings cannot be used.
            MachineError: the connection does not check the machine's host key.
        """
        machine = await self._machine()
        try:
            yield machine
        finally:
            await machine.close()

    async def _machine(self) -> Machine:
        if self.ssh_conn_id is None:
            return LocalMachine(settings_from(_local_settings(), "[overbrainer] local_machine"))
        # A DAG file that names an operator is spared what only a task needs.
        from overbrainer_airflow.machines.ssh import SSHMachine  # noqa: PLC0415

        connection = await self._connection(self.ssh_conn_id)
        extra: dict[str, Any] = connection.extra_dejson
        settings = settings_from(extra.get(EXTRA_KEY), f"connection {self.ssh_conn_id}")
        _require_host_key_check(self.ssh_conn_id, extra)
        connect = partial(self._connect, self.ssh_conn_id)
        return SSHMachine(f"{self.ssh_conn_id} ({connection.host})", connect, settings)

    @staticmethod
    async def _connection(conn_id: str) -> Connection:
        try:
            connection = await get_async_connection(conn_id)
        except AirflowNotFoundException as error:
            raise InvalidInputError(
                f"there is no connection {conn_id}: create it with the type ssh, or give None for "
                "the worker itself"
            ) from error
        if connection.conn_type != "ssh":
            raise InvalidInputError(
                f"connection {conn_id} is of the type {connection.conn_type}: a machine needs one "
                "of the type ssh"
            )
        return connection

    @staticmethod
    async def _connect(conn_id: str) -> asyncssh.SSHClientConnection:
        import asyncssh  # noqa: PLC0415 - as above

        from overbrainer_airflow.hooks.ssh_options import ssh_options  # noqa: PLC0415 - as above

        # asyncssh tells of each channel it opens; a task's log is for the job's own lines.
        channels = logging.getLogger("asyncssh")
        if channels.level == logging.NOTSET:
            channels.setLevel(logging.WARNING)
        # Read at each connect: a secrets backend may have renewed the key since.
        connection = await get_async_connection(conn_id)
        return await asyncssh.connect(**ssh_options(connection))


def _local_settings() -> Any:
    text = conf.get("overbrainer", "local_machine", fallback="")
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise InvalidInputError(f"[overbrainer] local_machine is not JSON: {error}") from error


def _require_host_key_check(conn_id: str, extra: dict[str, Any]) -> None:
    """Refuse a connection that would talk to whoever answers.

    The last provider release for Python 3.10 skips the check unless it is told not to.
    """
    skipped = extra.get("no_host_key_check", extra.get("ignore_hostkey_verification"))
    if skipped is None and sys.version_info < (3, 11):
        skipped = True
    if str(skipped).lower() == "true":
        raise MachineError(
            f"connection {conn_id} does not check the machine's host key: put the key into its "
            "extra as host_key, and set no_host_key_check to false"
        )
