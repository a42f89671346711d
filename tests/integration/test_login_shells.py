"""Accounts that are not as one would like: their shells, banners, homes and clocks."""

import os
import shutil
from pathlib import Path

import pytest

from demo.sshd import loopback_sshd
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.transfer import send_tree
from tests.integration.test_detached_job import RESULT, end_of, start
from tests.support.machines import over_ssh, use


async def whole_life(machine: Machine, directory: Path) -> None:
    """Start a job twice, follow it to its end; start another one and cancel it."""
    assert await start(machine, directory, f"echo one; echo x >{RESULT}") == "started"
    status, log = await end_of(machine, directory)
    assert (status.state, status.exit_code, log) == ("exited", 0, ["one"])
    assert await start(machine, directory, "exit 1") == "finished"
    (directory / RESULT).unlink()
    assert await start(machine, directory, "trap '' HUP; sleep 60") == "started"
    await detached_job.cancel(machine, str(directory))
    assert (await detached_job.status(machine, str(directory))).state == "cancelled"


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_a_job_lives_under_any_posix_shell(
    tmp_path: Path, job_dir: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    program = shutil.which(shell)
    assert program is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(program)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    with loopback_sshd(tmp_path / "own", env={"PATH": path}) as server:
        use(over_ssh(server), lambda machine: whole_life(machine, job_dir))


@pytest.mark.parametrize(
    "login",
    [
        'echo "Welcome, 100 % of the disk is free"; echo to-stderr >&2; exec sh -c "$COMMAND"',
        'set -m; eval "$COMMAND"',
        'cat /dev/null; printf "no newline"; eval "$COMMAND"',
        'PATH=/usr/bin:/bin; export PATH; umask 077; eval "$COMMAND"',
        'LC_ALL=de_DE.UTF-8; export LC_ALL; eval "$COMMAND"',
    ],
    ids=["banner", "job control", "no newline", "umask", "locale"],
)
def test_a_login_that_does_something_of_its_own_does_no_harm(
    tmp_path: Path, job_dir: Path, login: str
) -> None:
    # What sshd runs in place of a command stands for the account's own start-up files.
    script = tmp_path / "login.sh"
    script.write_text(f"COMMAND=$SSH_ORIGINAL_COMMAND; export COMMAND\n{login}\n")
    options = {"ForceCommand": f"/bin/bash {script}"}
    with loopback_sshd(tmp_path / "own", options) as server:
        use(over_ssh(server), lambda machine: whole_life(machine, job_dir))


def test_a_clock_that_is_a_day_off_changes_nothing(tmp_path: Path, job_dir: Path) -> None:
    (tmp_path / "bin").mkdir()
    date = tmp_path / "bin" / "date"
    date.write_text(f'#!/bin/sh\nexec {shutil.which("date")} -d yesterday "$@"\n')
    date.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    with loopback_sshd(tmp_path / "own", env={"PATH": path}) as server:
        use(over_ssh(server), lambda machine: whole_life(machine, job_dir))


def test_a_home_on_another_file_system_changes_nothing(tmp_path: Path, job_dir: Path) -> None:
    home = Path("/dev/shm") / f"overbrainer-{os.getpid()}"
    home.mkdir()
    try:
        assert home.stat().st_dev != job_dir.stat().st_dev
        with loopback_sshd(tmp_path / "own", env={"HOME": str(home)}) as server:
            use(over_ssh(server), lambda machine: whole_life(machine, job_dir))
    finally:
        shutil.rmtree(home)


def test_files_with_any_name_arrive_as_they_are(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "my target $HOME 'q'"
    names = ["a b", "q'uo\"te", "$HOME", "-dash", "ünï", "new\nline", "deep/er/file", "empty"]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("" if name == "empty" else name)

    async def work(machine: Machine) -> int:
        first = await send_tree(machine, source, str(target), names, owner="test")
        assert (await send_tree(machine, source, str(target), names, owner="test")).moved == 0
        return first.moved

    with loopback_sshd(tmp_path / "own") as server:
        assert use(over_ssh(server), work) == sum(len(n.encode()) for n in names if n != "empty")
    arrived = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert arrived == {name: "" if name == "empty" else name for name in names}
