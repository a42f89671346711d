"""Jobs that go on by themselves, on a real machine."""

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.detached_job import Outcome, Status
from overbrainer_airflow.machines.follow import follow
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.runtime import Launch
from tests.integration.conftest import Use, command_lines, left_running_in

RESULT = "result"


async def start(
    machine: Machine, directory: Path, script: str, inputs: str = "same", **env: str
) -> Outcome:
    return await detached_job.start(
        machine,
        str(directory),
        Launch(f"sh -c {shlex.quote(script)}", env),
        inputs=inputs,
        result=RESULT,
    )


async def end_of(machine: Machine, directory: Path) -> tuple[Status, list[str]]:
    """Return how a job ended, and its log."""
    log = []
    async for look in follow(machine, str(directory)):
        log += look.lines
    return look.status, log


async def until(condition: object, what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def leader(directory: Path) -> int:
    return int((directory / "job.pid").read_text())


def test_a_job_leaves_its_exit_code_and_its_log(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        assert await start(machine, job_dir, "echo one; echo two >&2; exit 7") == "started"
        look, log = await end_of(machine, job_dir)
        assert (look.state, look.exit_code) == ("exited", 7)
        assert log == ["one", "two"]

    on_machine(work)


def test_a_job_outlives_the_connection_that_started_it(on_machine: Use, job_dir: Path) -> None:
    async def begin(machine: Machine) -> None:
        await start(machine, job_dir, "while [ ! -e go ]; do sleep 0.05; done; echo late")

    async def end(machine: Machine) -> list[str]:
        assert (await detached_job.status(machine, str(job_dir))).state == "running"
        (job_dir / "go").touch()
        return (await end_of(machine, job_dir))[1]

    on_machine(begin)
    assert on_machine(end) == ["late"]


def test_a_job_leads_a_session_of_its_own(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "sleep 60")
        pid = leader(job_dir)
        assert os.getsid(pid) == os.getpgid(pid) == pid
        await detached_job.cancel(machine, str(job_dir))

    on_machine(work)


def test_starting_twice_gives_one_job(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        assert await start(machine, job_dir, "echo x >>runs; sleep 60") == "started"
        assert await start(machine, job_dir, "echo x >>runs; sleep 60") == "running"
        await until(lambda: (job_dir / "runs").exists(), "the job begins")
        assert (job_dir / "runs").read_text() == "x\n"
        await detached_job.cancel(machine, str(job_dir))

    on_machine(work)


def test_ten_starts_at_the_same_moment_give_one_job(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        starts = [start(machine, job_dir, "echo x >>runs; sleep 60") for _ in range(10)]
        outcomes = await asyncio.gather(*starts)
        assert sorted(outcomes) == ["running"] * 9 + ["started"]
        await until(lambda: (job_dir / "runs").exists(), "the job begins")
        assert (job_dir / "runs").read_text() == "x\n"
        await detached_job.cancel(machine, str(job_dir))

    on_machine(work)


def test_a_finished_job_with_its_result_is_not_started_again(
    on_machine: Use, job_dir: Path
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, f"echo x >{RESULT}")
        await end_of(machine, job_dir)
        assert await start(machine, job_dir, "exit 1") == "finished"

    on_machine(work)


def test_a_finished_job_whose_result_is_gone_is_started_again(
    on_machine: Use, job_dir: Path
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, f"echo x >{RESULT}")
        await end_of(machine, job_dir)
        (job_dir / RESULT).unlink()
        assert await start(machine, job_dir, f"echo again; echo x >{RESULT}") == "started"
        assert (await end_of(machine, job_dir))[1] == ["again"]

    on_machine(work)


def test_a_finished_job_made_of_other_files_is_started_again(
    on_machine: Use, job_dir: Path
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, f"echo x >{RESULT}", inputs="old")
        await end_of(machine, job_dir)
        assert await start(machine, job_dir, "exit 0", inputs="new") == "started"
        await end_of(machine, job_dir)
        assert (await detached_job.status(machine, str(job_dir))).inputs == "new"

    on_machine(work)


def test_a_running_job_made_of_other_files_is_left_alone(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "sleep 60", inputs="old")
        assert await start(machine, job_dir, "echo never", inputs="new") == "different"
        assert (await detached_job.status(machine, str(job_dir))).state == "running"
        await detached_job.cancel(machine, str(job_dir))

    on_machine(work)


def test_a_failed_job_is_started_again_and_its_log_is_kept(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "echo first; exit 1")
        await end_of(machine, job_dir)
        assert await start(machine, job_dir, "echo second") == "started"
        assert (await end_of(machine, job_dir))[1] == ["second"]
        assert (job_dir / "attempts/1/job.log").read_text() == "first\n"
        assert (job_dir / "attempts/1/exit_code").read_text() == "1\n"

    on_machine(work)


def test_a_job_whose_group_was_killed_is_lost(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "echo before; sleep 60")
        await until(lambda: (job_dir / "job.log").read_text() == "before\n", "the job prints")
        os.killpg(leader(job_dir), signal.SIGKILL)
        look, log = await end_of(machine, job_dir)
        assert (look.state, look.exit_code, log) == ("lost", None, ["before"])

    on_machine(work)


def test_a_job_of_an_earlier_boot_is_lost(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "sleep 60")
        boot = job_dir / "job.boot"
        now = boot.read_text()
        boot.write_text(f"another-boot {now.split()[1]}\n")
        assert (await detached_job.status(machine, str(job_dir))).state == "lost"
        boot.write_text(now)
        await detached_job.cancel(machine, str(job_dir))

    on_machine(work)


def test_a_process_that_took_over_the_number_is_not_the_job(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "exit 0")
        await end_of(machine, job_dir)
        (job_dir / "exit_code").unlink()
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
            (job_dir / "job.pid").write_text(f"{stranger.pid}\n")
            assert (await detached_job.status(machine, str(job_dir))).state == "lost"
            await detached_job.cancel(machine, str(job_dir))
            assert stranger.poll() is None
            stranger.kill()

    on_machine(work)


@pytest.mark.parametrize("pid", ["0", "1", "", "-1", "12x"])
def test_a_process_number_that_is_no_jobs_is_refused(
    on_machine: Use, job_dir: Path, pid: str
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "exit 0")
        await end_of(machine, job_dir)
        (job_dir / "exit_code").unlink()
        (job_dir / "job.pid").write_text(f"{pid}\n")
        assert (await detached_job.status(machine, str(job_dir))).state == "lost"

    on_machine(work)


def test_a_job_directory_that_is_gone_is_lost(on_machine: Use, tmp_path: Path) -> None:
    async def work(machine: Machine) -> None:
        status, log = await end_of(machine, tmp_path / "gone")
        assert (status.state, log) == ("lost", [])

    on_machine(work)


def test_a_job_directory_that_goes_while_it_is_followed_is_lost(
    on_machine: Use, job_dir: Path
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "echo before; sleep 60")
        pid = leader(job_dir)
        async with aclosing(follow(machine, str(job_dir))) as looks:
            async for look in looks:
                if look.lines == ["before"]:
                    shutil.rmtree(job_dir)
        assert look.status.state == "lost"
        os.killpg(pid, signal.SIGKILL)

    on_machine(work)


def test_cancelling_ends_every_process_of_the_job(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "sleep 60 & sleep 60 & mkdir scratch; wait")
        await until(lambda: (job_dir / "scratch").exists(), "the job begins")
        await detached_job.cancel(machine, str(job_dir))
        assert left_running_in(job_dir) == []
        assert (await detached_job.status(machine, str(job_dir))).state == "cancelled"
        assert not (job_dir / "scratch").exists()

    on_machine(work)


def test_a_job_that_ignores_the_request_to_stop_is_killed(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "trap '' TERM; sleep 60 & touch begun; wait; sleep 60")
        await until(lambda: (job_dir / "begun").exists(), "the job begins")
        await detached_job.cancel(machine, str(job_dir))
        assert left_running_in(job_dir) == []

    on_machine(work)


def test_a_cancelled_job_is_started_again(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "sleep 60")
        await detached_job.cancel(machine, str(job_dir))
        assert await start(machine, job_dir, "echo again") == "started"
        assert (await end_of(machine, job_dir))[1] == ["again"]

    on_machine(work)


def test_a_start_waits_until_a_job_that_is_being_cancelled_is_gone(
    on_machine: Use, job_dir: Path
) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "trap 'sleep 1; exit 9' TERM; touch begun; sleep 60 & wait")
        await until((job_dir / "begun").exists, "the job begins")
        cancelling = asyncio.create_task(detached_job.cancel(machine, str(job_dir)))
        await until((job_dir / "cancelling").exists, "the job is being cancelled")
        assert await start(machine, job_dir, "echo again") == "started"
        assert (await end_of(machine, job_dir))[1] == ["again"]
        await cancelling

    on_machine(work)


def test_cancelling_a_job_that_has_ended_changes_nothing(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "exit 3")
        await end_of(machine, job_dir)
        await detached_job.cancel(machine, str(job_dir))
        look = await detached_job.status(machine, str(job_dir))
        assert (look.state, look.exit_code) == ("exited", 3)

    on_machine(work)


def test_a_terminated_job_records_its_exit_code(on_machine: Use, job_dir: Path) -> None:
    async def work(machine: Machine) -> None:
        await start(machine, job_dir, "touch begun; exec sleep 60")
        await until(lambda: (job_dir / "begun").exists(), "the job begins")
        os.killpg(leader(job_dir), signal.SIGTERM)
        look, _ = await end_of(machine, job_dir)
        assert (look.state, look.exit_code) == ("exited", 143)

    on_machine(work)


def test_an_environment_value_is_in_no_argument_list(on_machine: Use, job_dir: Path) -> None:
    secret = "s3cret value with 'quotes' and $dollars"

    async def work(machine: Machine) -> None:
        script = 'printf "%s" "$TOKEN" >seen; sleep 60'
        await start(machine, job_dir, script, TOKEN=secret)
        await until(lambda: (job_dir / "seen").exists(), "the job begins")
        await until(lambda: (job_dir / "seen").read_text() == secret, "the job has its secret")
        assert "s3cret" not in command_lines()
        (job_dir / "seen").unlink()
        written = [path for path in job_dir.rglob("*") if path.is_file()]
        assert [path for path in written if "s3cret" in path.read_text()] == []
        await detached_job.cancel(machine, str(job_dir))

    on_machine(work)


def test_a_job_that_cannot_be_written_says_so(on_machine: Use, tmp_path: Path) -> None:
    async def work(machine: Machine) -> None:
        with pytest.raises(MachineError, match="exit code"):
            await start(machine, tmp_path / "missing", "exit 0")

    on_machine(work)
