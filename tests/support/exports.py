"""Runs and staged jobs small enough to be made by a line of shell."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from overbrainer_airflow.export.llama_cpp import LLAMA_CPP
from overbrainer_airflow.operators.handover import StagedExport

EXPORT_ID = "export_20260102-030405-0123abcd"


def task_context(try_number: int = 1) -> Any:
    """Return what an operator reads of its context."""
    instance = SimpleNamespace(
        id=f"try-{try_number}",
        dag_id="dag",
        run_id="manual__1",
        task_id="stage_model",
        map_index=-1,
        try_number=try_number,
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    return {"ti": instance, "dag_run": SimpleNamespace(run_after=moment)}


def staged_job(
    runs_dir: Path, script: str, ssh_conn_id: str | None = None, run_id: str = "my-run"
) -> StagedExport:
    """Return a staged export of a run in place, whose ``export.sh`` is ``script``.

    The job directory is the same here and on the machine, which is this one.
    """
    job_dir = runs_dir / run_id / "exports" / EXPORT_ID
    job_dir.mkdir(parents=True, exist_ok=True)
    (job_dir / "export.sh").write_text(script)
    return StagedExport(
        run_id=run_id,
        export_id=EXPORT_ID,
        quantize="Q4_K_M",
        ssh_conn_id=ssh_conn_id,
        runs_dir=str(runs_dir),
        model="output",
        workdir=str(runs_dir),
        job_dir=str(job_dir),
        file=f"{run_id}-Q4_K_M.gguf",
        in_place=True,
        inputs="0" * 64,
        release=LLAMA_CPP,
    )


MAKE_GGUF = 'mkdir -p output/gguf; echo gguf >"output/gguf/$OVERBRAINER_EXPORT_NAME-Q4_K_M.gguf"'
"""Shell that leaves the result that a job has to leave."""


@contextmanager
def worker_following(
    staged: StagedExport, secrets: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield another worker's process that runs the staged export; it is killed at the end."""
    program = (
        "import json, sys\n"
        "from overbrainer_airflow.operators.run_export import RunExportOperator\n"
        "from tests.support.exports import task_context\n"
        "staged, secrets = map(json.loads, sys.argv[1:])\n"
        "task = RunExportOperator(task_id='run_export', staged=staged, secrets=secrets)\n"
        "task.execute(task_context())\n"
    )
    command = [sys.executable, "-c", program, json.dumps(staged.plain())]
    command.append(json.dumps(dict(secrets or {})))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            yield worker
        finally:
            worker.kill()
