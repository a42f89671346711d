"""Where an export's model is on its machine, and how it gets there."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overbrainer_airflow.export.runs import EXPORTS_DIR, OUTPUT_DIR
from overbrainer_airflow.export.script import SCRIPT_FILE
from overbrainer_airflow.export.staging import prepare
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.manifest import Manifest, local_manifest
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.protocol import run_checked
from overbrainer_airflow.machines.shell import quote
from overbrainer_airflow.machines.transfer import equal_tree, send_tree

if TYPE_CHECKING:
    from overbrainer_airflow.export.job import ExportJob
    from overbrainer_airflow.export.runs import RunModel
    from overbrainer_airflow.machines.protocol import Machine

log = logging.getLogger(__name__)

# In a run's directory on a machine: its model is a copy that may be replaced by a newer one.
KEPT_MARK = ".overbrainer-kept"


@dataclass(frozen=True)
class Place:
    """Where the model is, or will be.

    Attributes:
        run_dir: the run's directory on the machine.
        manifest: the model's files when they are there, None when they have to be sent.
        keep: whether they are sent into the run's directory and stay there.
    """

    run_dir: str
    manifest: Manifest | None = None
    keep: bool = False

    @property
    def in_place(self) -> bool:
        """Whether the job finds the model in the run's directory, not in its own."""
        return self.keep or self.manifest is not None


async def find_place(
    machine: Machine, run: RunModel, workdir: str, names: list[str], *, here: bool, keep: bool
) -> Place:
    """Find the very model of ``run`` on the machine, or the place to send it to.

    Args:
        machine: the machine.
        run: the run.
        workdir: the workdir of the machine.
        names: the model's files, relative to the run.
        here: whether the machine is the worker itself.
        keep: whether a model that is sent should stay for the next export.

    Raises:
        MachineError: the machine cannot be reached.
    """
    if here:
        return Place(str(run.run_dir), await local_manifest(run.run_dir, names))
    own = f"{workdir}/{run.run_id}"
    shared = machine.settings.runs_dir
    for directory in dict.fromkeys([shared and f"{shared}/{run.run_id}", run.remote_dir, own]):
        if directory is None or not directory.startswith("/"):
            continue
        manifest = await equal_tree(machine, run.run_dir, directory, names)
        if manifest is not None:
            log.info("Finds the model on %s in %s", machine.name, directory)
            return Place(directory, manifest)
    if not keep:
        return Place(own)
    return Place(own, keep=await _may_keep(machine, own, run.model))


async def _may_keep(machine: Machine, run_dir: str, model: str) -> bool:
    """Mark the run's directory as holding a copy, unless it holds a model of somebody's."""
    marked = await run_checked(
        machine,
        f"""
        mkdir -p -- {quote(run_dir)} && cd -- {quote(run_dir)} || exit 1
        if [ -e {quote(model)} ] && [ ! -e {KEPT_MARK} ]; then echo taken; else : >{KEPT_MARK}; fi
        """,
    )
    if marked.strip() == b"taken":
        log.warning(
            "%s holds another model of the run in %s, which is not a copy that may be replaced: "
            "the model is sent for this export alone",
            machine.name,
            run_dir,
        )
        return False
    if await _in_use(machine, run_dir):
        log.warning(
            "A job on %s exports an earlier model from %s: the model is sent for this export alone",
            machine.name,
            run_dir,
        )
        return False
    return True


async def _in_use(machine: Machine, run_dir: str) -> bool:
    """Return whether a job runs whose model is the one in the run's directory."""
    listed = await run_checked(
        machine,
        f"""
        cd -- {quote(run_dir)}/{EXPORTS_DIR} 2>/dev/null || exit 0
        for job in */; do
            if [ -e "$job/job.pid" ] && [ ! -e "$job/exit_code" ] && [ ! -e "$job/{OUTPUT_DIR}" ]
            then printf '%s\n' "${{job%/}}"; fi
        done
        """,
    )
    for name in listed.decode().splitlines():
        found = await detached_job.status(machine, f"{run_dir}/{EXPORTS_DIR}/{name}")
        if found.state == "running":
            return True
    return False


@dataclass(frozen=True)
class Sending:
    """What a job needs, on its way to the machine.

    Attributes:
        machine: the machine.
        run: the run.
        job: the export.
        place: where the model is or shall be.
        job_dir: the job directory on the machine.
        export_id: the export.
    """

    machine: Machine
    run: RunModel
    job: ExportJob
    place: Place
    job_dir: str
    export_id: str

    async def bring(self, names: list[str]) -> tuple[Manifest, int]:
        """Bring the script, and the model's files if they are not there.

        Returns:
            The model's files and the bytes that were sent.

        Raises:
            TransferError: a file did not arrive as it is here.
            MachineError: the machine cannot be reached.
        """
        local = self.run.run_dir / EXPORTS_DIR / self.export_id
        prepare(self.job, local)
        if self.place.run_dir == str(self.run.run_dir) and self.place.manifest is not None:
            log.info("Exports in place, in %s", self.job_dir)
            return self.place.manifest, 0
        script = await send_tree(
            self.machine, local, self.job_dir, [SCRIPT_FILE], owner=self.export_id
        )
        if self.place.manifest is not None:
            return self.place.manifest, script.moved
        source = self.run.run_dir if self.place.keep else local
        target = self.place.run_dir if self.place.keep else self.job_dir
        log.info("Sends the model, %d files, to %s on %s", len(names), target, self.machine.name)
        sent = await send_tree(
            self.machine, source, target, names, owner=self.export_id, alone_in=self.run.model
        )
        log.info("Sent %s, all verified by SHA-256", human_size(sent.moved))
        return sent.manifest, script.moved + sent.moved
