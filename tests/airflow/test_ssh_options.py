"""What asyncssh is told: what the SSH provider tells it, and which cipher comes first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from airflow.providers.ssh.hooks.ssh import SSHHookAsync
from airflow.sdk import Connection

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.hooks.ssh_options import CIPHERS, ssh_options
from tests.airflow.conftest import MakeConnection

HOST_KEY = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
KEY = asyncssh.generate_private_key("ssh-ed25519")
PLAIN_KEY = KEY.export_private_key("openssh").decode()
LOCKED_KEY = KEY.export_private_key("openssh", "secret").decode()

EXTRAS: list[dict[str, Any]] = [
    {},
    {"key_file": "/keys/id"},
    {"key_file": "/keys/id", "passphrase": "secret"},
    {"key_file": "/keys/id", "private_key_passphrase": "secret"},
    {"private_key": PLAIN_KEY},
    {"private_key": LOCKED_KEY, "private_key_passphrase": "secret"},
    {"private_key": PLAIN_KEY, "key_file": "/keys/id"},
    {"host_key": HOST_KEY, "no_host_key_check": "false"},
    {"host_key": HOST_KEY + " a comment"},
    {"host_key": HOST_KEY.split()[1]},
    {"known_hosts": "/keys/known_hosts"},
    {"overbrainer": {"workdir": "/data"}, "compress": True},
]


async def options_of_provider(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told: dict[str, Any] = {}

    async def connect(**options: Any) -> None:
        told.update(options)

    monkeypatch.setattr(asyncssh, "connect", connect)
    await SSHHookAsync("gpu").get_conn()  # type: ignore[no-untyped-call]
    # Ours asks for signs of life by itself, on every connection.
    told.pop("keepalive_interval", None)
    return told


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: "+".join(extra) or "nothing")
@pytest.mark.parametrize("login", [{}, {"login": "me", "password": "p", "port": 2222}])
def test_asyncssh_is_told_what_the_provider_tells_it(
    extra: dict[str, Any], login: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {"conn_type": "ssh", "host": "gpu.example", "extra": extra, **login}
    monkeypatch.setenv("AIRFLOW_CONN_GPU", json.dumps(values))
    ours = ssh_options(Connection.get("gpu"))
    assert ours.pop("encryption_algs") == CIPHERS
    assert ours == asyncio.run(options_of_provider(monkeypatch))


def test_a_key_that_cannot_be_read_names_the_connection() -> None:
    extra = json.dumps({"private_key": "not a key"})
    with pytest.raises(InvalidInputError, match="connection gpu: its private_key cannot be read"):
        ssh_options(Connection(conn_id="gpu", conn_type="ssh", host="gpu.example", extra=extra))


def test_a_home_directory_in_known_hosts_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    extra = json.dumps({"known_hosts": "~/hosts"})
    options = ssh_options(Connection(conn_id="gpu", conn_type="ssh", host="h", extra=extra))
    assert options["known_hosts"] == str(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("ciphers", "expected"),
    [
        ("chacha20-poly1305@openssh.com,aes128-gcm@openssh.com", "aes128-gcm@openssh.com"),
        ("aes256-gcm@openssh.com,aes256-ctr", "aes256-gcm@openssh.com"),
        ("aes256-ctr", "aes256-ctr"),
    ],
)
def test_aes_gcm_is_chosen_where_the_server_has_it(
    ciphers: str, expected: str, sshd: LoopbackSSHD, connect: MakeConnection
) -> None:
    connect()
    assert asyncio.run(cipher_of_connection(sshd, ciphers)) == expected


async def cipher_of_connection(sshd: LoopbackSSHD, ciphers: str) -> str:
    before = sshd.options
    sshd.stop()
    sshd.options = {**before, "Ciphers": ciphers}
    sshd.start()
    try:
        async with MachineHook("gpu").machine() as machine:
            await machine.run("true")
            connection = machine._connection  # type: ignore[attr-defined]
            return str(connection.get_extra_info("send_cipher"))
    finally:
        sshd.stop()
        sshd.options = before
        sshd.start()
