"""A machine's directories for ``export.sh``, with stand-ins for all that is heavy in an export."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from overbrainer_airflow.export.job import ExportJob
from overbrainer_airflow.export.staging import prepare
from tests.support.runs import write_files

#: Stands for axolotl: keeps the config that it was given, and leaves a merged model.
AXOLOTL = """
cp "$2" "$SEEN"
python3 - "$2" <<'PYTHON'
import pathlib, sys, yaml
merged = pathlib.Path(yaml.safe_load(open(sys.argv[1]))["output_dir"]) / "merged"
merged.mkdir(parents=True)
(merged / "config.json").write_text("{}")
PYTHON
"""


@dataclass(frozen=True)
class Export:
    """Prepares jobs and runs them as a machine does, with the programs in ``folder/bin``.

    The Python modules are in ``folder/modules``, the tools cache in ``folder/cache``, and axolotl
    leaves its config in ``folder/merge.yaml``.
    """

    folder: Path

    def add_program(self, name: str, script: str) -> None:
        """Put a program first on the PATH, by its shell script."""
        write_files(self.folder / "bin", {name: f"#!/bin/sh\n{script}\n"})
        (self.folder / "bin" / name).chmod(0o755)

    def __call__(self, job: ExportJob, job_dir: Path) -> "subprocess.CompletedProcess[str]":
        """Run a job to its end."""
        with self.started(job, job_dir) as process:
            out, err = process.communicate()
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @contextmanager
    def started(self, job: ExportJob, job_dir: Path) -> Iterator["subprocess.Popen[str]"]:
        """Yield a job's process, the leader of its group, which is gone at the end."""
        prepare(job, job_dir)
        with subprocess.Popen(
            [sys.executable, *job.command()[1:]],
            cwd=job_dir,
            env={
                "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
                "PYTHONPATH": str(self.folder / "modules"),
                "SEEN": str(self.folder / "merge.yaml"),
                "READY": str(self.folder / "ready"),
                "OVERBRAINER_CACHE": str(self.folder / "cache"),
                **job.env(str(job_dir)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def make_export(folder: Path, shell: str) -> Export:
    """Return the machine in ``folder`` whose ``sh`` is ``shell``, with all that an export needs."""
    export = Export(folder)
    stubs = ("torch", "numpy", "transformers")
    write_files(folder / "modules", {f"{name}.py": "" for name in stubs})
    export.add_program("sh", f'exec {shell} "$@"')
    export.add_program("axolotl", AXOLOTL)
    return export
