"""How the whole script ends when something of an export fails, run for real."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from tests.support.export_sh import Export
from tests.support.fake_llama_cpp import TAG, make_mirror
from tests.support.runs import FULL, make_run, write_files
from tests.support.stack import until

NO_LIBRARY = "libc.so.6: version GLIBC_2.38 not found (required by llama-quantize)"
CUT_OFF = """
import os, types
class GGUFReader:
    def __init__(self, path):
        size = os.path.getsize(path)
        self.tensors = [types.SimpleNamespace(data_offset=size, n_bytes=1)]
"""


@pytest.fixture
def job_dir(runs_dir: Path) -> Path:
    """Return the job directory, in a full model's run, in which an earlier try left its GGUF."""
    path = make_run(runs_dir, "my-run", files=FULL) / "exports" / "job"
    write_files(path / "output" / "gguf", {"my-run-Q4_K_M.gguf": "old"})
    return path


def in_place(release: LlamaCppRelease) -> ExportJob:
    return ExportJob.in_place("my-run", "Q4_K_M", "output", release=release)


def assert_left_as_it_was(job_dir: Path) -> None:
    """Check that nothing but the script has come into the job directory."""
    left = sorted(str(path.relative_to(job_dir)) for path in job_dir.rglob("*"))
    assert left == ["export.sh", "output", "output/gguf", "output/gguf/my-run-Q4_K_M.gguf"]
    assert (job_dir / "output" / "gguf" / "my-run-Q4_K_M.gguf").read_text() == "old"


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("echo bad tensor; exit 7", 7, "quantize failed with exit code 7"),
        ("kill -9 $$", 137, "quantize was killed, most likely out of memory: this machine has"),
        ("exit 137", 137, "quantize was killed, most likely out of memory: this machine has"),
        ("kill -11 $$", 139, "quantize failed with exit code 139"),
        ("echo 'No space left on device'; exit 1", 1, "quantize failed because the disk is full"),
        ("echo 'Disk quota exceeded'; exit 2", 2, "quantize failed because the disk is full"),
        ("echo 'basic_ios: iostream error'; exit 1", 1, "because the disk is full"),
        (f"echo '{NO_LIBRARY}'; exit 1", 1, "need a newer C library than this machine's"),
        (r"printf '\303\251 \377\200 bad'; exit 3", 3, "quantize failed with exit code 3"),
    ],
)
def test_a_program_that_fails_ends_the_export_with_its_exit_code_and_what_is_known_of_it(
    script: str, status: int, said: str, tmp_path: Path, job_dir: Path, export: Export
) -> None:
    release = make_mirror(tmp_path / "mirror", f'echo half >"$2"; exec >&2; {script}')
    done = export(in_place(release), job_dir)
    assert done.returncode == status
    assert done.stderr.startswith("export: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (done.stdout + done.stderr).isascii()
    assert_left_as_it_was(job_dir)


def test_what_a_failed_program_said_is_passed_on_in_ascii(
    tmp_path: Path, job_dir: Path, export: Export
) -> None:
    release = make_mirror(tmp_path / "mirror", r"printf 'caf\303\251 \377 bad tensor' >&2; exit 3")
    done = export(in_place(release), job_dir)
    assert done.stdout.splitlines()[-1] == "caf? ? bad tensor"


def test_a_conversion_that_fails_ends_the_export_with_its_exit_code(
    tmp_path: Path, job_dir: Path, export: Export
) -> None:
    convert = "import sys; sys.exit('Model FooForCausalLM is not supported')"
    done = export(in_place(make_mirror(tmp_path / "mirror", convert=convert)), job_dir)
    assert done.returncode == 1
    assert "Model FooForCausalLM is not supported\n" in done.stdout
    assert done.stderr == "export: convert failed with exit code 1\n"
    assert_left_as_it_was(job_dir)


@pytest.mark.parametrize("convert", ["", "import sys; open(sys.argv[-1], 'w').close()"])
def test_a_conversion_that_leaves_no_content_is_told_as_such(
    convert: str, tmp_path: Path, job_dir: Path, export: Export
) -> None:
    done = export(in_place(make_mirror(tmp_path / "mirror", convert=convert)), job_dir)
    assert done.returncode == 1
    assert done.stderr == f"export: convert left no file {job_dir}/scratch/converted.gguf\n"
    assert_left_as_it_was(job_dir)


@pytest.mark.parametrize(
    ("quantize", "gguf", "said"),
    [
        (":", "class GGUFReader:\n    def __init__(self, path): open(path)\n", "no complete GGUF"),
        ('echo x >"$2"', "def GGUFReader(path): raise ValueError('magic')\n", "file: magic"),
        ('echo x >"$2"', "class GGUFReader:\n    def __init__(self, _): self.tensors = []\n", "no"),
        ('echo x >"$2"', CUT_OFF, "is cut off: its tensors end at 3, the file at 2"),
    ],
    ids=["absent", "other format", "no tensors", "cut off"],
)
def test_a_gguf_that_is_not_complete_is_no_result(
    quantize: str, gguf: str, said: str, tmp_path: Path, job_dir: Path, export: Export
) -> None:
    done = export(in_place(make_mirror(tmp_path / "mirror", quantize, gguf=gguf)), job_dir)
    assert done.returncode == 1
    assert said in done.stdout.splitlines()[-1]
    assert done.stderr == "export: check failed with exit code 1\n"
    assert_left_as_it_was(job_dir)


def test_a_merge_that_fails_ends_the_export_with_its_exit_code(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    job_dir = make_run(runs_dir, "adapter") / "exports" / "job"
    export.add_program("axolotl", "kill -9 $$")
    done = export(ExportJob.in_place("adapter", "F16", "output", release=release), job_dir)
    assert done.returncode == 137
    assert done.stderr.startswith("export: merge was killed, most likely out of memory")
    assert not (job_dir / "scratch").exists()


def test_a_merge_that_leaves_no_model_is_told_as_such(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    job_dir = make_run(runs_dir, "adapter") / "exports" / "job"
    export.add_program("axolotl", ":")
    done = export(ExportJob.in_place("adapter", "F16", "output", release=release), job_dir)
    assert done.returncode == 1
    assert done.stderr == f"export: merge left no model in {job_dir}/scratch/merge/merged\n"


@pytest.mark.parametrize("text", ["- a\n", "a: b: c\n", ""])
def test_a_config_that_is_no_mapping_is_named(
    text: str, runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "adapter")
    (run_dir / "axolotl.yaml").write_text(text)
    job_dir = run_dir / "exports" / "job"
    done = export(ExportJob.in_place("adapter", "F16", "output", release=release), job_dir)
    assert done.returncode == 1
    assert done.stderr.endswith("export: cannot read ../../axolotl.yaml\n")
    assert not (job_dir / "scratch").exists()


def stop(process: "subprocess.Popen[str]", signum: int) -> int:
    """Stop a job as a machine does, with a signal to its group, and return its exit code."""
    os.killpg(process.pid, signum)
    process.communicate(timeout=30)
    return process.returncode


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_an_export_that_is_stopped_leaves_nothing_behind(
    signum: int, status: int, tmp_path: Path, job_dir: Path, export: Export
) -> None:
    release = make_mirror(tmp_path / "mirror", 'echo half >"$2"; : >"$READY"; sleep 60')
    with export.started(in_place(release), job_dir) as process:
        until((tmp_path / "ready").exists, "llama-quantize runs")
        assert stop(process, signum) == status
    assert_left_as_it_was(job_dir)


def test_an_export_that_is_stopped_while_it_fetches_leaves_no_archive(
    tmp_path: Path, job_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    source = tmp_path / "mirror" / "archive" / "refs" / "tags" / f"{TAG}.tar.gz"
    source.unlink()
    os.mkfifo(source)  # a mirror that never answers
    cache = tmp_path / "cache" / "llama.cpp" / TAG
    with export.started(in_place(release), job_dir) as process:
        until(lambda: list(cache.glob(".fetch.*")), "the fetch has begun")
        assert stop(process, signal.SIGTERM) == 143
    assert list(cache.iterdir()) == []
    assert_left_as_it_was(job_dir)


@pytest.mark.parametrize("name", ["torch", "numpy", "transformers"])
def test_a_python_that_lacks_a_module_is_told_with_the_setting_to_change(
    name: str, tmp_path: Path, runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    (tmp_path / "modules" / f"{name}.py").unlink()
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    done = export(ExportJob.in_job("my-run", "F16", release), run_dir)
    assert done.returncode == 1
    assert done.stderr.startswith("export: ")
    assert f"/python3 lacks {name}: install what is missing" in done.stderr
    assert "the setting venv" in done.stderr


def test_an_adapter_without_axolotl_on_the_machine_is_told_as_such(
    tmp_path: Path, runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    (tmp_path / "bin" / "axolotl").unlink()
    run_dir = make_run(runs_dir, "my-run")
    done = export(ExportJob.in_job("my-run", "F16", release), run_dir)
    assert done.returncode == 1
    assert done.stderr.startswith("export: there is no axolotl beside ")


def test_a_directory_without_a_model_is_told_with_what_a_model_has(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", files={"tokenizer.json": "{}"})
    done = export(ExportJob.in_job("my-run", "F16", release), run_dir)
    assert done.returncode == 1
    message = "export: there is no model in output: neither adapter_config.json nor config.json\n"
    assert done.stderr == message


def test_a_job_without_its_config_is_told_so(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    (run_dir / "axolotl.yaml").unlink()
    done = export(ExportJob.in_job("my-run", "F16", release), run_dir)
    assert done.returncode == 1
    assert done.stderr.startswith("export: there is no axolotl.yaml: ")
