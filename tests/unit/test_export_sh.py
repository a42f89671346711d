"""The whole script, run for real on a release whose programs write what they were asked for."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from overbrainer_airflow.export.staging import prepare
from tests.support.fake_llama_cpp import make_mirror
from tests.support.runs import ADAPTER, FULL, make_run, write_files

#: Stands for axolotl: keeps the config that it was given, and leaves a merged model.
AXOLOTL = """#!/bin/sh
cp "$2" "$SEEN"
python3 - "$2" <<'PYTHON'
import pathlib, sys, yaml
merged = pathlib.Path(yaml.safe_load(open(sys.argv[1]))["output_dir"]) / "merged"
merged.mkdir(parents=True)
(merged / "config.json").write_text("{}")
PYTHON
"""
MERGED = {f"merged/{name}": text for name, text in FULL.items()}

#: Runs a job in a run's directory and returns the process.
Export = Callable[[ExportJob, Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def release(tmp_path: Path) -> LlamaCppRelease:
    """Return a release whose mirror is a directory."""
    return make_mirror(tmp_path / "mirror")


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Return the file in which axolotl keeps the config of its merge."""
    return tmp_path / "merge.yaml"


@pytest.fixture
def export(tmp_path: Path, seen: Path) -> Export:
    """Return a function that prepares a job and runs it as a machine does."""
    write_files(tmp_path / "modules", {f"{name}.py": "" for name in ("torch", "transformers")})
    write_files(tmp_path / "modules", {"numpy.py": ""})
    write_files(tmp_path / "bin", {"axolotl": AXOLOTL})
    (tmp_path / "bin" / "axolotl").chmod(0o755)

    def run(job: ExportJob, job_dir: Path) -> "subprocess.CompletedProcess[str]":
        prepare(job, job_dir)
        return subprocess.run(
            [sys.executable, *job.command()[1:]],
            cwd=job_dir,
            env={
                "PATH": f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin",
                "PYTHONPATH": str(tmp_path / "modules"),
                "SEEN": str(seen),
                "OVERBRAINER_CACHE": str(tmp_path / "cache"),
                **job.env(str(job_dir)),
            },
            check=False,
            capture_output=True,
            text=True,
        )

    return run


def made(job: ExportJob, job_dir: Path) -> str:
    return (job_dir / "output" / "gguf" / job.file_name).read_text()


def test_a_staged_model_is_converted_quantized_and_checked(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    job = ExportJob.staged("my-run", "Q4_K_M", run_dir, "output", release)
    job_dir = run_dir / "exports" / "job"
    done = export(job, job_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert made(job, job_dir) == "Q4_K_M of auto of output"
    assert "export: checked 1 tensors" in done.stdout
    assert done.stdout.endswith("export: made output/gguf/my-run-Q4_K_M.gguf\n")


def test_an_in_place_export_reads_the_run_and_writes_its_own_directory(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", model="output/checkpoint-20", files=FULL)
    job = ExportJob.in_place("my-run", "Q8_0", "output/checkpoint-20", release=release)
    job_dir = run_dir / "exports" / "job"
    assert export(job, job_dir).returncode == 0
    assert made(job, job_dir) == "Q8_0 of auto of checkpoint-20"
    assert not (run_dir / "output" / "gguf").exists()


def test_an_export_in_a_training_job_writes_into_the_run(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    job = ExportJob.in_job("my-run", "Q6_K", release)
    assert export(job, run_dir).returncode == 0
    assert made(job, run_dir) == "Q6_K of auto of output"


@pytest.mark.parametrize(("quantize", "outtype"), [("F16", "f16"), ("BF16", "bf16")])
def test_a_float_type_is_written_by_the_conversion_alone(
    quantize: str, outtype: str, runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    job = ExportJob.in_job("my-run", quantize, release)
    assert export(job, run_dir).returncode == 0
    assert made(job, run_dir) == f"{outtype} of output"


def test_an_adapter_is_merged_first(
    runs_dir: Path, release: LlamaCppRelease, export: Export, seen: Path
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    job = ExportJob.in_job("my-run", "Q4_K_M", release)
    assert export(job, run_dir).returncode == 0
    assert made(job, run_dir) == "Q4_K_M of auto of merged"
    assert yaml.safe_load(seen.read_text())["lora_model_dir"] == str(run_dir / "output")


def test_a_merge_is_told_nothing_of_plugins_resuming_or_the_hub(
    runs_dir: Path, release: LlamaCppRelease, export: Export, seen: Path
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    settings = {
        "base_model": "base",
        "lora_r": 8,
        "output_dir": "/elsewhere",
        "plugins": ["axolotl.integrations.liger.LigerPlugin"],
        "resume_from_checkpoint": "output/checkpoint-20",
        "auto_resume_from_checkpoints": True,
        "hub_model_id": "user/model",
        "hub_strategy": "end",
        "push_dataset_to_hub": "user/data",
    }
    (run_dir / "axolotl.yaml").write_text(yaml.safe_dump(settings))
    assert export(ExportJob.in_job("my-run", "F16", release), run_dir).returncode == 0
    merge = yaml.safe_load(seen.read_text())
    assert (merge["base_model"], merge["lora_r"]) == ("base", 8)
    assert merge["output_dir"] == str(run_dir / "scratch" / "merge")
    assert set(merge) & (settings.keys() - {"base_model", "lora_r", "output_dir"}) == set()


def test_a_model_that_somebody_merged_is_not_merged_again(
    runs_dir: Path, release: LlamaCppRelease, export: Export, seen: Path
) -> None:
    run_dir = make_run(runs_dir, "my-run", files=ADAPTER | MERGED)
    job = ExportJob.in_job("my-run", "F16", release)
    assert export(job, run_dir).returncode == 0
    assert made(job, run_dir) == "f16 of merged"
    assert not seen.exists()


def test_a_gguf_of_an_earlier_try_is_replaced_and_nothing_else_is_left(
    runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    job_dir = run_dir / "exports" / "job"
    write_files(job_dir / "output" / "gguf", {"my-run-F16.gguf": "old", "my-run-F16.gguf.part": ""})
    write_files(job_dir / "scratch", {"half": "half"})
    job = ExportJob.in_place("my-run", "F16", "output", release=release)
    assert export(job, job_dir).returncode == 0
    assert sorted(path.name for path in job_dir.iterdir()) == ["export.sh", "output"]
    assert [path.name for path in job_dir.glob("output/gguf/*")] == ["my-run-F16.gguf"]
    assert made(job, job_dir) == "f16 of output"


def test_an_export_that_fails_leaves_neither_a_gguf_nor_its_scratch(
    tmp_path: Path, runs_dir: Path, export: Export
) -> None:
    broken = make_mirror(tmp_path / "broken", 'echo half >"$2"; echo "bad tensor" >&2; exit 7')
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    job_dir = run_dir / "exports" / "job"
    done = export(ExportJob.in_place("my-run", "Q4_K_M", "output", release=broken), job_dir)
    assert done.returncode == 7
    assert "bad tensor\n" in done.stdout
    assert done.stderr == "export: quantize failed with exit code 7\n"
    assert [path.name for path in job_dir.rglob("*") if path.is_file()] == ["export.sh"]
    assert not (job_dir / "scratch").exists()


def test_a_full_disk_is_told_as_such(tmp_path: Path, runs_dir: Path, export: Export) -> None:
    full = make_mirror(tmp_path / "full", 'echo "write: No space left on device" >&2; exit 1')
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    done = export(ExportJob.in_job("my-run", "Q4_K_M", full), run_dir)
    assert f"export: quantize failed because the disk is full: {run_dir} has " in done.stderr


def test_a_machine_with_an_older_c_library_is_told_to_use_a_container(
    tmp_path: Path, runs_dir: Path, export: Export
) -> None:
    missing = "libc.so.6: version \\`GLIBC_2.38' not found (required by llama-quantize)"
    newer = make_mirror(tmp_path / "newer", f'echo "{missing}" >&2; exit 1')
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    done = export(ExportJob.in_job("my-run", "Q4_K_M", newer), run_dir)
    assert "need a newer C library than this machine's; export in a container" in done.stderr


def test_a_killed_program_is_told_as_out_of_memory(
    tmp_path: Path, runs_dir: Path, export: Export
) -> None:
    killed = make_mirror(tmp_path / "killed", "kill -9 $$")
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    done = export(ExportJob.in_job("my-run", "Q4_K_M", killed), run_dir)
    assert done.returncode == 137
    assert "export: quantize was killed, most likely out of memory" in done.stderr


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


def test_progress_is_a_line_every_ten_percent(
    tmp_path: Path, runs_dir: Path, export: Export
) -> None:
    counted = r"""
    for n in $(seq 1 200); do printf '[ %4d/ 200] blk.%d.weight\n' $n $n; done
    for n in $(seq 0 100); do printf '\rWriting: %3d%%|\342\226\210\342\226\210  | 1M/2M' $n; done
    printf '\n[   1/   0] odd\n'
    printf x >"$2"
    """
    release = make_mirror(tmp_path / "counting", counted)
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    job = ExportJob.staged("my-run", "Q4_K_M", run_dir, "output", release)
    done = export(job, tmp_path / "job")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    for what in ("quantize", "Writing"):
        told = [line for line in lines if line.startswith(f"export: {what} ") and "%" in line]
        assert told == [f"export: {what} {n} %" for n in range(10, 101, 10)]
    assert len([line for line in lines if line.startswith("[")]) == 201
    assert [line for line in lines if "%|" in line] == []
    assert done.stdout.isascii()


def test_each_stage_says_how_long_it_took(
    tmp_path: Path, runs_dir: Path, release: LlamaCppRelease, export: Export
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    job = ExportJob.staged("my-run", "Q4_K_M", run_dir, "output", release)
    done = export(job, tmp_path / "job")
    said = re.findall(r"^export: (\w+) took \d+ s$", done.stdout, re.MULTILINE)
    assert said == ["merge", "convert", "quantize", "check"]
