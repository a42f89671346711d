"""What one task of an export tells the next: small plain values, checked when they are read."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    StringConstraints,
    ValidationError,
)

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.ids import check_export_id, check_run_id
from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.llama_cpp import LlamaCppRelease, Sha256
from overbrainer_airflow.export.quantize import check_quantize


def _absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise ValueError("give an absolute path")
    return path


class _Handover(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    def plain(self) -> dict[str, Any]:
        """Return the value as XCom keeps it."""
        return self.model_dump(mode="json", exclude_none=True)


class StagedExport(_Handover):
    """An export that is ready to start on its machine.

    Attributes:
        run_id: the run.
        export_id: the export, the same for each try of its task.
        quantize: the quantize type.
        ssh_conn_id: the machine's connection; None is the worker.
        runs_dir: the directory of the runs, as the workers see it.
        model: the model's directory in the run.
        workdir: the workdir of the machine.
        job_dir: the job directory on the machine.
        file: the GGUF's name.
        in_place: whether the job reads the model where the machine has it.
        inputs: SHA-256 of all that the export is made of.
        release: the llama.cpp release that makes it.
        bytes_sent: bytes of content that staging moved.
    """

    run_id: Annotated[str, AfterValidator(check_run_id)]
    export_id: Annotated[str, AfterValidator(check_export_id)]
    quantize: Annotated[str, AfterValidator(check_quantize)]
    ssh_conn_id: str | None = None
    runs_dir: Annotated[str, AfterValidator(_absolute)]
    model: Annotated[str, StringConstraints(pattern=r"^output(/[A-Za-z0-9_-]+)?$")]
    workdir: Annotated[str, AfterValidator(_absolute)]
    job_dir: Annotated[str, AfterValidator(_absolute)]
    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+\.gguf$")]
    in_place: bool
    inputs: Sha256
    release: LlamaCppRelease
    bytes_sent: NonNegativeInt = 0


class ExportedGGUF(StagedExport):
    """An export whose GGUF is on its machine.

    Attributes:
        size: of the GGUF, in bytes.
        sha256: of the GGUF on the machine, in hex.
    """

    size: NonNegativeInt
    sha256: Sha256


class DeliveredGGUF(_Handover):
    """A GGUF in its run.

    Attributes:
        run_id: the run.
        gguf: the file, as the workers see it.
        modelfile: the Modelfile beside it.
        record: what ``export.json`` says.
    """

    run_id: str
    gguf: Annotated[str, AfterValidator(_absolute)]
    modelfile: Annotated[str, AfterValidator(_absolute)]
    record: dict[str, Any]


_Value = TypeVar("_Value", bound=_Handover)


def read_handover(kind: type[_Value], value: object, task: str) -> _Value:
    """Read what an earlier task returned.

    Raises:
        InvalidInputError: it is something else; the message says which task should give it.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the value"
        raise InvalidInputError(
            f"{task} got no {kind.__name__}: {where}: {first['msg']}: pass the output of the task "
            "before it"
        ) from error


def job_of(staged: StagedExport) -> ExportJob:
    """Return the export job that was staged."""
    if staged.in_place:
        return ExportJob.in_place(
            staged.run_id, staged.quantize, staged.model, release=staged.release
        )
    run_dir = Path(staged.runs_dir) / staged.run_id
    return ExportJob.staged(staged.run_id, staged.quantize, run_dir, staged.model, staged.release)
