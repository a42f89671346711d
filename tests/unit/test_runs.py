import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overbrainer_airflow.errors import InvalidInputError, RunNotReadyError
from overbrainer_airflow.export.runs import RunModel, RunRecord, model_of
from tests.support.runs import ADAPTER, FULL, make_run, write_files

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}})


def refusal(runs_dir: Path, run_id: str = "my-run") -> str:
    """Return why the run cannot be exported."""
    with pytest.raises(RunNotReadyError) as caught:
        model_of(runs_dir, run_id)
    assert run_id in str(caught.value)
    return str(caught.value)


def stopped(checkpoint: str, **more: object) -> dict[str, Any]:
    """Return what ``run.json`` of a stopped run says more than others."""
    return {"state": "stopped", "snapshot": {"checkpoint": checkpoint} | more}


def test_the_model_of_a_succeeded_run_is_its_output(runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run")
    assert model_of(runs_dir, "my-run") == RunModel("my-run", run_dir, "output", "adapter")


def test_the_model_of_a_full_fine_tune_is_a_full_model(runs_dir: Path) -> None:
    make_run(runs_dir, "my-run", files=FULL)
    assert model_of(runs_dir, "my-run").kind == "full"


def test_an_adapter_that_carries_its_base_model_config_is_an_adapter(runs_dir: Path) -> None:
    make_run(runs_dir, "my-run", files=ADAPTER | {"config.json": "{}"})
    assert model_of(runs_dir, "my-run").kind == "adapter"


def test_an_adapter_that_somebody_merged_is_a_merged_model(runs_dir: Path) -> None:
    merged = {f"merged/{name}": text for name, text in FULL.items()}
    make_run(runs_dir, "my-run", files=ADAPTER | merged)
    found = model_of(runs_dir, "my-run")
    assert (found.model, found.kind) == ("output", "merged")


def test_a_run_of_another_tool_without_run_json_is_finished_when_its_model_is_there(
    runs_dir: Path,
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    (run_dir / "run.json").unlink()
    found = model_of(runs_dir, "my-run")
    assert (found.model, found.remote_dir, found.partial) == ("output", None, None)


def test_a_run_tells_where_its_machine_has_it(runs_dir: Path) -> None:
    make_run(runs_dir, "my-run", record={"remote_dir": "/home/u/overbrainer/my-run"})
    assert model_of(runs_dir, "my-run").remote_dir == "/home/u/overbrainer/my-run"


def test_an_unknown_run_is_refused_with_the_directory_that_is_missing(runs_dir: Path) -> None:
    assert f"unknown: there is no directory {runs_dir / 'my-run'}" in refusal(runs_dir)


@pytest.mark.parametrize("run_id", ["../my-run", "a b", "", "x" * 129, "é", "my-run\n"], ids=ascii)
def test_an_id_that_cannot_name_a_run_is_refused_before_the_disk_is_read(
    run_id: str, runs_dir: Path
) -> None:
    make_run(runs_dir.parent, "my-run")
    with pytest.raises(InvalidInputError, match="cannot name a run"):
        model_of(runs_dir, run_id)


@pytest.mark.parametrize(
    ("state", "next_step"),
    [
        ("preparing", "export it once it has succeeded"),
        ("running", "export it once it has succeeded"),
        ("failed", "train it again, or resume it"),
        ("cancelled", "train it again, or resume it"),
    ],
)
def test_a_run_in_another_state_is_refused_with_what_to_do(
    state: str, next_step: str, runs_dir: Path
) -> None:
    make_run(runs_dir, "my-run", record={"state": state, "message": "loss is NaN"})
    message = refusal(runs_dir)
    assert f"run my-run is {state} (loss is NaN), only a succeeded or stopped run" in message
    assert next_step in message


def test_a_run_whose_files_never_came_back_is_refused(runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run")
    shutil.rmtree(run_dir / "output")
    message = refusal(runs_dir)
    assert f"never came back, there is no {run_dir / 'output'}" in message
    assert "fetch them" in message


def test_a_run_without_its_training_configuration_is_refused(runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run")
    (run_dir / "axolotl.yaml").unlink()
    message = refusal(runs_dir)
    assert f"no axolotl.yaml in {run_dir}" in message
    assert "copy the training's configuration there" in message


def test_an_output_without_a_model_is_refused_with_what_a_model_has(runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run", files={"tokenizer.json": "{}"})
    message = refusal(runs_dir)
    assert f"no model in {run_dir / 'output'}" in message
    assert "adapter_config.json" in message
    assert "a full model config.json" in message


@pytest.mark.parametrize("kept", ["adapter_config.json", "config.json", "merged/config.json"])
def test_a_model_without_weights_is_refused(kept: str, runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run", files={kept: "{}"})
    message = refusal(runs_dir)
    assert f"{(run_dir / 'output' / kept).parent} has no weights" in message
    assert "fetch them" in message


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (("config.json", "pytorch_model.bin"), "full"),
        (("config.json", "model.safetensors"), "full"),
        (("merged/config.json", "merged/pytorch_model.bin"), "merged"),
        (("adapter_config.json", "adapter_model.bin"), "adapter"),
    ],
)
def test_weights_are_found_in_either_format(
    files: tuple[str, str], kind: str, runs_dir: Path
) -> None:
    make_run(runs_dir, "my-run", files=dict.fromkeys(files, "{}"))
    assert model_of(runs_dir, "my-run").kind == kind


def test_weights_of_a_full_model_do_not_make_an_adapter_complete(runs_dir: Path) -> None:
    make_run(runs_dir, "my-run", files={"adapter_config.json": "{}", "model.safetensors": "w"})
    assert "has no weights (adapter_model.safetensors" in refusal(runs_dir)


def test_a_weights_index_that_names_no_file_is_refused(runs_dir: Path) -> None:
    index = {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {}}'}
    make_run(runs_dir, "my-run", files=index)
    assert "lacks 0 of its 0 weights files: fetch them" in refusal(runs_dir)


@pytest.mark.parametrize("folder", ["", "merged/"])
def test_a_model_in_shards_is_complete_with_all_of_them(folder: str, runs_dir: Path) -> None:
    files = {"config.json": "{}", "model.safetensors.index.json": INDEX} | dict.fromkeys(
        SHARDS, "w"
    )
    make_run(runs_dir, "my-run", files={f"{folder}{name}": text for name, text in files.items()})
    assert model_of(runs_dir, "my-run").kind == ("merged" if folder else "full")


def test_a_model_that_lacks_a_shard_of_its_index_is_refused_by_the_shard(runs_dir: Path) -> None:
    files = {"config.json": "{}", "model.safetensors.index.json": INDEX, SHARDS[0]: "w"}
    make_run(runs_dir, "my-run", files=files)
    message = refusal(runs_dir)
    assert f"lacks 1 of its 2 weights files, the first is {SHARDS[1]}" in message
    assert "fetch them" in message


@pytest.mark.parametrize("index", ["", "{}", "[]", "null", '{"weight_map": {"a": []}}'])
def test_a_weights_index_that_is_none_is_refused_by_its_name(index: str, runs_dir: Path) -> None:
    files = {"config.json": "{}", "model.safetensors.index.json": index, SHARDS[0]: "w"}
    run_dir = make_run(runs_dir, "my-run", files=files)
    path = run_dir / "output" / "model.safetensors.index.json"
    assert f"{path} is not a weights index" in refusal(runs_dir)


@pytest.mark.parametrize("checkpoint", ["checkpoint-20", "output/checkpoint-20"])
def test_the_model_of_a_stopped_run_is_the_checkpoint_it_came_back_with(
    checkpoint: str, runs_dir: Path
) -> None:
    make_run(runs_dir, "my-run", model="output/checkpoint-20", record=stopped(checkpoint))
    assert model_of(runs_dir, "my-run").model == "output/checkpoint-20"


def test_the_export_of_a_stopped_run_warns_that_it_is_partial(runs_dir: Path) -> None:
    record = stopped("checkpoint-20", step=20, reason="budget spent")
    make_run(runs_dir, "my-run", model="output/checkpoint-20", record=record)
    partial = model_of(runs_dir, "my-run").partial
    assert partial == "training was stopped at step 20: budget spent"


def test_a_stopped_run_that_does_not_say_why_is_partial_all_the_same(runs_dir: Path) -> None:
    make_run(runs_dir, "my-run", model="output/checkpoint-20", record=stopped("checkpoint-20"))
    assert model_of(runs_dir, "my-run").partial == "training was stopped"


def test_a_stopped_run_without_a_snapshot_is_refused(runs_dir: Path) -> None:
    make_run(runs_dir, "my-run", record={"state": "stopped"})
    assert "no checkpoint came back: resume it, or train it again" in refusal(runs_dir)


def test_a_stopped_run_whose_checkpoint_is_not_here_is_refused(runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run", record=stopped("checkpoint-20"))
    assert f"there is no {run_dir / 'output' / 'checkpoint-20'}" in refusal(runs_dir)


@pytest.mark.parametrize(
    "checkpoint", ["../../other/output", "output/../..", "..", "", "output/", "/srv", "a/b", "a b"]
)
def test_a_checkpoint_outside_the_output_is_refused(checkpoint: str, runs_dir: Path) -> None:
    make_run(runs_dir, "other")
    make_run(runs_dir, "my-run", record=stopped(checkpoint))
    message = refusal(runs_dir)
    assert f"run.json names the checkpoint {checkpoint!r}" in message
    assert "not a directory of output/" in message


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("not json", "the file: Invalid JSON"),
        ("[]", "the file: "),
        ('{"id": "my-run"}', "state: Field required"),
        ('{"id": "my-run", "state": "finished"}', "state: Input should be"),
        ('{"id": "my-run", "state": "stopped", "snapshot": {}}', "snapshot.checkpoint: "),
    ],
)
def test_a_run_json_that_is_no_run_record_is_refused_with_its_first_fault(
    text: str, fault: str, runs_dir: Path
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    (run_dir / "run.json").write_text(text)
    assert f"{run_dir / 'run.json'} is not a run record: {fault}" in refusal(runs_dir)


def test_a_run_json_that_cannot_be_read_is_named(runs_dir: Path) -> None:
    run_dir = make_run(runs_dir, "my-run")
    (run_dir / "run.json").unlink()
    (run_dir / "run.json").mkdir()
    assert f"cannot read {run_dir / 'run.json'}: " in refusal(runs_dir)


def test_a_run_record_keeps_the_fields_of_a_newer_writer(tmp_path: Path) -> None:
    content = {
        "id": "my-run",
        "state": "stopped",
        "job": {"pid": 7},
        "snapshot": {"checkpoint": "checkpoint-20", "loss": 0.5},
        "tags": ["é"],
    }
    write_files(tmp_path, {"run.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n"})
    path = tmp_path / "run.json"
    assert json.loads(RunRecord.read(path).text()) == content


def test_a_run_record_is_written_as_it_was_read_in_the_order_of_its_fields(tmp_path: Path) -> None:
    text = """\
{
  "id": "my-run",
  "target": "gpu",
  "created": "2026-01-02T03:04:05Z",
  "remote_dir": null,
  "state": "stopped",
  "snapshot": {
    "checkpoint": "checkpoint-20",
    "step": 20,
    "reason": "café closed",
    "loss": 0.5
  },
  "snapshots": [
    20
  ],
  "tags": []
}
"""
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    assert RunRecord.read(path).text() == text
