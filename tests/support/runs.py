"""Runs on disk, as overbrainer lays them out, small enough to be made by each test."""

import json
from pathlib import Path
from typing import Any

ADAPTER = {"adapter_config.json": "{}", "adapter_model.safetensors": "weights"}
FULL = {"config.json": "{}", "model.safetensors": "weights"}


def make_run(
    runs_dir: Path,
    run_id: str,
    *,
    model: str = "output",
    files: dict[str, str] | None = None,
    record: dict[str, Any] | None = None,
) -> Path:
    """Make a run, an adapter unless ``files`` says otherwise, and return its directory.

    ``record`` is laid over a succeeded run's ``run.json``.
    """
    run_dir = runs_dir / run_id
    write_files(run_dir / model, ADAPTER if files is None else files)
    (run_dir / "axolotl.yaml").write_text("base_model: base\nsequence_len: 2048\n")
    whole = {"id": run_id, "target": "gpu", "state": "succeeded"} | (record or {})
    (run_dir / "run.json").write_text(json.dumps(whole))
    return run_dir


def write_files(directory: Path, files: dict[str, str]) -> None:
    """Write ``files``, by their path relative to ``directory``, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
