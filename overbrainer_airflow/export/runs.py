"""Runs as overbrainer lays them out, and the model that a run has to export.

runs/<run-id>/
    run.json         what overbrainer knows of the run; absent when another tool trained it
    axolotl.yaml     the training's configuration, needed to merge
    output/          an adapter (adapter_config.json) or a full model (config.json), with
        merged/      the adapter already merged, if somebody did
        checkpoint-N/  states on the way; the model of a run that was stopped
        gguf/        delivered exports and their Modelfile
    exports/<export-id>/  one directory a job
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from overbrainer_airflow.errors import InvalidInputError, RunNotReadyError
from overbrainer_airflow.export.ids import check_run_id
from overbrainer_airflow.export.records import Record, pretty, read_record

RUN_FILE = "run.json"
CONFIG_FILE = "axolotl.yaml"
OUTPUT_DIR = "output"
EXPORTS_DIR = "exports"

State = Literal["preparing", "running", "succeeded", "failed", "cancelled", "stopped"]
ModelKind = Literal["merged", "adapter", "full"]


class Snapshot(Record):
    """The checkpoint that a stopped run came back with."""

    checkpoint: str
    step: int | None = None
    reason: str | None = None


class RunRecord(Record):
    """``run.json``."""

    id: str
    target: str | None = None
    created: str | None = None
    remote_dir: str | None = None
    job: Any = None
    state: State
    message: str | None = None
    snapshot: Snapshot | None = None
    resumed_from: Any = None
    snapshots: tuple[Any, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "RunRecord":
        """Read ``path``.

        Raises:
            RunNotReadyError: it cannot be read or is not a run record.
        """
        return read_record(cls, path, RunNotReadyError, "a run record")

    def text(self) -> str:
        """Return the record as its file holds it, with the fields that were read and no others."""
        return pretty(self.model_dump(exclude_unset=True))


@dataclass(frozen=True)
class RunModel:
    """What a run has to export.

    Attributes:
        run_id: the run.
        run_dir: its directory here.
        model: the model's directory, relative to ``run_dir``, with ``/``.
        kind: what the directory holds.
        remote_dir: where overbrainer trained the run, on its machine, if known.
        partial: why this is not the finished model; None when it is.
    """

    run_id: str
    run_dir: Path
    model: str
    kind: ModelKind
    remote_dir: str | None = None
    partial: str | None = None


def model_of(runs_dir: Path, run_id: str) -> RunModel:
    """Find the model of a run that is finished and whose files are here.

    Raises:
        InvalidInputError: ``run_id`` cannot name a run.
        RunNotReadyError: no such run; one still at work, failed or cancelled; files missing.
    """
    run_dir = runs_dir / check_run_id(run_id)
    if not run_dir.is_dir():
        raise RunNotReadyError(f"run {run_id} is unknown: there is no directory {run_dir}")
    record = RunRecord.read(run_dir / RUN_FILE) if (run_dir / RUN_FILE).exists() else None
    model, partial = OUTPUT_DIR, None
    if record is not None:
        model, partial = _recorded_model(run_id, record)
    if not (run_dir / CONFIG_FILE).is_file():
        raise RunNotReadyError(
            f"run {run_id} has no {CONFIG_FILE} in {run_dir}: copy the training's configuration "
            "there, the merge and the context length come from it"
        )
    if not (run_dir / model).is_dir():
        raise RunNotReadyError(
            f"run {run_id}: its files never came back, there is no {run_dir / model}: "
            "fetch them from the machine that trained it"
        )
    kind = _kind_of(run_id, run_dir / model)
    remote_dir = record.remote_dir if record else None
    return RunModel(run_id, run_dir, model, kind, remote_dir, partial)


def _recorded_model(run_id: str, record: RunRecord) -> tuple[str, str | None]:
    """Return the model's directory in the run, and why it is partial."""
    if record.state == "succeeded":
        return OUTPUT_DIR, None
    if record.state != "stopped":
        next_step = {
            "preparing": "export it once it has succeeded",
            "running": "export it once it has succeeded",
        }.get(record.state, "train it again, or resume it")
        raise RunNotReadyError(
            f"run {run_id} is {record.state}"
            + (f" ({record.message})" if record.message else "")
            + f", only a succeeded or stopped run can be exported: {next_step}"
        )
    if record.snapshot is None:
        raise RunNotReadyError(
            f"run {run_id} was stopped and no checkpoint came back: resume it, or train it again"
        )
    name = record.snapshot.checkpoint.removeprefix(f"{OUTPUT_DIR}/")
    try:
        check_run_id(name)  # a checkpoint is named like a run: one plain path component
    except InvalidInputError as error:
        raise RunNotReadyError(
            f"run {run_id}: {RUN_FILE} names the checkpoint {record.snapshot.checkpoint!r}, "
            f"which is not a directory of {OUTPUT_DIR}/"
        ) from error
    step = "" if record.snapshot.step is None else f" at step {record.snapshot.step}"
    why = f": {record.snapshot.reason}" if record.snapshot.reason else ""
    return f"{OUTPUT_DIR}/{name}", f"training was stopped{step}{why}"


def _kind_of(run_id: str, model: Path) -> ModelKind:
    if (model / "merged" / "config.json").is_file():
        _check_weights(run_id, model / "merged", "model")
        return "merged"
    if (model / "adapter_config.json").is_file():
        _check_weights(run_id, model, "adapter_model")
        return "adapter"
    if (model / "config.json").is_file():
        _check_weights(run_id, model, "model")
        return "full"
    raise RunNotReadyError(
        f"run {run_id} has no model in {model}: an adapter has adapter_config.json, "
        "a full model config.json"
    )


def _check_weights(run_id: str, model: Path, stem: str) -> None:
    """Find every weights file of ``model``: each shard that an index names, or the whole file."""
    stems = [stem] if stem == "adapter_model" else ["model", "pytorch_model"]
    whole = [f"{name}.{suffix}" for name in stems for suffix in ("safetensors", "bin")]
    for index in (model / f"{name}.index.json" for name in whole):
        if index.is_file():
            _check_shards(run_id, model, index)
            return
    if not any((model / name).is_file() for name in whole):
        raise RunNotReadyError(
            f"run {run_id}: {model} has no weights ({whole[0]}, or an index and its shards): "
            "fetch them from the machine that trained it"
        )


def _check_shards(run_id: str, model: Path, index: Path) -> None:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise RunNotReadyError(f"run {run_id}: {index} is not a weights index") from error
    missing = [name for name in names if not (model / str(name)).is_file()]
    if missing or not names:
        raise RunNotReadyError(
            f"run {run_id}: {model} lacks {len(missing)} of its {len(names)} weights files"
            + (f", the first is {missing[0]}" if missing else "")
            + ": fetch them from the machine that trained it"
        )
