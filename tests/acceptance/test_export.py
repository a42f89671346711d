"""The whole export over SSH, with real tools on a real model: it still knows what it was taught."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from demo.run import ask, question_and_fact
from demo.sshd import LoopbackSSHD
from tests.support.dags import run_dag


@pytest.mark.parametrize("quantize", ["Q4_K_M", "F16"])
@pytest.mark.parametrize("run_id", ["adapter", "merged", "full", "stopped"])
def test_a_trained_run_becomes_a_gguf_that_knows_the_fact(
    runs_dir: Path,
    gpu_machine: LoopbackSSHD,
    airflow_db: None,
    monkeypatch: pytest.MonkeyPatch,
    run_id: str,
    quantize: str,
) -> None:
    monkeypatch.setenv("AIRFLOW__OVERBRAINER__RUNS_DIR", str(runs_dir))
    states = run_dag(
        "overbrainer_export",
        {"run_id": run_id, "quantize": quantize, "machine": "gpu"},
    )
    assert states == {
        "export.stage_model": "success",
        "export.run_export": "success",
        "export.deliver_gguf": "success",
        "export.ollama_create": "skipped",
        "export.discard_staged": "success",
    }

    gguf = runs_dir / run_id / "output" / "gguf" / f"{run_id}-{quantize}.gguf"
    question, fact = question_and_fact()
    assert fact in ask(gguf, question)

    records = [
        json.loads(path.read_text()) for path in (runs_dir / run_id).glob("exports/*/export.json")
    ]
    (record,) = [record for record in records if record["quantize"] == quantize]
    assert record["sha256"] == hashlib.sha256(gguf.read_bytes()).hexdigest()
    assert record["size"] == gguf.stat().st_size
    modelfile = (gguf.parent / "Modelfile").read_text()
    assert modelfile == f"FROM ./{gguf.name}\nPARAMETER num_ctx 2048\n"
    workdir = json.loads(os.environ["AIRFLOW_CONN_GPU"])["extra"]["overbrainer"]["workdir"]
    for machine in (runs_dir, Path(workdir)):
        assert list(machine.glob("*/exports/*/output")) == []
