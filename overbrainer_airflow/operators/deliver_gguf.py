"""The third task: the GGUF back in its run, verified and recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from overbrainer_airflow.errors import OverbrainerError, TransferError
from overbrainer_airflow.export.delivery import deliver
from overbrainer_airflow.export.quantize import GGUF_DIR
from overbrainer_airflow.export.runs import EXPORTS_DIR
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines.manifest import FileDigest, digest_file
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.space import check_space_here
from overbrainer_airflow.machines.transfer import fetch_file
from overbrainer_airflow.operators.base import about, failing_fast, run_async
from overbrainer_airflow.operators.discard_staged import discard_on_machine
from overbrainer_airflow.operators.handover import DeliveredGGUF, ExportedGGUF, read_handover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from overbrainer_airflow.machines.protocol import Machine


class DeliverGGUFOperator(BaseOperator):
    """Brings a GGUF from its machine into ``runs/<run-id>/output/gguf/``.

    It replaces one of the same name only once its SHA-256 is the machine's. The Modelfile and
    ``export.json`` are written after it; then what was staged is removed, here and there.

    Args:
        exported: what `RunExportOperator` returned.

    Returns:
        `DeliveredGGUF`, as a dictionary.

    Raises:
        TransferError: the file did not arrive as the machine has it.
        DeliveryError: it cannot be put where it is served from.
        MachineError: the machine cannot be reached.
    """

    template_fields: Sequence[str] = ("exported",)
    ui_color = "#f3ead2"

    def __init__(self, *, exported: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.exported = exported

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Deliver the GGUF; see the class."""
        with failing_fast():
            exported = read_handover(ExportedGGUF, self.exported, self.task_id)
        return run_async(self._deliver(exported)).plain()

    async def _deliver(self, exported: ExportedGGUF) -> DeliveredGGUF:
        run_dir = Path(exported.runs_dir) / exported.run_id
        job_dir = run_dir / EXPORTS_DIR / exported.export_id
        try:
            async with MachineHook(exported.ssh_conn_id).machine() as machine:
                await self._bring(machine, exported, run_dir, job_dir)
                delivered = deliver(
                    run_dir,
                    job_dir,
                    exported.file,
                    release=exported.release,
                    digest=exported.sha256,
                )
                await discard_on_machine(machine, exported, keep_gguf=False)
        except OverbrainerError as error:
            raise about(f"delivery of {exported.file}", error) from error
        self.log.info(
            "Delivered %s, %s, SHA-256 %s",
            delivered.gguf,
            human_size(delivered.record.size),
            delivered.record.sha256,
        )
        return DeliveredGGUF(
            run_id=exported.run_id,
            gguf=str(delivered.gguf),
            modelfile=str(delivered.modelfile),
            record=delivered.record.model_dump(),
        )

    async def _bring(
        self, machine: Machine, exported: ExportedGGUF, run_dir: Path, job_dir: Path
    ) -> None:
        """Have the verified GGUF in the local job directory, or find it delivered already."""
        expected = FileDigest(exported.size, exported.sha256)
        made = job_dir / GGUF_DIR / exported.file
        if made.is_file():
            found = await asyncio.to_thread(digest_file, made)
            if found == expected:
                return
            if exported.ssh_conn_id is None:
                raise TransferError(
                    f"{made} changed since it was made: it is {found.size} bytes with SHA-256 "
                    f"{found.sha256}, expected {expected.size} bytes with {expected.sha256}: "
                    "clear the export's tasks to make it again"
                )
        delivered = run_dir / GGUF_DIR / exported.file
        same_size = delivered.is_file() and delivered.stat().st_size == exported.size
        if same_size and await asyncio.to_thread(digest_file, delivered) == expected:
            self.log.info("Finds %s delivered already", delivered)
            return
        self.log.info(
            "Fetches %s, %s, from %s", exported.file, human_size(exported.size), machine.name
        )
        remote = f"{exported.job_dir}/{GGUF_DIR}/{exported.file}"
        check_space_here(run_dir, exported.size, f"the GGUF of run {exported.run_id}")
        await fetch_file(machine, remote, made, expected, owner=exported.export_id)
