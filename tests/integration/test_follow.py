"""The log of a job: every byte, in order, once, whatever happens to who follows it."""

import asyncio
import shlex
from contextlib import aclosing
from pathlib import Path

import pytest

from demo.sshd import LoopbackSSHD, loopback_sshd
from overbrainer_airflow.errors import JobError
from overbrainer_airflow.machines.follow import Pace, follow
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.ssh import SSHMachine
from overbrainer_airflow.machines.watch import watch
from tests.integration.conftest import Use
from tests.integration.test_detached_job import end_of, start
from tests.support.machines import over_ssh, use

FAST = Pace(longest=1, reconnect=0.02)


def python(program: str) -> str:
    """Return shell that runs a Python program."""
    return f"python3 -c {shlex.quote(program)}"


async def run_and_read(machine: Machine, job_dir: Path, script: str) -> list[str]:
    await start(machine, job_dir, script)
    return (await end_of(machine, job_dir))[1]


def test_a_burst_at_the_end_arrives_whole(on_machine: Use, job_dir: Path) -> None:
    script = python("print('\\n'.join(f'line {n} ' + 'x' * 50 for n in range(90000)))")
    log = on_machine(lambda machine: run_and_read(machine, job_dir, script))
    assert len(log) == 90000
    assert all(line.startswith(f"line {number} ") for number, line in enumerate(log))


def test_a_character_that_is_cut_between_two_looks_arrives_whole(
    on_machine: Use, job_dir: Path
) -> None:
    # 64 KiB is what one look brings; the bars straddle every such border.
    script = python("import sys; sys.stdout.buffer.write(('a' + '█' * 100 + '\\n').encode() * 900)")
    log = on_machine(lambda machine: run_and_read(machine, job_dir, script))
    assert log == ["a" + "█" * 100] * 900


def test_bytes_that_are_no_text_are_shown_as_such(on_machine: Use, job_dir: Path) -> None:
    script = "printf 'one \\377 \\200\\ntwo\\n'"
    log = on_machine(lambda machine: run_and_read(machine, job_dir, script))
    assert log == ["one \ufffd \ufffd", "two"]


def test_a_bar_is_shown_as_it_was_drawn_last(on_machine: Use, job_dir: Path) -> None:
    script = "printf '10%%|#\\r50%%|##\\r100%%|####\\r\\nafter\\r\\n'"
    log = on_machine(lambda machine: run_and_read(machine, job_dir, script))
    assert log == ["100%|####", "after"]


def test_a_last_line_without_an_end_is_shown(on_machine: Use, job_dir: Path) -> None:
    assert on_machine(lambda machine: run_and_read(machine, job_dir, "printf last")) == ["last"]


def test_a_large_log_arrives_in_little_memory(over_ssh_only: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> int:
        await start(
            machine, job_dir, "yes 0123456789012345678901234567890123456789 | head -n 5000000"
        )
        lines = 0
        async with aclosing(follow(machine, str(job_dir), pace=FAST)) as looks:
            async for look in looks:
                assert len(look.lines) <= 2000
                lines += len(look.lines)
        return lines

    assert over_ssh_only(work) == 5_000_000


def test_a_watcher_that_is_restarted_goes_on_where_it_was(on_machine: Use, job_dir: Path) -> None:
    async def begin(machine: Machine) -> list[str]:
        await start(
            machine,
            job_dir,
            "printf 'one\\ntwo\\nhal'; until [ -e go ]; do sleep 0.05; done; echo f",
        )
        async with aclosing(follow(machine, str(job_dir), "me", FAST)) as looks:
            shown: list[str] = []
            async for look in looks:
                if shown and not look.lines:
                    break  # here the watcher is gone, after what it showed was noted
                shown += look.lines
        return shown

    async def go_on(machine: Machine) -> list[str]:
        (job_dir / "go").touch()
        async with aclosing(follow(machine, str(job_dir), "me", FAST)) as looks:
            return [line async for look in looks for line in look.lines]

    assert on_machine(begin) == ["one", "two"]
    assert on_machine(go_on) == ["half"]


def test_another_watcher_is_shown_the_whole_log(on_machine: Use, job_dir: Path) -> None:
    async def read(machine: Machine, watcher: str) -> list[str]:
        async with aclosing(follow(machine, str(job_dir), watcher, FAST)) as looks:
            return [line async for look in looks for line in look.lines]

    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "echo one")
        assert await read(machine, "first-try") == ["one"]
        assert await read(machine, "second-try") == ["one"]
        assert await read(machine, "second-try") == []

    on_machine(work)


def test_a_server_that_is_restarted_costs_nothing(tmp_path: Path, job_dir: Path) -> None:
    async def work(machine: Machine) -> list[str]:
        await start(
            machine,
            job_dir,
            "for n in 1 2 3; do echo $n; until [ -e go$n ]; do sleep 0.05; done; done",
        )
        shown: list[str] = []
        async with aclosing(follow(machine, str(job_dir), "me", FAST)) as looks:
            async for look in looks:
                for line in look.lines:
                    shown.append(line)
                    server.stop()
                    (job_dir / f"go{line}").touch()
                    server.start()
        return shown

    with loopback_sshd(tmp_path / "own") as server:
        assert use(over_ssh(server), work) == ["1", "2", "3"]


def test_a_server_that_is_down_for_a_minute_costs_nothing(tmp_path: Path, job_dir: Path) -> None:
    async def work(machine: Machine) -> list[str]:
        await start(machine, job_dir, "echo 1; until [ -e go ]; do sleep 0.1; done; echo 2")
        shown: list[str] = []
        outage = None
        async with aclosing(follow(machine, str(job_dir), "me")) as looks:
            async for look in looks:
                shown += look.lines
                if look.lines == ["1"]:
                    server.stop()
                    (job_dir / "go").touch()
                    outage = asyncio.get_running_loop().call_later(60, server.start)
        assert outage is not None
        return shown

    with loopback_sshd(tmp_path / "own") as server:
        assert use(over_ssh(server), work) == ["1", "2"]


def test_a_machine_that_stays_away_is_given_up_and_its_job_is_not(
    tmp_path: Path, job_dir: Path
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "echo begun; sleep 60")
        impatient = Pace(longest=1, reconnect=0.02, unreachable=0.5)
        async with aclosing(follow(machine, str(job_dir), "me", impatient)) as looks:
            async for look in looks:
                if look.lines:
                    server.stop()

    async def end(machine: Machine) -> None:
        from overbrainer_airflow.machines import detached_job

        assert (await detached_job.status(machine, str(job_dir))).state == "running"
        await detached_job.cancel(machine, str(job_dir))

    with loopback_sshd(tmp_path / "own") as server:
        with pytest.raises(JobError, match="may still run there: a retry of this task finds it"):
            use(over_ssh(server), work)
        server.start()
        use(over_ssh(server), end)


def test_twenty_jobs_are_followed_through_a_server_that_takes_one_login_at_a_time(
    tmp_path: Path,
) -> None:
    async def one(server: LoopbackSSHD, number: int) -> list[str]:
        machine = SSHMachine("crowded", over_ssh(server).connect)
        directory = tmp_path / f"job{number}"
        directory.mkdir()
        shown = []
        try:
            await start(machine, directory, f"echo {number}")
            async for look in follow(machine, str(directory), "me", FAST):
                shown += look.lines
        finally:
            await machine.close()
        return shown

    async def work(server: LoopbackSSHD) -> list[list[str]]:
        return await asyncio.gather(*(one(server, number) for number in range(20)))

    with loopback_sshd(tmp_path / "own", {"MaxStartups": "1:100:1"}) as server:
        assert asyncio.run(work(server)) == [[str(number)] for number in range(20)]


def test_a_job_is_cancelled_at_its_time_limit(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "echo 'export: merges'; sleep 60")
        end = await watch(
            machine, str(job_dir), "me", lambda _: None, mark="export: ", time_limit=1, pace=FAST
        )
        assert (end.how, end.exit_code, end.marked) == ("timeout", None, ["export: merges"])

    on_machine(work)
