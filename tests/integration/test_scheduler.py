"""An export that is followed by the triggerer of a real Airflow, and what people do to it."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.operators.handover import StagedExport
from tests.integration.conftest import left_running_in
from tests.support.exports import MAKE_GGUF, staged_job
from tests.support.stack import AirflowStack, airflow_stack, until

DAG = """
from datetime import timedelta
from airflow.sdk import DAG, Param
from overbrainer_airflow.operators.run_export import RunExportOperator

with DAG(
    "{dag_id}", schedule=None, render_template_as_native_obj=True,
    params={{"staged": Param({{}})}},
):
    RunExportOperator(
        task_id="run_export", staged="{{{{ params.staged }}}}", deferrable={deferrable}, retries=1,
        retry_delay=timedelta(seconds=1),
    )
"""


@pytest.fixture(scope="module")
def stack(sshd: LoopbackSSHD, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """A real Airflow that reaches this machine over SSH as ``gpu``."""
    env = {"AIRFLOW_CONN_GPU": sshd.connection()}
    home = tmp_path_factory.mktemp("stack") / "home"
    dags = {
        "follow.py": DAG.format(dag_id="follow", deferrable=True),
        "poll.py": DAG.format(dag_id="poll", deferrable=False),
    }
    with airflow_stack(home, dags, env) as running:
        yield running


@pytest.fixture
def export(stack: AirflowStack, tmp_path: Path) -> Iterator["Export"]:
    """An export that the triggerer follows, which prints a line for each file that is touched."""
    yield from exporting(stack, tmp_path, "follow")


@pytest.fixture
def polled(stack: AirflowStack, tmp_path: Path) -> Iterator["Export"]:
    """The same export, followed by a worker."""
    yield from exporting(stack, tmp_path, "poll")


def exporting(stack: AirflowStack, tmp_path: Path, dag_id: str) -> Iterator["Export"]:
    script = (
        f"for n in 1 2 3; do echo line $n; until [ -e go$n ]; do sleep 0.1; done; done; {MAKE_GGUF}"
    )
    staged = staged_job(tmp_path / "runs", script, "gpu")
    run_id = stack.trigger(dag_id, {"staged": staged.plain()})
    running = Export(stack, staged, dag_id, run_id)
    yield running
    assert left_running_in(running.job_dir) == []


class Export:
    """An export task on the stack."""

    def __init__(self, stack: AirflowStack, staged: StagedExport, dag_id: str, run_id: str) -> None:
        self.stack = stack
        self.staged = staged
        self.dag_id = dag_id
        self.run_id = run_id

    @property
    def job_dir(self) -> Path:
        return Path(self.staged.job_dir)

    def go(self, *numbers: int) -> None:
        for number in numbers:
            (self.job_dir / f"go{number}").touch()

    def state(self) -> str:
        return str(self.stack.task(self.dag_id, self.run_id, "run_export")["state"])

    def log(self, try_number: int = 1) -> list[str]:
        return self.stack.log(self.dag_id, self.run_id, "run_export", try_number)

    def mark(self, state: str) -> None:
        path = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/run_export"
        self.stack.call("PATCH", path, {"new_state": state})

    def until_state(self, *states: str) -> str:
        return until(lambda: state if (state := self.state()) in states else "", f"{states}", 60)

    def until_shown(self, line: str, try_number: int = 1) -> None:
        self.until(lambda: line in self.log(try_number), f"the log shows {line!r}")

    def until(self, condition: Callable[[], object], what: str) -> None:
        until(condition, what, 60)


def on_kill_is_known() -> bool:
    """Whether triggers of this Airflow hear that their task was stopped (3.3 and later)."""
    from airflow.triggers.base import BaseTrigger

    return hasattr(BaseTrigger, "on_kill")


def test_the_log_is_in_the_task_log_while_the_job_runs_and_little_else(export: Export) -> None:
    export.until_shown("line 1")
    assert export.state() == "deferred"
    export.go(1, 2, 3)
    assert export.until_state("success", "failed") == "success"
    lines = export.log()
    job = [line for line in lines if line.startswith("line ")]
    assert job == ["line 1", "line 2", "line 3"]
    assert [line for line in lines if "Requesting new SSH session" in line] == []
    ours = [line for line in lines if not line.startswith("::")]
    assert len(ours) <= len(job) + 15, "\n".join(ours)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_triggerer_that_is_restarted_cancels_nothing_and_repeats_nothing(
    export: Export, stack: AirflowStack, how: signal.Signals
) -> None:
    export.until_shown("line 1")
    stack.stop("triggerer", how)
    export.go(1)
    stack.start("triggerer")
    export.until_shown("line 2")
    export.go(2, 3)
    assert export.until_state("success", "failed") == "success"
    job = [line for line in export.log() if line.startswith("line ")]
    assert job == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_task_that_is_marked_while_deferred_cancels_its_job(export: Export, state: str) -> None:
    if not on_kill_is_known():
        pytest.skip("triggers hear of it from Airflow 3.3 on")
    export.until_shown("line 1")
    export.mark(state)
    export.until((export.job_dir / "cancelled").exists, "the job is cancelled")


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_task_that_is_marked_while_a_worker_polls_cancels_its_job(
    polled: Export, state: str
) -> None:
    polled.until_shown("line 1")
    polled.mark(state)
    polled.until((polled.job_dir / "cancelled").exists, "the job is cancelled")


def test_a_run_that_is_marked_failed_while_deferred_cancels_its_job(
    export: Export, stack: AirflowStack
) -> None:
    if not on_kill_is_known():
        pytest.skip("triggers hear of it from Airflow 3.3 on")
    export.until_shown("line 1")
    stack.call("PATCH", f"/dags/follow/dagRuns/{export.run_id}", {"state": "failed"})
    export.until((export.job_dir / "cancelled").exists, "the job is cancelled")


def test_a_run_that_is_cleared_while_deferred_has_one_job(
    export: Export, stack: AirflowStack
) -> None:
    if not on_kill_is_known():
        pytest.skip("triggers hear of it from Airflow 3.3 on")
    export.until_shown("line 1")
    stack.call("POST", f"/dags/follow/dagRuns/{export.run_id}/clear", {"dry_run": False})
    first = export.job_dir / "attempts" / "1" / "cancelled"
    export.until(first.exists, "the first job is cancelled and another one is started")
    export.go(1, 2, 3)
    assert export.until_state("success", "failed") == "success"
