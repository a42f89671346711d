"""Staging on a machine that has the real tools: what is sent, and what is not."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.runtime import Launch
from overbrainer_airflow.operators.discard_staged import DiscardStagedOperator
from overbrainer_airflow.operators.stage_model import StageModelOperator
from tests.support.exports import task_context
from tests.support.runs import FULL, make_run


@pytest.fixture
def small_runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "small", files=FULL | {"checkpoint-1/model.safetensors": "no"})
    return tmp_path / "runs"


def stage(
    runs_dir: Path, ssh_conn_id: str | None = "gpu", *, keep_model: bool = False
) -> dict[str, Any]:
    operator = StageModelOperator(
        task_id="stage_model",
        run_id="small",
        ssh_conn_id=ssh_conn_id,
        runs_dir=str(runs_dir),
        keep_model=keep_model,
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


@pytest.fixture
def kept(small_runs: Path, gpu_machine: LoopbackSSHD) -> Iterator[Path]:
    """Return the run's directory on the machine, which a kept model is sent to."""
    run_dir = Path(stage(small_runs)["workdir"]) / "small"
    shutil.rmtree(run_dir)
    yield run_dir
    shutil.rmtree(run_dir)


def test_a_kept_model_is_found_by_the_next_export_and_survives_the_teardown(
    small_runs: Path, kept: Path
) -> None:
    first = stage(small_runs, keep_model=True)
    assert first["bytes_sent"] > 0
    assert first["in_place"] is True
    DiscardStagedOperator(task_id="discard_staged", staged=first).execute(task_context())
    assert (kept / "output" / "model.safetensors").read_text() == "weights"
    again = stage(small_runs)
    assert again["in_place"] is True
    assert again["inputs"] == first["inputs"]


def test_a_kept_model_is_replaced_by_a_newer_one_whole(small_runs: Path, kept: Path) -> None:
    stage(small_runs, keep_model=True)
    output = small_runs / "small" / "output"
    (output / "model.safetensors").write_text("newer")
    (output / "config.json").rename(output / "other.json")
    (output / "config.json").write_text('{"new": 1}')
    (output / "other.json").unlink()
    (kept / "output" / "stale.json").write_text("{}")
    (kept / "output" / "gguf").mkdir()
    (kept / "output" / "gguf" / "small-Q8_0.gguf").write_text("gguf")
    assert stage(small_runs, keep_model=True)["in_place"] is True
    assert (kept / "output" / "model.safetensors").read_text() == "newer"
    assert not (kept / "output" / "stale.json").exists()
    assert (kept / "output" / "gguf" / "small-Q8_0.gguf").read_text() == "gguf"


def test_a_model_that_was_not_sent_there_is_never_replaced(small_runs: Path, kept: Path) -> None:
    shutil.copytree(small_runs / "small", kept)
    (kept / "output" / "model.safetensors").write_text("somebody's")
    staged = stage(small_runs, keep_model=True)
    assert staged["in_place"] is False
    assert (kept / "output" / "model.safetensors").read_text() == "somebody's"
    sent = Path(staged["job_dir"]) / "output" / "model.safetensors"
    assert sent.read_text() == "weights"


def test_a_kept_model_that_a_job_reads_is_not_replaced(small_runs: Path, kept: Path) -> None:
    stage(small_runs, keep_model=True)
    job_dir = kept / "exports" / "export_20260101-000000-00000000"
    job_dir.mkdir(parents=True)
    launch = Launch("sleep 1000", {})

    async def start() -> None:
        async with MachineHook("gpu").machine() as machine:
            await detached_job.start(machine, str(job_dir), launch, inputs="x", result="none")

    async def cancel() -> None:
        async with MachineHook("gpu").machine() as machine:
            await detached_job.cancel(machine, str(job_dir))

    asyncio.run(start())
    try:
        (small_runs / "small" / "output" / "model.safetensors").write_text("newer")
        assert stage(small_runs, keep_model=True)["in_place"] is False
        assert (kept / "output" / "model.safetensors").read_text() == "weights"
    finally:
        asyncio.run(cancel())
    assert stage(small_runs, keep_model=True)["in_place"] is True


def test_a_shared_runs_directory_is_exported_from_without_a_copy(
    small_runs: Path, gpu_machine: LoopbackSSHD, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = json.loads(os.environ["AIRFLOW_CONN_GPU"])
    connection["extra"]["overbrainer"]["runs_dir"] = str(small_runs)
    monkeypatch.setenv("AIRFLOW_CONN_GPU", json.dumps(connection))
    staged = stage(small_runs)
    assert staged["in_place"] is True
    assert Path(staged["job_dir"]).parents[1] == small_runs / "small"
