"""Room on a disk, asked before it is needed."""

import os
from pathlib import Path

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.progress import human_size
from overbrainer_airflow.machines.protocol import Machine, run_checked
from overbrainer_airflow.machines.shell import quote


async def free_bytes(machine: Machine, directory: str) -> int:
    """Return the bytes that the account may still write to the directory's file system.

    Raises:
        MachineError: the directory is missing or the machine cannot be reached.
    """
    output = await run_checked(machine, f"df -Pk -- {quote(directory)}")
    fields = output.decode("ascii", "replace").splitlines()[-1].split()
    try:
        return int(fields[-3]) * 1024
    except (ValueError, IndexError) as error:
        raise MachineError(f"machine {machine.name}: df of {directory} says {fields}") from error


async def check_space(
    machine: Machine, directory: str, needed: int, what: str, *, counting: str | None = None
) -> None:
    """Make sure that ``needed`` bytes fit below ``directory`` on the machine.

    Args:
        machine: the machine.
        directory: a directory of it.
        needed: bytes.
        what: what needs them.
        counting: a directory whose content is a part of them already.

    Raises:
        MachineError: they do not; the message says how much is missing.
    """
    free = await free_bytes(machine, directory)
    if counting is not None:
        free += await _bytes_in(machine, counting)
    if free < needed:
        raise _too_little(f"machine {machine.name}", directory, needed, free, what)


def check_space_here(directory: Path, needed: int, what: str) -> None:
    """Make sure that ``needed`` bytes fit below ``directory`` on this worker.

    Raises:
        MachineError: they do not; the message says how much is missing.
    """
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        raise _too_little("this worker", str(directory), needed, free, what)


async def _bytes_in(machine: Machine, directory: str) -> int:
    output = await run_checked(machine, f"du -sk -- {quote(directory)} 2>/dev/null || true")
    fields = output.split()
    return int(fields[0]) * 1024 if fields else 0


def _too_little(where: str, directory: str, needed: int, free: int, what: str) -> MachineError:
    return MachineError(
        f"{where}: {what} needs {human_size(needed)} in {directory}, "
        f"{human_size(needed - free)} more than is free: make room there"
    )
