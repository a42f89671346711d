"""A real OpenSSH server on loopback, with keys of its own, for as long as it is needed."""

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from demo.toolchain import need_programs

_START_TIMEOUT = 10.0


@dataclass
class LoopbackSSHD:
    """An sshd that logs in the current user with one key.

    Attributes:
        folder: its keys, configuration and log.
        port: on 127.0.0.1.
        options: further lines of sshd_config, such as ``{"MaxStartups": "1:100:1"}``.
        env: what its sessions find in their environment, such as PATH.
    """

    folder: Path
    port: int
    options: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def host_key(self) -> str:
        """The server's public key, as a connection's ``host_key``."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def connection(self, settings: Mapping[str, object] | None = None) -> str:
        """Return an Airflow connection to it, as JSON, with the machine's settings."""
        return json.dumps(
            {
                "conn_type": "ssh",
                "host": "127.0.0.1",
                "port": self.port,
                "login": getpass.getuser(),
                "extra": {
                    "key_file": str(self.folder / "user_key"),
                    "host_key": self.host_key,
                    "no_host_key_check": "false",
                    "overbrainer": dict(settings or {}),
                },
            }
        )

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert sshd is not None, "need_programs has seen it"  # noqa: S101
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        config = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(self.folder / "host_key"),
            "AuthorizedKeysFile": str(self.folder / "user_key.pub"),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "Subsystem": "sftp internal-sftp",
            **self.options,
        }
        lines = [f"{name} {value}" for name, value in config.items()]
        if self.env:
            # One line: sshd takes the first SetEnv that it reads and no other.
            lines.append("SetEnv " + " ".join(f'"{n}={v}"' for n, v in self.env.items()))
        path = self.folder / "sshd_config"
        path.write_text("\n".join(lines) + "\n")
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(path)], stdout=log, stderr=log, start_new_session=True
            )
        _wait_for_port(self.port, self._process)

    def stop(self) -> None:
        """End the server and every session of it."""
        if self._process is None:
            return
        for pid in [self._process.pid, *_descendants(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


@contextlib.contextmanager
def loopback_sshd(
    folder: Path, options: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[LoopbackSSHD]:
    """Yield a running server whose files are in ``folder``; it is gone at the end."""
    need_programs("sshd")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host_key", "user_key"):
        if not (folder / name).exists():
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                check=True,
            )
    server = LoopbackSSHD(folder, free_port(), options or {}, env or {})
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``; a job that left its session is not among them."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, check=True, text=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found = [pid]
    for parent in found:
        found += [child for child, of in pairs if of == parent]
    return found[1:]


def free_port() -> int:
    """Return a port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"sshd does not listen on port {port}: see its log beside sshd_config")
