import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from overbrainer_airflow.errors import DeliveryError, NoGGUFError
from overbrainer_airflow.export.delivery import Delivered, ExportRecord, deliver
from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from overbrainer_airflow.export.staging import prepare
from tests.support.runs import make_run, write_files

FILE = "my-run-Q4_K_M.gguf"
CONTENT = "a new gguf"
DIGEST = hashlib.sha256(CONTENT.encode()).hexdigest()
NOW = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=timezone.utc)
RECORD_TEXT = f"""\
{{
  "quantize": "Q4_K_M",
  "llama_cpp": "b11320",
  "file": "output/gguf/my-run-Q4_K_M.gguf",
  "sha256": "{DIGEST}",
  "size": 10,
  "created": "2026-01-02T03:04:05Z"
}}
"""


@pytest.fixture
def run_dir(runs_dir: Path) -> Path:
    """Return a succeeded run."""
    return make_run(runs_dir, "my-run")


@pytest.fixture
def job_dir(run_dir: Path) -> Path:
    """Return the directory of a staged job that has made its GGUF."""
    path = run_dir / "exports" / "export_20260102-030405-0123abcd"
    prepare(ExportJob.staged("my-run", "Q4_K_M", run_dir, "output"), path)
    write_files(path, {f"output/gguf/{FILE}": CONTENT, "job.log": "log"})
    return path


def test_the_gguf_moves_into_the_output_of_its_run(run_dir: Path, job_dir: Path) -> None:
    made = (job_dir / "output" / "gguf" / FILE).stat().st_ino
    delivered = deliver(run_dir, job_dir, FILE)
    assert delivered.gguf == run_dir / "output" / "gguf" / FILE
    assert delivered.gguf.stat().st_ino == made


def test_a_gguf_of_the_same_name_is_replaced_and_others_stay(run_dir: Path, job_dir: Path) -> None:
    write_files(run_dir / "output" / "gguf", {FILE: "old", "my-run-Q8_0.gguf": "other"})
    deliver(run_dir, job_dir, FILE)
    assert (run_dir / "output" / "gguf" / FILE).read_text() == CONTENT
    assert (run_dir / "output" / "gguf" / "my-run-Q8_0.gguf").read_text() == "other"


def test_an_empty_gguf_replaces_nothing(run_dir: Path, job_dir: Path) -> None:
    write_files(run_dir / "output" / "gguf", {FILE: "old"})
    (job_dir / "output" / "gguf" / FILE).write_bytes(b"")
    with pytest.raises(DeliveryError, match="is empty"):
        deliver(run_dir, job_dir, FILE)
    assert (run_dir / "output" / "gguf" / FILE).read_text() == "old"
    assert not (job_dir / "export.json").exists()


def test_export_json_in_the_job_directory_records_the_gguf(run_dir: Path, job_dir: Path) -> None:
    delivered = deliver(run_dir, job_dir, FILE, now=NOW)
    assert (job_dir / "export.json").read_text() == RECORD_TEXT
    assert ExportRecord.read(job_dir / "export.json") == delivered.record


def test_the_record_says_when_it_was_written(run_dir: Path, job_dir: Path) -> None:
    before = datetime.now(timezone.utc).replace(microsecond=0)
    created = deliver(run_dir, job_dir, FILE).record.created
    written = datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert before <= written <= datetime.now(timezone.utc)


def test_the_record_names_the_release_that_made_the_gguf(run_dir: Path, job_dir: Path) -> None:
    release = LlamaCppRelease(tag="b1", url="file:///srv/mirror", source_sha256="0" * 64)
    assert deliver(run_dir, job_dir, FILE, release=release).record.llama_cpp == "b1"


def test_the_modelfile_stands_beside_the_gguf(run_dir: Path, job_dir: Path) -> None:
    delivered = deliver(run_dir, job_dir, FILE)
    assert delivered.modelfile == run_dir / "output" / "gguf" / "Modelfile"
    assert delivered.modelfile.read_text() == f"FROM ./{FILE}\nPARAMETER num_ctx 2048\n"


def test_the_context_length_is_that_of_the_run_and_not_of_the_staged_config(
    run_dir: Path, job_dir: Path
) -> None:
    (job_dir / "axolotl.yaml").unlink()
    (job_dir / "axolotl.yaml").write_text("sequence_len: 1\n")
    assert "num_ctx 2048\n" in deliver(run_dir, job_dir, FILE).modelfile.read_text()


def test_what_was_staged_is_removed_and_the_records_of_the_job_stay(
    run_dir: Path, job_dir: Path
) -> None:
    deliver(run_dir, job_dir, FILE)
    left = sorted(path.name for path in job_dir.iterdir())
    assert left == ["export.json", "export.sh", "job.log"]
    assert (run_dir / "output" / "adapter_model.safetensors").read_text() == "weights"


def test_a_digest_that_was_computed_on_arrival_is_recorded_as_it_is(
    run_dir: Path, job_dir: Path
) -> None:
    assert deliver(run_dir, job_dir, FILE, digest="1" * 64).record.sha256 == "1" * 64


def test_a_delivery_leaves_no_unfinished_files(run_dir: Path, job_dir: Path) -> None:
    deliver(run_dir, job_dir, FILE)
    assert list(run_dir.rglob("*.part")) == []


def test_an_export_in_a_training_job_is_delivered_where_it_is(run_dir: Path) -> None:
    write_files(run_dir / "output" / "gguf", {FILE: CONTENT})
    delivered = deliver(run_dir, run_dir, FILE, now=NOW)
    assert delivered.gguf.read_text() == CONTENT
    assert delivered.modelfile.is_file()
    assert (run_dir / "export.json").read_text() == RECORD_TEXT
    assert (run_dir / "output" / "adapter_model.safetensors").is_file()
    assert (run_dir / "axolotl.yaml").is_file()


def test_a_job_that_left_no_gguf_is_an_error_that_names_the_directory(
    run_dir: Path, job_dir: Path
) -> None:
    (job_dir / "output" / "gguf" / FILE).unlink()
    with pytest.raises(NoGGUFError) as caught:
        deliver(run_dir, job_dir, FILE)
    assert f"no GGUF file {FILE} in {job_dir / 'output' / 'gguf'}" in str(caught.value)


def test_a_training_job_that_left_no_gguf_is_an_error_that_names_the_directory(
    run_dir: Path,
) -> None:
    with pytest.raises(NoGGUFError) as caught:
        deliver(run_dir, run_dir, FILE)
    assert str(run_dir / "output" / "gguf") in str(caught.value)


def test_a_job_that_left_no_gguf_leaves_the_earlier_delivery_untouched(
    run_dir: Path, job_dir: Path
) -> None:
    (job_dir / "output" / "gguf" / FILE).unlink()
    write_files(run_dir / "output" / "gguf", {FILE: "old", "Modelfile": "old"})
    with pytest.raises(NoGGUFError):
        deliver(run_dir, job_dir, FILE)
    assert (run_dir / "output" / "gguf" / FILE).read_text() == "old"
    assert (run_dir / "output" / "gguf" / "Modelfile").read_text() == "old"
    assert not (job_dir / "export.json").exists()


def test_a_gguf_that_is_a_directory_is_no_gguf(run_dir: Path, job_dir: Path) -> None:
    (job_dir / "output" / "gguf" / FILE).unlink()
    (job_dir / "output" / "gguf" / FILE).mkdir()
    with pytest.raises(NoGGUFError):
        deliver(run_dir, job_dir, FILE)


def interrupt(run_dir: Path, job_dir: Path) -> None:
    """Move the GGUF, as a delivery does that was killed right after."""
    (run_dir / "output" / "gguf").mkdir()
    (job_dir / "output" / "gguf" / FILE).rename(run_dir / "output" / "gguf" / FILE)


def test_a_delivery_that_was_interrupted_is_completed_by_the_digest(
    run_dir: Path, job_dir: Path
) -> None:
    interrupt(run_dir, job_dir)
    delivered = deliver(run_dir, job_dir, FILE, digest=DIGEST, now=NOW)
    assert delivered.gguf.read_text() == CONTENT
    assert delivered.modelfile.is_file()
    assert (job_dir / "export.json").read_text() == RECORD_TEXT
    assert not (job_dir / "output").exists()


@pytest.mark.parametrize("digest", [None, "0" * 64])
def test_a_gguf_of_the_run_that_is_not_known_to_be_the_job_s_is_not_taken_for_it(
    digest: str | None, run_dir: Path, job_dir: Path
) -> None:
    interrupt(run_dir, job_dir)
    with pytest.raises(NoGGUFError):
        deliver(run_dir, job_dir, FILE, digest=digest)


def test_delivering_again_is_the_same_delivery(run_dir: Path, job_dir: Path) -> None:
    first = deliver(run_dir, job_dir, FILE, now=NOW)
    again = deliver(run_dir, job_dir, FILE, digest=DIGEST, now=NOW)
    assert again == first == Delivered(first.gguf, first.modelfile, first.record)


def test_the_record_is_written_last(run_dir: Path, job_dir: Path) -> None:
    (run_dir / "output" / "gguf" / "Modelfile").mkdir(parents=True)
    with pytest.raises(OSError, match="Modelfile"):
        deliver(run_dir, job_dir, FILE)
    assert not (job_dir / "export.json").exists()


@pytest.mark.parametrize("file_name", ["my-run.gguf", "my-run-Q9_K.gguf", "my-run-Q4_K_M.bin"])
def test_a_file_without_a_known_type_in_its_name_is_not_delivered(
    file_name: str, run_dir: Path, job_dir: Path
) -> None:
    write_files(job_dir / "output" / "gguf", {file_name: CONTENT})
    with pytest.raises(DeliveryError, match="quantize type") as caught:
        deliver(run_dir, job_dir, file_name)
    assert file_name in str(caught.value)
    assert not (run_dir / "output" / "gguf").exists()


def test_a_record_of_a_newer_writer_survives_reading_and_writing(tmp_path: Path) -> None:
    text = RECORD_TEXT.replace("\n}\n", ',\n  "imatrix": {\n    "dataset": "é"\n  }\n}\n')
    path = tmp_path / "export.json"
    path.write_text(text, encoding="utf-8")
    assert ExportRecord.read(path).text() == text


@pytest.mark.parametrize(
    ("change", "fault"),
    [({"size": -1}, "size: "), ({"sha256": None}, "sha256: "), ({"size": "ten"}, "size: ")],
)
def test_a_file_that_is_no_export_record_is_named_with_its_fault(
    change: dict[str, object], fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(json.loads(RECORD_TEXT) | change))
    with pytest.raises(DeliveryError) as caught:
        ExportRecord.read(path)
    assert f"{path} is not an export record: {fault}" in str(caught.value)


def test_a_record_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="No such file") as caught:
        ExportRecord.read(tmp_path / "export.json")
    assert str(tmp_path / "export.json") in str(caught.value)
