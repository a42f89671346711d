import os
from pathlib import Path

import pytest

from overbrainer_airflow.errors import RunNotReadyError
from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.script import export_script
from overbrainer_airflow.export.staging import discard_staged, link_file, model_files, prepare
from tests.support.runs import ADAPTER, make_run, write_files

EXPORT_ID = "export_20260102-030405-0123abcd"


@pytest.fixture
def run_dir(runs_dir: Path) -> Path:
    """Return a run with two checkpoints, an earlier GGUF, and files in folders."""
    path = make_run(runs_dir, "my-run")
    write_files(path / "output" / "checkpoint-10", ADAPTER)
    write_files(path / "output" / "checkpoint-20", ADAPTER | {"deep/state.json": "{}"})
    write_files(path / "output" / "gguf", {"my-run-Q8_0.gguf": "gguf", "Modelfile": "FROM"})
    write_files(path / "output", {"templates/chat.jinja": "chat", "gguf.log": "log"})
    return path


@pytest.fixture
def job_dir(run_dir: Path) -> Path:
    """Return the job directory of an export, which is not made yet."""
    return run_dir / "exports" / EXPORT_ID


def stage(run_dir: Path, job_dir: Path, model: str = "output") -> list[str]:
    """Stage ``model`` and return every file of the job directory."""
    prepare(ExportJob.staged("my-run", "Q4_K_M", run_dir, model), job_dir)
    return sorted(str(path.relative_to(job_dir)) for path in job_dir.rglob("*") if path.is_file())


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hard links fail as they do between two file systems."""

    def link(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link", str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)


def test_a_staged_job_holds_the_script_the_config_and_the_model(
    run_dir: Path, job_dir: Path
) -> None:
    assert stage(run_dir, job_dir) == [
        "axolotl.yaml",
        "export.sh",
        "output/adapter_config.json",
        "output/adapter_model.safetensors",
        "output/templates/chat.jinja",
    ]


def test_a_checkpoint_is_staged_when_it_is_the_model(run_dir: Path, job_dir: Path) -> None:
    assert stage(run_dir, job_dir, "output/checkpoint-20") == [
        "axolotl.yaml",
        "export.sh",
        "output/checkpoint-20/adapter_config.json",
        "output/checkpoint-20/adapter_model.safetensors",
        "output/checkpoint-20/deep/state.json",
    ]


def test_a_checkpoint_that_is_the_model_is_staged_whole(run_dir: Path, job_dir: Path) -> None:
    write_files(run_dir / "output" / "checkpoint-20", {"gguf.json": "{}", "checkpoint-1": "x"})
    staged = stage(run_dir, job_dir, "output/checkpoint-20")
    assert "output/checkpoint-20/gguf.json" in staged
    assert "output/checkpoint-20/checkpoint-1" in staged


def test_only_the_top_of_the_output_is_searched_for_what_is_not_staged(
    run_dir: Path, job_dir: Path
) -> None:
    write_files(run_dir / "output" / "merged", {"gguf-py.json": "{}", "checkpoint-1": "x"})
    staged = stage(run_dir, job_dir)
    assert "output/merged/gguf-py.json" in staged
    assert "output/merged/checkpoint-1" in staged


@pytest.mark.parametrize(
    "job",
    [ExportJob.in_job("my-run", "F16"), ExportJob.in_place("my-run", "F16", "output")],
    ids=["in_job", "in_place"],
)
def test_a_job_where_the_run_is_gets_its_script_and_nothing_else(
    job: ExportJob, job_dir: Path
) -> None:
    prepare(job, job_dir)
    assert [path.name for path in job_dir.iterdir()] == ["export.sh"]


def test_the_script_in_the_job_directory_is_the_whole_script(run_dir: Path, job_dir: Path) -> None:
    stage(run_dir, job_dir)
    assert (job_dir / "export.sh").read_text(encoding="utf-8") == export_script()


def test_staged_files_are_the_same_files_as_the_run_has(run_dir: Path, job_dir: Path) -> None:
    stage(run_dir, job_dir)
    for name in ("axolotl.yaml", "output/adapter_model.safetensors", "output/templates/chat.jinja"):
        assert (job_dir / name).stat().st_ino == (run_dir / name).stat().st_ino


def test_files_on_another_file_system_are_copied(
    run_dir: Path, job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch)
    stage(run_dir, job_dir)
    copied, original = (path / "output/adapter_model.safetensors" for path in (job_dir, run_dir))
    assert copied.read_bytes() == original.read_bytes()
    assert copied.stat().st_ino != original.stat().st_ino


def test_staging_again_brings_what_the_run_has_now(run_dir: Path, job_dir: Path) -> None:
    stage(run_dir, job_dir)
    config = run_dir / "axolotl.yaml"
    config.unlink()
    config.write_text("base_model: other\n")
    stage(run_dir, job_dir)
    assert (job_dir / "axolotl.yaml").read_text() == "base_model: other\n"


def test_a_link_replaces_the_file_that_was_there(tmp_path: Path) -> None:
    write_files(tmp_path, {"from": "new", "to": "old"})
    link_file(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to").stat().st_ino == (tmp_path / "from").stat().st_ino


def test_a_copy_replaces_the_link_that_was_there_and_not_what_it_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch)
    write_files(tmp_path, {"from": "new", "precious": "old"})
    (tmp_path / "to").symlink_to("precious")
    link_file(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to").read_text() == "new"
    assert (tmp_path / "precious").read_text() == "old"


def test_the_config_comes_first_of_the_files_that_an_export_reads(run_dir: Path) -> None:
    names = [str(path.relative_to(run_dir)) for path in model_files(run_dir, "output")]
    assert names == [
        "axolotl.yaml",
        "output/adapter_config.json",
        "output/adapter_model.safetensors",
        "output/templates/chat.jinja",
    ]


def test_a_symbolic_link_inside_the_run_arrives_as_the_content_it_names(
    run_dir: Path, job_dir: Path
) -> None:
    write_files(run_dir / "shared", {"tokenizer.json": "tokens"})
    (run_dir / "output" / "tokenizer.json").symlink_to("../shared/tokenizer.json")
    stage(run_dir, job_dir)
    arrived = job_dir / "output" / "tokenizer.json"
    assert not arrived.is_symlink()
    assert arrived.read_text() == "tokens"


@pytest.mark.parametrize("where", ["output/tokenizer.json", "axolotl.yaml", "output/templates/x"])
def test_a_symbolic_link_that_leaves_the_run_is_refused(
    where: str, run_dir: Path, job_dir: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (run_dir / where).unlink(missing_ok=True)
    (run_dir / where).symlink_to(secret)
    with pytest.raises(RunNotReadyError) as caught:
        stage(run_dir, job_dir)
    assert f"run my-run: {run_dir / where} links to {secret}, outside the run" in str(caught.value)
    assert "put the file itself into the run" in str(caught.value)


def test_a_symbolic_link_to_a_directory_outside_the_run_is_refused(
    run_dir: Path, job_dir: Path, tmp_path: Path
) -> None:
    write_files(tmp_path / "elsewhere", {"secret": "secret"})
    (run_dir / "output" / "more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunNotReadyError, match="outside the run"):
        stage(run_dir, job_dir)


def test_a_run_that_is_itself_a_link_is_staged(run_dir: Path, runs_dir: Path) -> None:
    moved = runs_dir.parent / "big-disk"
    run_dir.rename(moved)
    run_dir.symlink_to(moved)
    (moved / "output" / "tokenizer.json").symlink_to("templates/chat.jinja")
    assert "output/tokenizer.json" in stage(run_dir, run_dir / "exports" / EXPORT_ID)


def test_a_fifo_in_the_model_is_refused(run_dir: Path, job_dir: Path) -> None:
    os.mkfifo(run_dir / "output" / "pipe")
    with pytest.raises(RunNotReadyError) as caught:
        stage(run_dir, job_dir)
    assert f"{run_dir / 'output' / 'pipe'} is not a file that can be sent" in str(caught.value)
    assert "regular file" in str(caught.value)


def test_a_dangling_link_in_the_model_is_refused(run_dir: Path, job_dir: Path) -> None:
    (run_dir / "output" / "tokenizer.json").symlink_to("absent")
    with pytest.raises(RunNotReadyError, match="is not a file that can be sent"):
        stage(run_dir, job_dir)


@pytest.mark.parametrize("target", [".", "..", "templates"])
def test_a_link_to_a_directory_of_the_run_is_refused_and_not_followed(
    target: str, run_dir: Path, job_dir: Path
) -> None:
    (run_dir / "output" / "more").symlink_to(target)
    with pytest.raises(RunNotReadyError, match="output/more is not a file that can be sent"):
        stage(run_dir, job_dir)


def test_a_link_to_itself_in_the_model_is_refused(run_dir: Path, job_dir: Path) -> None:
    (run_dir / "output" / "tokenizer.json").symlink_to("tokenizer.json")
    with pytest.raises(RunNotReadyError, match=r"tokenizer\.json is not a file that can be sent"):
        stage(run_dir, job_dir)


def test_a_copy_keeps_the_time_of_its_original(
    run_dir: Path, job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch)
    os.utime(run_dir / "axolotl.yaml", (100, 100))
    stage(run_dir, job_dir)
    assert (job_dir / "axolotl.yaml").stat().st_mtime == 100


def test_discarding_leaves_the_records_of_the_job_and_the_run_as_it_was(
    run_dir: Path, job_dir: Path
) -> None:
    stage(run_dir, job_dir)
    write_files(job_dir, {"job.log": "log", "output/gguf/my-run-Q4_K_M.gguf": "gguf"})
    discard_staged(run_dir, job_dir)
    assert sorted(path.name for path in job_dir.iterdir()) == ["export.sh", "job.log"]
    assert (run_dir / "axolotl.yaml").is_file()
    assert (run_dir / "output" / "adapter_model.safetensors").read_text() == "weights"


def test_discarding_twice_or_before_anything_was_staged_is_no_error(
    run_dir: Path, job_dir: Path
) -> None:
    discard_staged(run_dir, job_dir)
    stage(run_dir, job_dir)
    discard_staged(run_dir, job_dir)
    discard_staged(run_dir, job_dir)
    assert [path.name for path in job_dir.iterdir()] == ["export.sh"]


def test_discarding_an_export_in_a_training_job_keeps_the_run(run_dir: Path) -> None:
    discard_staged(run_dir, run_dir)
    assert (run_dir / "axolotl.yaml").is_file()
    assert (run_dir / "output" / "gguf" / "my-run-Q8_0.gguf").is_file()


@pytest.mark.parametrize("spelled", ["my-run", "my-run/output/..", "link"])
def test_discarding_keeps_the_run_when_its_directory_is_spelled_another_way(
    spelled: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    Path("link").symlink_to("my-run")
    discard_staged(Path(spelled), run_dir)
    assert (run_dir / "output" / "adapter_model.safetensors").is_file()
