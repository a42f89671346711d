"""A GGUF put where it is served from, recorded, with its Modelfile beside it.

runs/<run-id>/output/gguf/<run-id>-<TYPE>.gguf   moved in whole, replacing its predecessor
runs/<run-id>/output/gguf/Modelfile
runs/<run-id>/exports/<export-id>/export.json    written last: the mark of a finished delivery
"""

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pydantic import NonNegativeInt

from overbrainer_airflow.errors import DeliveryError, NoGGUFError
from overbrainer_airflow.export.files import sha256_file, write_whole
from overbrainer_airflow.export.ids import rfc3339
from overbrainer_airflow.export.llama_cpp import LLAMA_CPP, LlamaCppRelease
from overbrainer_airflow.export.modelfile import MODELFILE, modelfile_text, sequence_len
from overbrainer_airflow.export.quantize import GGUF_DIR, quantize_of
from overbrainer_airflow.export.records import Record, pretty, read_record
from overbrainer_airflow.export.runs import CONFIG_FILE
from overbrainer_airflow.export.staging import discard_staged

EXPORT_FILE = "export.json"


class ExportRecord(Record):
    """``export.json``. Fields of a newer writer survive reading and writing.

    Attributes:
        quantize: the llama-quantize type.
        llama_cpp: the llama.cpp release tag.
        file: the GGUF, relative to the run directory.
        sha256: of the GGUF, in hex.
        size: of the GGUF, in bytes.
        created: when it was delivered, RFC 3339 in UTC to the second.
    """

    quantize: str
    llama_cpp: str
    file: str
    sha256: str
    size: NonNegativeInt
    created: str

    @classmethod
    def read(cls, path: Path) -> "ExportRecord":
        """Read ``path``.

        Raises:
            DeliveryError: it cannot be read or is not an export record.
        """
        return read_record(cls, path, DeliveryError, "an export record")

    def text(self) -> str:
        """Return the record as its file holds it: pretty JSON and a final newline."""
        return pretty(self.model_dump())


@dataclass(frozen=True)
class Delivered:
    """An export that is in its run's ``output/gguf/``."""

    gguf: Path
    modelfile: Path
    record: ExportRecord


def deliver(
    run_dir: Path,
    job_dir: Path,
    file_name: str,
    *,
    release: LlamaCppRelease = LLAMA_CPP,
    digest: str | None = None,
    now: datetime | None = None,
) -> Delivered:
    """Move the job's GGUF into its run, write the Modelfile, then ``export.json``.

    What was staged in ``job_dir`` is removed. The job directory of an export in a training job is
    the run directory; its GGUF is in place already.

    Args:
        run_dir: the run.
        job_dir: the export's directory, with the GGUF in ``output/gguf/``.
        file_name: the GGUF, ``<name>-<TYPE>.gguf``.
        release: the llama.cpp release that made it.
        digest: its SHA-256 in hex when somebody has just computed it; read here when None. With
            it, a GGUF that an interrupted delivery moved already is recognised and recorded.
        now: when it is delivered; the current time when None.

    Raises:
        NoGGUFError: the job left no such file; whatever was delivered before stays as it is.
        DeliveryError: the file name carries no known quantize type, or the file is empty.
        OSError: a file cannot be moved, read or written.
    """
    quantize = quantize_of(file_name)
    if quantize is None:
        raise DeliveryError(f"{file_name} in {job_dir} does not carry a quantize type in its name")
    made = job_dir / GGUF_DIR / file_name
    gguf_dir = run_dir / GGUF_DIR
    gguf = gguf_dir / file_name
    if made.is_file():
        if made.stat().st_size == 0:
            raise DeliveryError(
                f"{made} is empty: nothing was replaced, clear the export's tasks to make it again"
            )
        digest = digest or sha256_file(made)
        gguf_dir.mkdir(parents=True, exist_ok=True)
        made.replace(gguf)
    elif digest is None or not gguf.is_file() or sha256_file(gguf) != digest:
        raise NoGGUFError(f"the export left no GGUF file {file_name} in {made.parent}")
    discard_staged(run_dir, job_dir)
    record = ExportRecord(
        quantize=quantize,
        llama_cpp=release.tag,
        file=f"{GGUF_DIR}/{file_name}",
        sha256=digest,
        size=gguf.stat().st_size,
        created=rfc3339(now or datetime.now(timezone.utc)),
    )
    modelfile = gguf_dir / MODELFILE
    write_whole(modelfile, modelfile_text(file_name, sequence_len(run_dir / CONFIG_FILE)))
    write_whole(job_dir / EXPORT_FILE, record.text())
    return Delivered(gguf, modelfile, record)
