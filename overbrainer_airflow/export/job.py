"""One export of one run: what its script is told, and what it leaves behind."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from overbrainer_airflow.export.ids import check_run_id
from overbrainer_airflow.export.llama_cpp import LLAMA_CPP, LlamaCppRelease
from overbrainer_airflow.export.quantize import GGUF_DIR, check_quantize, gguf_name
from overbrainer_airflow.export.runs import CONFIG_FILE, OUTPUT_DIR
from overbrainer_airflow.export.script import SCRIPT_FILE, TRAMPOLINE

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Artifacts:
    """What comes back of a job: paths relative to its directory.

    Attributes:
        entries: files and directories to bring back, those that exist.
        exclude: names, as shell patterns, that stay.
        required: the entry without which the job has failed.
    """

    entries: tuple[str, ...]
    exclude: tuple[str, ...]
    required: str


@dataclass(frozen=True)
class ExportJob:
    """One conversion of one run to one quantize type.

    Build it with `in_job`, `in_place` or `staged`: they differ in where the job finds the model.

    Attributes:
        name: the run id; the GGUF is called ``<name>-<quantize>.gguf``.
        quantize: the llama-quantize type.
        model: the model's directory, relative to the job directory.
        config: the run's ``axolotl.yaml``, relative to the job directory.
        script: the script, as the job sees it.
        stage: the local run directory, and the model in it, to link into the job directory.
        release: the llama.cpp release that converts and quantizes.
    """

    name: str
    quantize: str
    model: str
    config: str
    script: str = SCRIPT_FILE
    stage: tuple[Path, str] | None = None
    release: LlamaCppRelease = field(default=LLAMA_CPP, repr=False)

    def __post_init__(self) -> None:
        check_run_id(self.name)
        object.__setattr__(self, "quantize", check_quantize(self.quantize))

    @classmethod
    def in_job(cls, name: str, quantize: str, release: LlamaCppRelease = LLAMA_CPP) -> "ExportJob":
        """Return the export at the end of a training job: the job directory is the run's."""
        return cls(name, quantize, OUTPUT_DIR, CONFIG_FILE, release=release)

    @classmethod
    def in_place(
        cls,
        name: str,
        quantize: str,
        model: str,
        script: str = SCRIPT_FILE,
        release: LlamaCppRelease = LLAMA_CPP,
    ) -> "ExportJob":
        """Return the export in ``<run dir>/exports/<export-id>/`` where the run's files are.

        ``model`` is relative to the run directory, two directories up.
        """
        return cls(
            name, quantize, f"../../{model}", f"../../{CONFIG_FILE}", script, release=release
        )

    @classmethod
    def staged(
        cls,
        name: str,
        quantize: str,
        run_dir: Path,
        model: str,
        release: LlamaCppRelease = LLAMA_CPP,
    ) -> "ExportJob":
        """Return the export on a machine without the run's files: they travel with the job.

        ``model`` is relative to the local run directory ``run_dir``.
        """
        return cls(name, quantize, model, CONFIG_FILE, stage=(run_dir, model), release=release)

    @property
    def file_name(self) -> str:
        """The GGUF file that this export writes."""
        return gguf_name(self.name, self.quantize)

    @property
    def artifacts(self) -> Artifacts:
        """What is brought back: the GGUF, and the metrics if there are any."""
        return Artifacts((GGUF_DIR, METRICS_FILE), ("*.part",), GGUF_DIR)

    @property
    def stages(self) -> tuple[Literal["export"]]:
        """The stages that the job reports."""
        return ("export",)

    @property
    def metrics_required(self) -> bool:
        """Whether a job without metrics has failed."""
        return False

    @property
    def caches_tools(self) -> bool:
        """Whether runs share what the job fetches (llama.cpp)."""
        return True

    def command(self) -> list[str]:
        """Return the command of the job; the machine says which ``python3`` it is."""
        return ["python3", "-c", TRAMPOLINE, self.script]

    def script_env(self) -> dict[str, str]:
        """Return what ``export.sh`` is told: what to export, how, and with which llama.cpp."""
        return {
            "OVERBRAINER_EXPORT_NAME": self.name,
            "OVERBRAINER_EXPORT_QUANTIZE": self.quantize,
            "OVERBRAINER_EXPORT_MODEL": self.model,
            "OVERBRAINER_EXPORT_CONFIG": self.config,
        } | self.release.env()

    def env(self, root: str) -> dict[str, str]:
        """Return the job's environment; ``root`` is the job directory as the job sees it."""
        return {"OVERBRAINER_METRICS": f"{root}/{METRICS_FILE}"} | self.script_env()
