"""`DiscardStagedOperator`: what goes, and what must never go."""

from collections.abc import Callable
from pathlib import Path

import pytest

from overbrainer_airflow.operators.discard_staged import DiscardStagedOperator
from overbrainer_airflow.operators.handover import StagedExport
from overbrainer_airflow.operators.run_export import RunExportOperator
from tests.airflow.conftest import MakeConnection
from tests.support.exports import MAKE_GGUF, staged_job, task_context, worker_following
from tests.support.stack import until


@pytest.fixture
def stage(tmp_path: Path, connect: MakeConnection) -> Callable[[str], StagedExport]:
    """Return a function that stages a script over SSH; this worker's runs are elsewhere."""
    connect()

    def make(script: str) -> StagedExport:
        staged = staged_job(tmp_path / "machine", script, "gpu")
        job_dir = Path(staged.job_dir)
        (job_dir / "output" / "deep" / "er").mkdir(parents=True)
        (job_dir / "output" / "model.safetensors").write_text("weights")
        (job_dir / "output" / "deep" / "er" / "- it's").write_text("x")
        (job_dir / "axolotl.yaml").write_text("x")
        return staged.model_copy(update={"runs_dir": str(tmp_path / "runs")})

    return make


def export(staged: StagedExport) -> None:
    RunExportOperator(task_id="run_export", staged=staged.plain()).execute(task_context())


def discard(staged: StagedExport) -> list[str]:
    DiscardStagedOperator(task_id="discard", staged=staged.plain()).execute(task_context())
    job_dir = Path(staged.job_dir)
    kept = {"export.sh", "attempts"}
    return sorted(
        str(path.relative_to(job_dir))
        for path in job_dir.rglob("*")
        if path.is_file() and path.name not in kept and not path.name.startswith("job.")
    )


def test_a_failed_export_leaves_its_log_only(stage: Callable[[str], StagedExport]) -> None:
    staged = stage(f"{MAKE_GGUF}; exit 1")
    with pytest.raises(Exception, match="exit code 1"):
        export(staged)
    assert discard(staged) == ["exit_code"]
    assert (Path(staged.job_dir) / "job.log").exists()


def test_a_gguf_that_was_not_delivered_stays(stage: Callable[[str], StagedExport]) -> None:
    staged = stage(MAKE_GGUF)
    export(staged)
    assert discard(staged) == ["exit_code", "output/gguf/my-run-Q4_K_M.gguf"]
    export(staged)  # and the next try takes it


def test_nothing_goes_while_the_job_runs(stage: Callable[[str], StagedExport]) -> None:
    staged = stage("touch begun; sleep 60")
    with worker_following(staged):
        until((Path(staged.job_dir) / "begun").exists, "the job begins")
    assert "output/model.safetensors" in discard(staged)
    RunExportOperator(task_id="run_export", staged=staged.plain()).on_kill()


def test_a_job_directory_that_is_gone_is_no_error(
    stage: Callable[[str], StagedExport], tmp_path: Path
) -> None:
    staged = stage("true").model_copy(update={"job_dir": str(tmp_path / "gone")})
    assert discard(staged) == []
