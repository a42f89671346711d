"""The teardown: what was staged is removed, however the export went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from overbrainer_airflow.export.quantize import GGUF_DIR
from overbrainer_airflow.export.runs import CONFIG_FILE, EXPORTS_DIR, OUTPUT_DIR
from overbrainer_airflow.export.staging import discard_staged
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.protocol import REMOVAL_TIMEOUT, run_checked
from overbrainer_airflow.machines.shell import quote
from overbrainer_airflow.operators.base import failing_fast, run_async
from overbrainer_airflow.operators.handover import StagedExport, read_handover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from overbrainer_airflow.machines.protocol import Machine


class DiscardStagedOperator(BaseOperator):
    """Removes the staged model and whatever the job left beside its log, here and on the machine.

    Only what this export staged is removed, and nothing while its job still runs.

    Args:
        staged: what `StageModelOperator` returned.

    Raises:
        MachineError: the machine cannot be reached.
    """

    template_fields: Sequence[str] = ("staged",)
    ui_color = "#eeeeee"

    def __init__(self, *, staged: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.staged = staged

    def execute(self, context: Context) -> None:  # noqa: ARG002
        """Discard what was staged; see the class."""
        with failing_fast():
            staged = read_handover(StagedExport, self.staged, self.task_id)
        run_async(self._discard(staged))

    async def _discard(self, staged: StagedExport) -> None:
        async with MachineHook(staged.ssh_conn_id).machine() as machine:
            job = await detached_job.status(machine, staged.job_dir)
            if job.state == "running":
                self.log.warning(
                    "The job in %s on %s still runs, leaves it what it needs; a retry of the "
                    "export follows it",
                    staged.job_dir,
                    machine.name,
                )
                return
            made = (job.state, job.exit_code) == ("exited", 0)
            kept = await discard_on_machine(machine, staged, keep_gguf=made)
        if staged.ssh_conn_id is not None:
            run_dir = Path(staged.runs_dir) / staged.run_id
            discard_staged(run_dir, run_dir / EXPORTS_DIR / staged.export_id)
        self.log.info(
            "Discards what was staged in %s; its log stays there%s",
            staged.job_dir,
            ", and so does the GGUF that was not delivered" if kept else "",
        )


async def discard_on_machine(machine: Machine, staged: StagedExport, *, keep_gguf: bool) -> bool:
    """Remove the staged files and what the job made; return whether a GGUF stays.

    Args:
        machine: the machine of the export.
        staged: the export.
        keep_gguf: whether a GGUF that is still there stays: hours of work that a full disk of the
            worker must not cost.

    Raises:
        MachineError: the machine cannot be reached, or does not let them go.
    """
    kept = f"{GGUF_DIR}/{staged.file}" if keep_gguf else ""
    output = await run_checked(
        machine,
        f"""
        cd -- {quote(staged.job_dir)} 2>/dev/null || exit 0
        if [ -n {quote(kept)} ] && [ -s {quote(kept)} ]; then
            for entry in {OUTPUT_DIR}/* {OUTPUT_DIR}/.[!.]* {GGUF_DIR}/*; do
                case "$entry" in
                    {GGUF_DIR} | {quote(kept)}) ;;
                    *) rm -rf -- "$entry" || exit 1 ;;
                esac
            done
            echo kept
        else
            rm -rf -- {OUTPUT_DIR} || exit 1
        fi
        rm -rf -- {CONFIG_FILE} scratch
        """,
        timeout=REMOVAL_TIMEOUT,
    )
    return output.strip() == b"kept"
