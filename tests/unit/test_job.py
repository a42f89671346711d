from pathlib import Path

import pytest

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.job import Artifacts, ExportJob
from overbrainer_airflow.export.llama_cpp import LLAMA_CPP, LlamaCppRelease
from overbrainer_airflow.export.script import TRAMPOLINE

RUN_DIR = Path("/runs/my-run")
MIRROR = LlamaCppRelease(tag="b1", url="file:///srv/llama.cpp", source_sha256="0" * 64)

IN_JOB = ExportJob.in_job("my-run", "Q4_K_M")
IN_PLACE = ExportJob.in_place("my-run", "Q4_K_M", "output/checkpoint-20")
STAGED = ExportJob.staged("my-run", "Q4_K_M", RUN_DIR, "output/checkpoint-20")

every_job = pytest.mark.parametrize(
    "job", [IN_JOB, IN_PLACE, STAGED], ids=["in_job", "in_place", "staged"]
)


def test_an_export_in_a_training_job_reads_the_run_that_is_its_directory() -> None:
    assert (IN_JOB.model, IN_JOB.config, IN_JOB.stage) == ("output", "axolotl.yaml", None)


def test_an_in_place_export_reads_two_directories_up() -> None:
    assert IN_PLACE.model == "../../output/checkpoint-20"
    assert IN_PLACE.config == "../../axolotl.yaml"
    assert IN_PLACE.stage is None


def test_a_staged_export_reads_what_travels_with_it() -> None:
    assert (STAGED.model, STAGED.config) == ("output/checkpoint-20", "axolotl.yaml")
    assert STAGED.stage == (RUN_DIR, "output/checkpoint-20")


@every_job
def test_the_gguf_is_named_after_the_run_and_the_type(job: ExportJob) -> None:
    assert job.file_name == "my-run-Q4_K_M.gguf"


@every_job
def test_the_command_starts_the_script_with_the_python_of_the_machine(job: ExportJob) -> None:
    assert job.command() == ["python3", "-c", TRAMPOLINE, "export.sh"]


def test_an_in_place_export_starts_the_script_where_the_job_sees_it() -> None:
    job = ExportJob.in_place("my-run", "F16", "output", "/workspace/job/export.sh")
    assert job.command()[-1] == "/workspace/job/export.sh"


def test_the_script_is_told_what_to_export_and_with_which_llama_cpp() -> None:
    assert IN_PLACE.script_env() == LLAMA_CPP.env() | {
        "OVERBRAINER_EXPORT_NAME": "my-run",
        "OVERBRAINER_EXPORT_QUANTIZE": "Q4_K_M",
        "OVERBRAINER_EXPORT_MODEL": "../../output/checkpoint-20",
        "OVERBRAINER_EXPORT_CONFIG": "../../axolotl.yaml",
    }


@pytest.mark.parametrize(
    "job",
    [
        ExportJob.in_job("my-run", "F16", release=MIRROR),
        ExportJob.in_place("my-run", "F16", "output", release=MIRROR),
        ExportJob.staged("my-run", "F16", RUN_DIR, "output", release=MIRROR),
    ],
    ids=["in_job", "in_place", "staged"],
)
def test_another_llama_cpp_release_takes_the_place_of_the_pinned_one(job: ExportJob) -> None:
    told = {name: value for name, value in job.script_env().items() if "LLAMA_CPP" in name}
    assert told == MIRROR.env()


@every_job
def test_the_environment_adds_the_metrics_file_below_the_root_of_the_job(job: ExportJob) -> None:
    metrics = {"OVERBRAINER_METRICS": "/workspace/run/metrics.jsonl"}
    assert job.env("/workspace/run") == metrics | job.script_env()


@every_job
def test_the_gguf_and_the_metrics_are_brought_back_and_only_the_gguf_must_be_there(
    job: ExportJob,
) -> None:
    assert job.artifacts == Artifacts(
        entries=("output/gguf", "metrics.jsonl"), exclude=("*.part",), required="output/gguf"
    )


@every_job
def test_an_export_is_one_stage_without_metrics_that_shares_its_tools(job: ExportJob) -> None:
    assert (job.stages, job.metrics_required, job.caches_tools) == (("export",), False, True)


def test_a_quantize_type_in_lower_case_names_the_gguf_in_upper_case() -> None:
    job = ExportJob.in_job("my-run", "q8_0")
    assert job.file_name == "my-run-Q8_0.gguf"
    assert job.script_env()["OVERBRAINER_EXPORT_QUANTIZE"] == "Q8_0"


def test_a_job_of_an_unknown_quantize_type_cannot_be_built() -> None:
    with pytest.raises(InvalidInputError, match="did you mean Q4_K_M"):
        ExportJob.in_place("my-run", "Q4KM", "output")


def test_a_job_whose_name_would_leave_its_directory_cannot_be_built() -> None:
    with pytest.raises(InvalidInputError, match="cannot name a run"):
        ExportJob.staged("../my-run", "Q4_K_M", RUN_DIR, "output")
