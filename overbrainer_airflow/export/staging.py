"""What a job is given of its run, and how that is taken away again.

A staged job directory looks like a small run, and is sent to the machine as it is:

    exports/<export-id>/
        export.sh
        axolotl.yaml       a hard link
        output/...         hard links: the model, without checkpoints and earlier GGUF files
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from overbrainer_airflow.errors import RunNotReadyError
from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.runs import CONFIG_FILE, OUTPUT_DIR, RunModel
from overbrainer_airflow.export.script import write_script

_NOT_STAGED = ("checkpoint-", "gguf")


def prepare(job: ExportJob, job_dir: Path) -> None:
    """Fill the local ``job_dir``: the script and, for a staged job, links to the run's files.

    Raises:
        RunNotReadyError: a file of the run is a link that leaves the run, or no regular file.
        OSError: a file cannot be read or written.
    """
    write_script(job_dir)
    if job.stage is None:
        return
    run_dir, model = job.stage
    for source in model_files(run_dir, model):
        link_file(source, job_dir / source.relative_to(run_dir))


def model_files(run_dir: Path, model: str) -> Iterator[Path]:
    """Yield the files that an export of ``model`` reads, ``axolotl.yaml`` first.

    Of ``output/`` neither checkpoints nor earlier GGUF files: a checkpoint is given only when it
    is the model.
    """
    yield _inside(run_dir, run_dir / CONFIG_FILE)
    root = run_dir / model
    for entry in sorted(root.iterdir()):
        if model == OUTPUT_DIR and entry.name.startswith(_NOT_STAGED):
            continue
        yield from _tree(run_dir, entry)


def model_size(run: RunModel) -> int:
    """Return the bytes that an export's model takes where it is sent."""
    return sum(path.stat().st_size for path in model_files(run.run_dir, run.model))


def _tree(run_dir: Path, path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            yield from _tree(run_dir, entry)
    else:
        yield _inside(run_dir, path)


def _inside(run_dir: Path, path: Path) -> Path:
    """Return ``path`` if it is a regular file of the run, itself or where it links to."""
    target = Path(os.path.realpath(path))  # a link to itself makes Path.resolve raise
    if not target.is_relative_to(run_dir.resolve()):
        raise RunNotReadyError(
            f"run {run_dir.name}: {path} links to {target}, outside the run: "
            "put the file itself into the run"
        )
    if not target.is_file():
        raise RunNotReadyError(
            f"run {run_dir.name}: {path} is not a file that can be sent: remove it, or put a "
            "regular file in its place"
        )
    return path


def link_file(source: Path, target: Path) -> None:
    """Hard-link what ``source`` names at ``target``, replacing it; copy across file systems."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    content = source.resolve()
    try:
        os.link(content, target)
    except OSError:
        shutil.copy2(content, target)


def discard_staged(run_dir: Path, job_dir: Path) -> None:
    """Remove what ``job_dir`` holds of its run, and the GGUF it wrote; its records stay.

    Nothing happens for an export in a training job, whose job directory is the run's.
    """
    if job_dir.resolve() == run_dir.resolve():
        return
    for staged in (job_dir / OUTPUT_DIR, job_dir / CONFIG_FILE):
        if staged.is_dir() and not staged.is_symlink():
            shutil.rmtree(staged)
        else:
            staged.unlink(missing_ok=True)
