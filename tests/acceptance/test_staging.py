"""Staging on a machine that has the real tools: what is sent, and what is not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.operators.discard_staged import DiscardStagedOperator
from overbrainer_airflow.operators.stage_model import StageModelOperator
from tests.support.exports import task_context
from tests.support.runs import FULL, make_run


@pytest.fixture
def small_runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "small", files=FULL | {"checkpoint-1/model.safetensors": "no"})
    return tmp_path / "runs"


def stage(runs_dir: Path, ssh_conn_id: str | None = "gpu") -> dict[str, Any]:
    operator = StageModelOperator(
        task_id="stage_model", run_id="small", ssh_conn_id=ssh_conn_id, runs_dir=str(runs_dir)
    )
    return operator.execute(task_context())


def test_a_model_is_sent_into_the_job_directory_without_its_checkpoints(
    small_runs: Path, gpu_machine: LoopbackSSHD
) -> None:
    staged = stage(small_runs)
    job_dir = Path(staged["job_dir"])
    assert (job_dir / "output" / "model.safetensors").read_text() == "weights"
    assert (job_dir / "axolotl.yaml").exists()
    assert (job_dir / "export.sh").exists()
    assert not (job_dir / "output" / "checkpoint-1").exists()
    assert list(job_dir.rglob("*.part")) == []
    assert staged["in_place"] is False


def test_staging_again_sends_nothing(small_runs: Path, gpu_machine: LoopbackSSHD) -> None:
    first = stage(small_runs)
    assert stage(small_runs) == first | {"bytes_sent": 0}


def test_a_file_that_changed_is_sent_again_even_at_the_same_size_and_time(
    small_runs: Path, gpu_machine: LoopbackSSHD
) -> None:
    import os

    first = stage(small_runs)
    weights = small_runs / "small" / "output" / "model.safetensors"
    before = weights.stat()
    shutil.copy(weights, weights.with_suffix(".new"))
    weights.with_suffix(".new").write_text("WEIGHTS")
    weights.with_suffix(".new").replace(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = stage(small_runs)
    assert again["bytes_sent"] == len("WEIGHTS")
    assert again["inputs"] != first["inputs"]
    sent = Path(again["job_dir"]) / "output" / "model.safetensors"
    assert sent.read_text() == "WEIGHTS"


def test_a_model_that_the_machine_holds_is_exported_in_place(
    small_runs: Path, gpu_machine: LoopbackSSHD
) -> None:
    workdir = Path(stage(small_runs)["workdir"])
    shutil.copytree(small_runs / "small", workdir / "small", dirs_exist_ok=True)
    staged = stage(small_runs)
    assert staged["in_place"] is True
    assert Path(staged["job_dir"]).parents[1] == workdir / "small"
    (workdir / "small" / "output" / "model.safetensors").write_text("other")
    assert stage(small_runs)["in_place"] is False
    shutil.rmtree(workdir / "small")


def test_what_was_staged_is_discarded_and_nothing_else(
    small_runs: Path, gpu_machine: LoopbackSSHD
) -> None:
    staged = stage(small_runs)
    (Path(staged["job_dir"]) / "job.log").write_text("log")
    DiscardStagedOperator(task_id="discard_staged", staged=staged).execute(task_context())
    left = sorted(path.name for path in Path(staged["job_dir"]).iterdir())
    assert left == ["export.sh", "job.log"]
    assert (small_runs / "small" / "output" / "model.safetensors").read_text() == "weights"
    assert not (small_runs / "small" / "exports" / staged["export_id"] / "output").exists()
