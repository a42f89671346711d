"""A job that goes on by itself on a machine, found, followed and stopped through its directory.

    <job directory>/
        job.sh       what started it
        job.stop     what ends the part of it that is not in its process group: a container
        job.lock     held while a job is being started or told to stop
        job.inputs   what the job was made of, as one line
        job.boot     the machine's boot id, and when the leader started, in two clocks
        job.pid      the session leader, which is also its process group
        job.log      what it prints
        job.shown    how much of that somebody who follows the job has shown
        exit_code    written when it ends, through a rename
        cancelling   somebody asked it to stop: the process that sees to it, and its start
        cancelled    it has stopped for that reason, and its processes are gone
        scratch/     the job's throwaway files; cancelling removes them
        attempts/N/  these files, of an earlier try that did not end well

Nothing else knows about the job: whoever can read the directory can take over.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Literal

from overbrainer_airflow.errors import JobError, MachineError
from overbrainer_airflow.machines.job_shell import (
    GRACE,
    cancel_script,
    start_script,
    status_script,
)
from overbrainer_airflow.machines.protocol import Machine, run_checked
from overbrainer_airflow.machines.runtime import Launch

Outcome = Literal["started", "running", "finished", "different"]
State = Literal["absent", "running", "exited", "cancelled", "lost"]


@dataclass(frozen=True)
class Status:
    """What a job is at.

    Attributes:
        state: its state.
        exit_code: of the job's command, when it has exited.
        inputs: the line that it was started with; empty when it never was.
    """

    state: State
    exit_code: int | None = None
    inputs: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job will not go on."""
        return self.state != "running"


def parse_state(words: list[str]) -> Status:
    """Read the words of `job_shell`'s state.

    Raises:
        MachineError: they are something else.
    """
    match words:
        case ["exited", code] if code.isdecimal():
            return Status("exited", int(code))
        case ["absent" | "running" | "cancelled" | "lost" as state]:
            return Status(state)
    raise MachineError(f"the job's state cannot be read from {' '.join(words)[:100]!r}")


async def start(
    machine: Machine,
    directory: str,
    launch: Launch,
    *,
    inputs: str,
    result: str,
) -> Outcome:
    """Start a job in its directory, or find that one runs or has finished; see `start_script`.

    Raises:
        MachineError: the machine cannot be reached, or the job could not be started.
    """
    script = start_script(directory, launch, inputs, result)
    output = (await run_checked(machine, script)).decode("ascii", "replace").strip()
    for outcome in ("started", "running", "finished", "different"):
        if output == outcome:
            return outcome
    raise MachineError(f"machine {machine.name}: starting {directory} answered {output[:100]!r}")


async def status(machine: Machine, directory: str) -> Status:
    """Ask once what a job is at.

    Raises:
        MachineError: the machine cannot be reached.
    """
    output = (await run_checked(machine, status_script(directory))).decode("utf-8", "replace")
    state, _, inputs = output.partition("\n")
    return replace(parse_state(state.split()), inputs=inputs.strip())


async def cancel(machine: Machine, directory: str) -> None:
    """Have a job stopped; return once its processes are gone.

    Raises:
        MachineError: the machine cannot be reached.
        JobError: it is still there well after it was killed.
    """
    await run_checked(machine, cancel_script(directory))
    for _ in range((GRACE + 20) * 5):
        if (await status(machine, directory)).ended:
            return
        await asyncio.sleep(0.2)
    raise JobError(
        f"machine {machine.name}: the job in {directory} does not stop, not even when killed: "
        "look at its processes on the machine"
    )
