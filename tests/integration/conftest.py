"""Each test of a machine runs on this one and over a real sshd."""

import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.machines.protocol import Machine
from tests.support.machines import make_machine, use

Use = Callable[[Callable[[Machine], Awaitable[Any]]], Any]


@pytest.fixture(params=["local", "ssh"])
def on_machine(request: pytest.FixtureRequest, sshd: LoopbackSSHD) -> Use:
    """Return a function that runs a coroutine function with a machine and closes it."""
    return lambda work: use(make_machine(request.param, sshd), work)


@pytest.fixture
def over_ssh_only(sshd: LoopbackSSHD) -> Use:
    """Return `on_machine` for the machine over SSH alone."""
    return lambda work: use(make_machine("ssh", sshd), work)


@pytest.fixture
def job_dir(tmp_path: Path) -> Iterator[Path]:
    """Return a job directory; whatever still runs in it at the end is killed and is a failure."""
    path = tmp_path / "my run (1) 'q' $HOME" / "exports" / "job"
    path.mkdir(parents=True)
    yield path
    left = left_running_in(path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def left_running_in(path: Path) -> list[int]:
    """Return the processes of a job directory that do not end of themselves."""
    deadline = time.monotonic() + 3
    while (left := processes_in(path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def processes_in(path: Path) -> list[int]:
    """Return the processes whose working directory is ``path``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            cwd = entry.readlink()
        except OSError:
            continue
        if cwd == path:
            found.append(int(entry.parent.name))
    return found


def command_lines() -> str:
    """Return the argument lists of every process."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False)
    return listed.stdout
