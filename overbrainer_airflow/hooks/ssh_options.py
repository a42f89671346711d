"""What asyncssh is told about an ``ssh`` connection: what the SSH provider tells it, and a cipher.

The provider's `SSHHookAsync` reads these settings and has no way to add one. A test compares what
both make of the same connections.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from overbrainer_airflow.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Connection

# Processors have instructions for AES; asyncssh asks for ChaCha20 first, at half the speed. What
# else it knows stays on offer, for servers that have neither.
CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"

_DEFAULT_PORT = 22


def ssh_options(connection: Connection) -> dict[str, Any]:
    """Return the arguments of `asyncssh.connect` for a connection of type ``ssh``.

    Raises:
        InvalidInputError: its private key cannot be read.
    """
    extra: dict[str, Any] = connection.extra_dejson
    passphrase = extra.get("passphrase") or extra.get("private_key_passphrase") or ""
    options: dict[str, Any] = {
        "host": connection.host,
        "port": connection.port or _DEFAULT_PORT,
        "username": connection.login,
        "password": connection.password,
        "encryption_algs": CIPHERS,
    }
    if extra.get("key_file"):
        options["client_keys"] = extra["key_file"]
    if extra.get("private_key"):
        options["client_keys"] = [
            _private_key(connection.conn_id, extra["private_key"], passphrase)
        ]
    if passphrase:
        options["passphrase"] = passphrase
    known_hosts = _known_hosts(str(connection.host), extra)
    if known_hosts is not None:
        options["known_hosts"] = known_hosts
    return options


def _private_key(conn_id: str, text: str, passphrase: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(text, passphrase or None)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise InvalidInputError(
            f"connection {conn_id}: its private_key cannot be read ({error}): paste the whole key, "
            "and its passphrase as private_key_passphrase if it has one"
        ) from error


def _known_hosts(host: str, extra: dict[str, Any]) -> bytes | str | None:
    """Return the host keys to trust; None leaves it to the account's own known_hosts."""
    host_key = str(extra.get("host_key") or "").split()
    if host_key:
        # A key without its type is RSA, as the provider has it.
        return (
            f"{host} {' '.join(host_key[:2] if host_key[1:] else ['ssh-rsa', *host_key])}".encode()
        )
    if extra.get("known_hosts"):
        return str(Path(extra["known_hosts"]).expanduser())
    return None
