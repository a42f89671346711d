"""Machines for tests: this one, and this one again over a real sshd."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncssh

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.machines.local import LocalMachine
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.runtime import MachineSettings
from overbrainer_airflow.machines.ssh import SSHMachine

T = TypeVar("T")

#: Runs a test's coroutine with a machine that is closed afterwards.
OnMachine = Callable[[Callable[[Machine], Awaitable[T]]], T]


def over_ssh(server: LoopbackSSHD, settings: MachineSettings | None = None) -> SSHMachine:
    """Return the machine behind ``server``, its host key checked."""
    known_hosts = f"[127.0.0.1]:{server.port} {server.host_key}".encode()

    async def connect() -> asyncssh.SSHClientConnection:
        return await asyncssh.connect(
            "127.0.0.1",
            server.port,
            client_keys=[str(server.folder / "user_key")],
            known_hosts=known_hosts,
            config=None,
        )

    return SSHMachine("test machine", connect, settings or MachineSettings())


def use(machine: Machine, work: Callable[[Machine], Awaitable[T]]) -> T:
    """Run ``work`` with ``machine`` and close it."""

    async def run() -> T:
        try:
            return await work(machine)
        finally:
            await machine.close()

    return asyncio.run(run())


def make_machine(kind: str, server: LoopbackSSHD) -> Machine:
    """Return a machine by the name of its kind, ``local`` or ``ssh``."""
    return LocalMachine() if kind == "local" else over_ssh(server)
