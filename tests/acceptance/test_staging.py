"""Staging on a machine that has the real tools: what is sent, and what is not."""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.runtime import Launch
from overbrainer_airflow.operators.discard_staged import DiscardStagedOperator
from overbrainer_airflow.operators.stage_model import StageModelOperator
from tests.support.exports import task_context
from tests.support.runs import FULL, make_run, write_files


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
def workdir(small_runs: Path, gpu_machine: LoopbackSSHD) -> Iterator[Path]:
    """Return the machine's workdir, without anything of the run in it."""
    path = Path(stage(small_runs)["workdir"])
    shutil.rmtree(path / "small")
    yield path
    shutil.rmtree(path / "small", ignore_errors=True)
    shutil.rmtree(path / ".kept", ignore_errors=True)


def kept_models(workdir: Path) -> list[str]:
    found = (workdir / ".kept" / "small").glob("*/output/model.safetensors")
    return sorted(path.read_text() for path in found)


def test_a_kept_model_is_found_by_the_next_export_and_survives_the_teardown(
    small_runs: Path, workdir: Path
) -> None:
    first = stage(small_runs, keep_model=True)
    assert first["bytes_sent"] > 0
    assert first["in_place"] is True
    DiscardStagedOperator(task_id="discard_staged", staged=first).execute(task_context())
    assert kept_models(workdir) == ["weights"]
    again = stage(small_runs)
    assert again["in_place"] is True
    assert again["inputs"] == first["inputs"]


def test_a_newer_model_takes_the_place_of_a_kept_one(small_runs: Path, workdir: Path) -> None:
    first = stage(small_runs, keep_model=True)
    (Path(first["job_dir"]) / "exit_code").write_text("0")
    (small_runs / "small" / "output" / "model.safetensors").write_text("newer")
    assert stage(small_runs)["in_place"] is False
    assert stage(small_runs, keep_model=True)["in_place"] is True
    assert kept_models(workdir) == ["newer"]
    assert Path(first["job_dir"]).is_dir()


def test_a_model_that_somebody_trains_on_the_machine_is_never_touched(
    small_runs: Path, workdir: Path
) -> None:
    shutil.copytree(small_runs / "small", workdir / "small")
    (workdir / "small" / "output" / "model.safetensors").write_text("somebody's")
    (workdir / "small" / "output" / "checkpoint-9").mkdir()
    assert stage(small_runs, keep_model=True)["in_place"] is True
    assert stage(small_runs)["in_place"] is True
    assert (workdir / "small" / "output" / "model.safetensors").read_text() == "somebody's"
    assert (workdir / "small" / "output" / "checkpoint-9").is_dir()


def test_a_kept_model_that_a_job_reads_or_will_read_stays(small_runs: Path, workdir: Path) -> None:
    first = stage(small_runs, keep_model=True)
    (small_runs / "small" / "output" / "model.safetensors").write_text("newer")
    stage(small_runs, keep_model=True)
    assert kept_models(workdir) == ["newer", "weights"], "the first export is about to start"

    async def in_first_job(work: Callable[[Machine], Awaitable[object]]) -> None:
        async with MachineHook("gpu").machine() as machine:
            await work(machine)

    launch = Launch("sleep 1000", {})
    asyncio.run(
        in_first_job(
            lambda machine: detached_job.start(
                machine, first["job_dir"], launch, inputs="x", result="none"
            )
        )
    )
    try:
        (small_runs / "small" / "output" / "model.safetensors").write_text("newest")
        stage(small_runs, keep_model=True)
        assert "weights" in kept_models(workdir), "the first export runs"
    finally:
        asyncio.run(in_first_job(lambda machine: detached_job.cancel(machine, first["job_dir"])))


def test_a_merged_model_that_only_the_machine_has_is_not_exported_for_the_adapter(
    tmp_path: Path, workdir: Path
) -> None:
    make_run(tmp_path / "adapters", "small")
    shutil.copytree(tmp_path / "adapters" / "small", workdir / "small")
    assert stage(tmp_path / "adapters")["in_place"] is True
    write_files(workdir / "small" / "output" / "merged", FULL)
    assert stage(tmp_path / "adapters")["in_place"] is False


def test_a_shared_runs_directory_is_exported_from_without_a_copy(
    small_runs: Path, gpu_machine: LoopbackSSHD, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = json.loads(os.environ["AIRFLOW_CONN_GPU"])
    connection["extra"]["overbrainer"]["runs_dir"] = str(small_runs)
    monkeypatch.setenv("AIRFLOW_CONN_GPU", json.dumps(connection))
    staged = stage(small_runs)
    assert staged["in_place"] is True
    assert Path(staged["job_dir"]).parents[1] == small_runs / "small"
