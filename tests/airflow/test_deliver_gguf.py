"""`DeliverGGUFOperator`: the verified file and its records, or what was there before."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overbrainer_airflow.errors import MachineError, OverbrainerError, TransferError
from overbrainer_airflow.machines.pipes import SSHPipe
from overbrainer_airflow.operators.deliver_gguf import DeliverGGUFOperator
from overbrainer_airflow.operators.handover import ExportedGGUF
from tests.airflow.conftest import MakeConnection
from tests.support.exports import EXPORT_ID, staged_job, task_context
from tests.support.runs import make_run

CONTENT = b"a new gguf"
FILE = "my-run-Q4_K_M.gguf"


@pytest.fixture(params=[None, "gpu"], ids=["local", "ssh"])
def exported(
    request: pytest.FixtureRequest, tmp_path: Path, connect: MakeConnection
) -> ExportedGGUF:
    """Return a finished export on this worker or on another directory over SSH."""
    connect()
    make_run(tmp_path / "runs", "my-run")
    return finished(tmp_path, request.param)


def finished(tmp_path: Path, ssh_conn_id: str | None) -> ExportedGGUF:
    here = staged_job(tmp_path / "runs", "", ssh_conn_id)
    where = tmp_path / ("machine" if ssh_conn_id else "runs")
    job_dir = where / "my-run" / "exports" / EXPORT_ID
    (job_dir / "output" / "gguf").mkdir(parents=True)
    (job_dir / "output" / "gguf" / FILE).write_bytes(CONTENT)
    (job_dir / "job.log").write_text("log")
    values = here.model_dump() | {
        "job_dir": str(job_dir),
        "size": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
    }
    return ExportedGGUF.model_validate(values)


def deliver(exported: ExportedGGUF) -> dict[str, Any]:
    operator = DeliverGGUFOperator(task_id="deliver_gguf", exported=exported.plain())
    return operator.execute(task_context())


def in_run(exported: ExportedGGUF, *path: str) -> Path:
    return Path(exported.runs_dir, exported.run_id, *path)


def test_the_gguf_its_modelfile_and_its_record_are_in_the_run(exported: ExportedGGUF) -> None:
    delivered = deliver(exported)
    gguf = in_run(exported, "output", "gguf", FILE)
    assert gguf.read_bytes() == CONTENT
    assert Path(delivered["gguf"]) == gguf
    modelfile = Path(delivered["modelfile"]).read_text()
    assert modelfile == f"FROM ./{FILE}\nPARAMETER num_ctx 2048\n"
    record = json.loads(in_run(exported, "exports", EXPORT_ID, "export.json").read_text())
    assert record == delivered["record"]
    assert record["sha256"] == exported.sha256


def test_what_was_staged_is_gone_and_the_jobs_log_stays(exported: ExportedGGUF) -> None:
    deliver(exported)
    job_dir = Path(exported.job_dir)
    assert not (job_dir / "output").exists()
    assert (job_dir / "job.log").read_text() == "log"
    assert not in_run(exported, "exports", EXPORT_ID, "output").exists()


def test_a_gguf_of_the_same_name_is_replaced(exported: ExportedGGUF) -> None:
    before = in_run(exported, "output", "gguf", FILE)
    before.parent.mkdir()
    before.write_bytes(b"old")
    deliver(exported)
    assert before.read_bytes() == CONTENT


def test_a_gguf_that_is_not_what_the_job_made_replaces_nothing(exported: ExportedGGUF) -> None:
    before = in_run(exported, "output", "gguf", FILE)
    before.parent.mkdir()
    before.write_bytes(b"old")
    Path(exported.job_dir, "output", "gguf", FILE).write_bytes(b"a bad gguf")
    with pytest.raises(TransferError, match=f"{FILE}.*changed since it was made"):
        deliver(exported)
    assert before.read_bytes() == b"old"
    assert [path.name for path in before.parent.iterdir()] == [FILE]
    assert not in_run(exported, "exports", EXPORT_ID, "export.json").exists()


def test_a_missing_gguf_replaces_nothing(exported: ExportedGGUF) -> None:
    before = in_run(exported, "output", "gguf", FILE)
    before.parent.mkdir()
    before.write_bytes(b"old")
    Path(exported.job_dir, "output", "gguf", FILE).unlink()
    with pytest.raises(OverbrainerError, match=FILE):
        deliver(exported)
    assert before.read_bytes() == b"old"


def test_delivering_twice_delivers_once(exported: ExportedGGUF) -> None:
    first = deliver(exported)
    again = deliver(exported)
    assert again["record"] | {"created": ""} == first["record"] | {"created": ""}
    assert Path(again["gguf"]).read_bytes() == CONTENT


def test_a_file_that_arrives_damaged_once_is_fetched_again(
    tmp_path: Path, connect: MakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    make_run(tmp_path / "runs", "my-run")
    exported = finished(tmp_path, "gpu")
    damage_arrivals(monkeypatch, times=1)
    assert Path(deliver(exported)["gguf"]).read_bytes() == CONTENT


def test_a_file_that_arrives_damaged_twice_is_an_error(
    tmp_path: Path, connect: MakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    make_run(tmp_path / "runs", "my-run")
    exported = finished(tmp_path, "gpu")
    damage_arrivals(monkeypatch, times=2)
    with pytest.raises(TransferError, match="twice"):
        deliver(exported)
    assert not in_run(exported, "output", "gguf").exists()


def damage_arrivals(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Flip a byte of what arrives of the next answers of a machine."""
    left = [times]
    receive: Callable[..., Any] = SSHPipe.receive

    async def damaged(self: SSHPipe, size: int, sink: Callable[[bytes], None]) -> None:
        def flip(data: bytes) -> None:
            if left[0]:
                left[0] -= 1
                data = bytes([data[0] ^ 1]) + data[1:]
            sink(data)

        await receive(self, size, flip)

    monkeypatch.setattr(SSHPipe, "receive", damaged)


def test_an_unreachable_machine_is_named(
    tmp_path: Path, connect: MakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    make_run(tmp_path / "runs", "my-run")
    exported = finished(tmp_path, "gpu")
    connect(port=1)
    with pytest.raises(MachineError, match=r"gpu \(127.0.0.1\): it cannot be reached"):
        deliver(exported)
