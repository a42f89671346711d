"""`RunExportOperator`: one job, whatever happens to the task, and the reason when it fails."""

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.errors import JobError, NoGGUFError
from overbrainer_airflow.operators.handover import StagedExport
from overbrainer_airflow.operators.run_export import RunExportOperator
from tests.airflow.conftest import MakeConnection, TaskLog
from tests.support.exports import MAKE_GGUF, staged_job, task_context, worker_following


@pytest.fixture(params=[None, "gpu"], ids=["local", "ssh"])
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, connect: MakeConnection
) -> Callable[[str], StagedExport]:
    """Return a function that stages a script on this worker or over SSH."""
    connect()
    return lambda script: staged_job(tmp_path / "my runs", script, request.param)


def run(staged: StagedExport) -> dict[str, Any]:
    return operator(staged).execute(task_context())


def operator(staged: StagedExport) -> RunExportOperator:
    return RunExportOperator(task_id="run_export", staged=staged.plain())


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.02)


def test_it_returns_the_size_and_digest_of_the_gguf(
    stage: Callable[[str], StagedExport],
) -> None:
    exported = run(stage(MAKE_GGUF))
    assert exported["size"] == len(b"gguf\n")
    assert exported["sha256"] == hashlib.sha256(b"gguf\n").hexdigest()
    assert exported["file"] == "my-run-Q4_K_M.gguf"


def test_the_log_of_the_job_is_the_log_of_the_task(
    stage: Callable[[str], StagedExport], task_log: TaskLog
) -> None:
    run(stage(f"printf 'one\\n10%%\\r50%%\\ntwo \\303\\244 \\377'; {MAKE_GGUF}"))
    begin = task_log.lines.index("one")
    assert task_log.lines[begin : begin + 3] == ["one", "50%", "two \u00e4 \ufffd"]
    assert len(task_log.lines) <= 3 + 3


def test_a_failed_job_fails_the_task_with_what_the_script_said(
    stage: Callable[[str], StagedExport],
) -> None:
    staged = stage("echo 'export: there is no axolotl' >&2; echo noise; exit 3")
    with pytest.raises(
        JobError, match=r"run my-run to Q4_K_M on .*exit code 3: export: there is no axolotl"
    ):
        run(staged)


def test_a_job_without_a_gguf_fails_the_task_and_names_the_directory(
    stage: Callable[[str], StagedExport],
) -> None:
    with pytest.raises(NoGGUFError, match=r"left no GGUF file my-run-Q4_K_M.gguf in .*output/gguf"):
        run(stage("mkdir -p output/gguf"))


def test_an_empty_gguf_is_none(stage: Callable[[str], StagedExport]) -> None:
    with pytest.raises(NoGGUFError):
        run(stage("mkdir -p output/gguf; : >output/gguf/my-run-Q4_K_M.gguf"))


def test_a_retry_takes_the_result_of_a_job_that_has_finished(
    stage: Callable[[str], StagedExport],
) -> None:
    staged = stage(f"echo x >>times; {MAKE_GGUF}")
    assert run(staged) == run(staged)
    assert (Path(staged.job_dir) / "times").read_text() == "x\n"


def test_a_retry_starts_a_failed_job_again(stage: Callable[[str], StagedExport]) -> None:
    staged = stage(f"echo x >>times; [ -e mended ] || exit 1; {MAKE_GGUF}")
    with pytest.raises(JobError):
        run(staged)
    (Path(staged.job_dir) / "mended").touch()
    run(staged)
    assert (Path(staged.job_dir) / "times").read_text() == "x\nx\n"


def test_a_retry_follows_a_job_that_runs(stage: Callable[[str], StagedExport]) -> None:
    staged = stage(f"echo x >>times; until [ -e go ]; do sleep 0.05; done; {MAKE_GGUF}")
    job_dir = Path(staged.job_dir)
    with worker_following(staged):  # and is killed while it does
        wait_for(job_dir / "times")
    (job_dir / "go").touch()
    run(staged)
    assert (job_dir / "times").read_text() == "x\n"


def test_stopping_the_task_cancels_the_job(stage: Callable[[str], StagedExport]) -> None:
    staged = stage("touch begun; sleep 60")
    task = operator(staged)
    job_dir = Path(staged.job_dir)

    def stop() -> None:
        wait_for(job_dir / "begun")
        task.on_kill()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(JobError, match="the task was stopped, its job cancelled"):
        task.execute(task_context())
    stopper.join()
    assert (job_dir / "cancelled").exists()


def test_stopping_a_task_that_is_not_watching_cancels_the_job(
    stage: Callable[[str], StagedExport],
) -> None:
    staged = stage("touch begun; sleep 60")
    with worker_following(staged):
        wait_for(Path(staged.job_dir) / "begun")
    operator(staged).on_kill()
    assert (Path(staged.job_dir) / "cancelled").exists()


def test_a_job_that_is_cancelled_for_an_earlier_try_is_started_again(
    stage: Callable[[str], StagedExport],
) -> None:
    staged = stage(f"if [ ! -e begun ]; then touch begun; sleep 60; fi; {MAKE_GGUF}")
    job_dir = Path(staged.job_dir)

    def stop_the_earlier_try() -> None:
        wait_for(job_dir / "begun")
        operator(staged).on_kill()

    stopper = threading.Thread(target=stop_the_earlier_try)
    stopper.start()
    assert run(staged)["file"] == "my-run-Q4_K_M.gguf"
    stopper.join()
    assert (job_dir / "attempts" / "1" / "cancelled").exists()


def test_a_job_made_of_other_files_is_not_followed(
    stage: Callable[[str], StagedExport],
) -> None:
    staged = stage("touch begun; sleep 60")
    with worker_following(staged):
        wait_for(Path(staged.job_dir) / "begun")
    with pytest.raises(JobError, match="a job made of other files runs in"):
        run(staged.model_copy(update={"inputs": "1" * 64}))
    operator(staged).on_kill()


def test_a_lost_job_is_reported_with_its_last_line(
    stage: Callable[[str], StagedExport],
) -> None:
    staged = stage("echo 'last words'; sh -c 'kill -9 -$(cat job.pid)'; sleep 60")
    with pytest.raises(JobError, match=r"was lost: .*a retry starts it again.*last words"):
        run(staged)


def test_a_connection_that_breaks_costs_nothing(
    sshd: LoopbackSSHD, tmp_path: Path, connect: MakeConnection, task_log: TaskLog
) -> None:
    connect()
    # The job ends the session that watches it, as a network would.
    script = (
        "echo before; for pid in $(ps -eo pid=,args= | grep '[s]shd: .*@notty' | "
        f"awk '{{print $1}}'); do kill -9 $pid; done; echo after; {MAKE_GGUF}"
    )
    run(staged_job(tmp_path / "runs", script, "gpu"))
    assert task_log.lines.count("before") == task_log.lines.count("after") == 1


def test_a_value_that_no_stage_returned_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="run_export got no StagedExport"):
        RunExportOperator(task_id="run_export", staged={"run_id": "x"}).execute(task_context())
