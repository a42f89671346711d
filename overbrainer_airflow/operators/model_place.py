"""Where an export's model is on its machine, and how it gets there."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overbrainer_airflow.export.runs import CONFIG_FILE, EXPORTS_DIR, OUTPUT_DIR
from overbrainer_airflow.export.script import SCRIPT_FILE, write_script
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.manifest import Manifest, local_manifest, manifest_digest
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.protocol import REMOVAL_TIMEOUT, run_checked
from overbrainer_airflow.machines.shell import quote
from overbrainer_airflow.machines.transfer import equal_tree, send_tree

if TYPE_CHECKING:
    from overbrainer_airflow.export.job import ExportJob
    from overbrainer_airflow.export.runs import RunModel
    from overbrainer_airflow.machines.protocol import Machine

log = logging.getLogger(__name__)

# Copies that stay for the next export, each named by its content: none is ever overwritten, neither
# under a job that reads it nor where somebody trains. A run id holds no dot.
KEPT_DIR = ".kept"

# What an export reads beside the files that it was given: a merged model, further weights, and what
# decides the tokenizer and the template.
_DECIDES = re.compile(
    r"merged/.*|(model|pytorch_model|adapter_)[^/]*|(generation_)?config\.json|added_tokens\.json"
    r"|(tokenizer|vocab|chat_template|special_tokens_map)[^/]*|merges\.txt|spiece\.model"
)


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
        if manifest is None:
            continue
        others = await _others_that_decide(machine, directory, run.model, names)
        if not others:
            log.info("Finds the model on %s in %s", machine.name, directory)
            return Place(directory, manifest)
        log.info(
            "Finds the model on %s in %s, but beside it %s, which the run here does not have",
            machine.name,
            directory,
            others[0],
        )
    kept = f"{workdir}/{KEPT_DIR}/{run.run_id}"
    if not keep and not await _is_directory(machine, kept):
        return Place(own)
    manifest = await local_manifest(run.run_dir, names)
    copy = f"{kept}/{manifest_digest(manifest)[:16]}"
    if await equal_tree(machine, run.run_dir, copy, names) is not None:
        log.info("Finds the model on %s in %s, kept by an earlier export", machine.name, copy)
        return Place(copy, manifest)
    return Place(copy, keep=True) if keep else Place(own)


async def _is_directory(machine: Machine, path: str) -> bool:
    return (await machine.run(f"[ -d {quote(path)} ]")).status == 0


async def _others_that_decide(
    machine: Machine, run_dir: str, model: str, names: list[str]
) -> list[str]:
    """Return the files beside the model's own that would change what an export makes of it."""
    listed = await run_checked(
        machine,
        f"""
        cd -- {quote(f"{run_dir}/{model}")} || exit 1
        find . -maxdepth 1 -type f -print0
        if [ -d merged ]; then find merged -type f -print0; fi
        """,
    )
    found = [os.fsdecode(name).removeprefix("./") for name in listed.split(b"\0") if name]
    return sorted(
        name for name in found if _DECIDES.fullmatch(name) and f"{model}/{name}" not in names
    )


async def forget_older_copies(machine: Machine, copy: str) -> None:
    """Remove the other copies of the run's model that no job reads; the logs of jobs stay."""
    kept, _, current = copy.rpartition("/")
    listed = await run_checked(machine, f"cd -- {quote(kept)} && ls")
    for name in listed.decode().split():
        directory = f"{kept}/{name}"
        if name != current and not await _in_use(machine, directory):
            await run_checked(
                machine,
                f"cd -- {quote(directory)} && rm -rf -- {OUTPUT_DIR} {CONFIG_FILE}",
                timeout=REMOVAL_TIMEOUT,
            )
            log.info("Removes an earlier model of the run, kept in %s", directory)


async def _in_use(machine: Machine, run_dir: str) -> bool:
    """Return whether a job reads the model in ``run_dir``, or was put there today to do so."""
    listed = await run_checked(
        machine,
        f"""
        cd -- {quote(f"{run_dir}/{EXPORTS_DIR}")} 2>/dev/null || exit 0
        for job in *; do
            if [ -e "$job/exit_code" ]; then continue; fi
            if [ -e "$job/job.pid" ]; then echo "$job"
            elif [ -n "$(find "$job" -name {SCRIPT_FILE} -mmin -1440)" ]; then echo; fi
        done
        """,
    )
    for name in listed.decode().split("\n")[:-1]:
        if not name:
            return True
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
        write_script(local)
        if self.place.run_dir == str(self.run.run_dir) and self.place.manifest is not None:
            log.info("Exports in place, in %s", self.job_dir)
            return self.place.manifest, 0
        script = await send_tree(
            self.machine, local, self.job_dir, [SCRIPT_FILE], owner=self.export_id
        )
        if self.place.manifest is not None:
            return self.place.manifest, script.moved
        target = self.place.run_dir if self.place.keep else self.job_dir
        log.info("Sends the model, %d files, to %s on %s", len(names), target, self.machine.name)
        # From the run itself: hard links to its files would set their change time, by which a
        # digest is remembered.
        sent = await send_tree(
            self.machine,
            self.run.run_dir,
            target,
            names,
            owner=self.export_id,
            alone_in=None if self.place.keep else self.run.model,
        )
        log.info("Sent %s, all verified by SHA-256", human_size(sent.moved))
        if self.place.keep:
            await forget_older_copies(self.machine, self.place.run_dir)
        return sent.manifest, script.moved + sent.moved
