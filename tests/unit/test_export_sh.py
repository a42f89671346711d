"""The whole script, run for real on a release whose programs write what they were asked for."""

import re
from pathlib import Path

import pytest
import yaml

from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from tests.support.export_sh import Export
from tests.support.fake_llama_cpp import make_mirror
from tests.support.runs import ADAPTER, FULL, make_run, write_files

MERGED = {f"merged/{name}": text for name, text in FULL.items()}


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


def test_a_merge_needs_no_kernels_of_a_gpu(
    runs_dir: Path, release: LlamaCppRelease, export: Export, seen: Path
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    kernels = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
    (run_dir / "axolotl.yaml").write_text(yaml.safe_dump(dict.fromkeys(kernels, True)))
    assert export(ExportJob.in_job("my-run", "F16", release), run_dir).returncode == 0
    merge = yaml.safe_load(seen.read_text())
    assert [merge[kernel] for kernel in kernels] == [False] * 3


def test_a_base_model_beside_the_config_is_found_from_the_job_directory(
    runs_dir: Path, release: LlamaCppRelease, export: Export, seen: Path
) -> None:
    run_dir = make_run(runs_dir, "my-run")
    write_files(run_dir / "base", FULL)
    job = ExportJob.in_place("my-run", "F16", "output", release=release)
    assert export(job, run_dir / "exports" / "job").returncode == 0
    base = Path(yaml.safe_load(seen.read_text())["base_model"])
    assert base.is_absolute()
    assert base.samefile(run_dir / "base")


def test_a_program_has_its_temporary_files_in_scratch_and_tells_nobody_of_its_use(
    tmp_path: Path, runs_dir: Path, export: Export
) -> None:
    names = ("TMPDIR", "PYTHONIOENCODING", "AXOLOTL_DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY")
    shown = " ".join(f"${name}" for name in names)
    release = make_mirror(tmp_path / "telling", f'echo x >"$2"; echo "told: {shown}"')
    run_dir = make_run(runs_dir, "my-run", files=FULL)
    done = export(ExportJob.in_job("my-run", "Q4_K_M", release), run_dir)
    assert f"told: {run_dir}/scratch ascii:backslashreplace 1 1\n" in done.stdout


def test_a_merged_model_makes_room_before_the_quantization(
    tmp_path: Path, runs_dir: Path, export: Export
) -> None:
    release = make_mirror(tmp_path / "listing", 'echo x >"$2"; echo has: $(ls "$TMPDIR")')
    job = ExportJob.in_job("my-run", "Q4_K_M", release)
    done = export(job, make_run(runs_dir, "my-run"))
    (has,) = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("has: "))
    assert "converted.gguf" in has
    assert "merge" not in has


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
