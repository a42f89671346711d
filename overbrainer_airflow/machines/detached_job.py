"""A job that goes on by itself on a machine, found, followed and stopped through its directory.

    <job directory>/
        job.sh       what started it
        job.lock     held while a job is being started or told to stop
        job.inputs   what the job was made of, as one line
        job.boot     the machine's boot id, and when the leader started
        job.pid      the session leader, which is also its process group
        job.log      what it prints
        exit_code    written when it ends, through a rename
        cancelling   somebody asked it to stop: the process that sees to it, and its start
        cancelled    it has stopped for that reason, and its processes are gone
        scratch/     the job's throwaway files; cancelling removes them
        attempts/N/  these files, of an earlier try that did not end well

Nothing else knows about the job: whoever can read the directory can take over.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from overbrainer_airflow.errors import JobError, MachineError
from overbrainer_airflow.machines.job_shell import (
    GRACE,
    cancel_script,
    poll_script,
    start_script,
)
from overbrainer_airflow.machines.protocol import Machine, run_checked
from overbrainer_airflow.machines.shell import quote

Outcome = Literal["started", "running", "finished", "different"]
State = Literal["absent", "running", "exited", "cancelled", "lost"]


@dataclass(frozen=True)
class Poll:
    """What one look at a job brought.

    Attributes:
        state: what the job is at.
        exit_code: of the job's command, when it has exited.
        log: the log from the offset asked for, in bytes as they are.
        log_size: bytes in the whole log at that moment.
    """

    state: State
    exit_code: int | None
    log: bytes
    log_size: int

    @property
    def ended(self) -> bool:
        """Whether the job will not go on."""
        return self.state != "running"


def parse_poll(output: bytes) -> Poll:
    """Read what `poll_script` printed.

    Raises:
        MachineError: it is something else.
    """
    line, newline, log = output.partition(b"\n")
    words = line.decode("ascii", "replace").split()
    try:
        if not newline:
            raise ValueError
        state, *code, size = words
        exit_code = int(code[0]) if code else None
        if state not in ("absent", "running", "exited", "cancelled", "lost"):
            raise ValueError
        return Poll(state, exit_code, log, int(size))  # type: ignore[arg-type]
    except ValueError:
        raise MachineError(f"the job's state cannot be read from {line[:100]!r}") from None


async def start(
    machine: Machine,
    directory: str,
    command: str,
    env: Mapping[str, str],
    *,
    inputs: str,
    result: str,
) -> Outcome:
    """Start a job in its directory, or find that one runs or has finished; see `start_script`.

    Raises:
        MachineError: the machine cannot be reached, or the job could not be started.
    """
    script = start_script(directory, command, env, inputs, result)
    output = (await run_checked(machine, script)).decode("ascii", "replace").strip()
    for outcome in ("started", "running", "finished", "different"):
        if output == outcome:
            return outcome
    raise MachineError(f"machine {machine.name}: starting {directory} answered {output[:100]!r}")


async def made_of(machine: Machine, directory: str) -> str:
    """Return the line that `start` was given as ``inputs``, empty when no job was started.

    Raises:
        MachineError: the machine cannot be reached.
    """
    script = f"cd -- {quote(directory)} 2>/dev/null && cat job.inputs 2>/dev/null || :"
    return (await run_checked(machine, script)).decode("utf-8", "replace").strip()


async def poll(machine: Machine, directory: str, offset: int = 0) -> Poll:
    """Look at a job once, and at its log from ``offset`` on.

    Raises:
        MachineError: the machine cannot be reached.
    """
    return parse_poll(await run_checked(machine, poll_script(directory, offset)))


async def cancel(machine: Machine, directory: str) -> None:
    """Have a job stopped; return once its processes are gone.

    Raises:
        MachineError: the machine cannot be reached.
        JobError: it is still there well after it was killed.
    """
    await run_checked(machine, cancel_script(directory))
    for _ in range((GRACE + 20) * 5):
        if (await poll(machine, directory, offset=1 << 62)).ended:
            return
        await asyncio.sleep(0.2)
    raise JobError(
        f"machine {machine.name}: the job in {directory} does not stop, not even when killed: "
        "look at its processes on the machine"
    )
