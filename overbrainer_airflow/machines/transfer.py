"""Files to and from a machine, each checked by SHA-256 before it gets its name.

A file on its way is called ``<name>.part``; a reader of the destination never sees half of one.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from overbrainer_airflow.errors import MachineError, TransferError
from overbrainer_airflow.machines.manifest import (
    FileDigest,
    Manifest,
    digest_file,
    machine_manifest,
)
from overbrainer_airflow.machines.progress import human_size, progress_lines
from overbrainer_airflow.machines.protocol import Machine, run_checked
from overbrainer_airflow.machines.shell import quote

log = logging.getLogger(__name__)

_TRIES = 2


async def send_tree(machine: Machine, local: Path, remote: str, manifest: Manifest) -> int:
    """Bring the files of ``manifest`` from ``local`` to ``remote`` and return the bytes sent.

    Files that are already there and equal are not sent. Nothing else in ``remote`` is touched.

    Raises:
        TransferError: a file arrived with other content, twice.
        MachineError: the machine cannot be reached or written to.
    """
    there = await machine_manifest(machine, remote, manifest)
    missing = {name: entry for name, entry in manifest.items() if there.get(name) != entry}
    sent = 0
    for attempt in range(1, _TRIES + 1):
        await _make_directories(machine, remote, missing)
        for name, entry in missing.items():
            await machine.put(
                local / name,
                f"{remote}/{name}.part",
                progress_lines(f"sends {name} to {machine.name}"),
            )
            sent += entry.size
        missing = await _wrong_parts(machine, remote, missing)
        if not missing:
            return sent
        if attempt < _TRIES:
            log.warning(
                "%s arrived damaged on %s, sends it again", ", ".join(missing), machine.name
            )
    name = next(iter(missing))
    raise TransferError(
        f"machine {machine.name}: {remote}/{name} is not what was sent, twice (expected "
        f"{missing[name].size} bytes, SHA-256 {missing[name].sha256}): "
        "check the machine's disk and memory"
    )


async def fetch_file(machine: Machine, remote: str, local: Path, expected: FileDigest) -> None:
    """Bring one file from the machine to ``local``, which it replaces once it is verified.

    Raises:
        TransferError: it arrived with other content, twice.
        MachineError: the machine cannot be reached or has no such file.
    """
    part = local.with_name(f"{local.name}.part")
    local.parent.mkdir(parents=True, exist_ok=True)
    try:
        for attempt in range(1, _TRIES + 1):
            await machine.get(
                remote, part, progress_lines(f"fetches {local.name} from {machine.name}")
            )
            arrived = digest_file(part)
            if arrived == expected:
                with part.open("rb") as file:
                    os.fsync(file.fileno())
                part.replace(local)
                return
            if attempt < _TRIES:
                log.warning("%s arrived damaged, fetches it again", local.name)
    finally:
        part.unlink(missing_ok=True)
    raise TransferError(
        f"{local} is not what machine {machine.name} holds as {remote}, twice: it is "
        f"{arrived.size} bytes with SHA-256 {arrived.sha256}, expected {expected.size} bytes with "
        f"{expected.sha256}: nothing was replaced, try again"
    )


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


async def check_space(machine: Machine, directory: str, needed: int, what: str) -> None:
    """Make sure that ``needed`` bytes fit below ``directory`` on the machine.

    Raises:
        MachineError: they do not; the message says how much is missing.
    """
    free = await free_bytes(machine, directory)
    if free < needed:
        raise MachineError(
            f"machine {machine.name}: {what} needs {human_size(needed)} in {directory}, "
            f"{human_size(needed - free)} more than is free: make room there"
        )


async def _make_directories(machine: Machine, remote: str, files: Mapping[str, object]) -> None:
    parents = sorted({str(PurePosixPath(remote) / PurePosixPath(name).parent) for name in files})
    if parents:
        await run_checked(machine, "mkdir -p -- " + " ".join(map(quote, parents)))


async def _wrong_parts(
    machine: Machine, remote: str, files: dict[str, FileDigest]
) -> dict[str, FileDigest]:
    """Give each part that is right its name; return the files whose part is not."""
    parts = await machine_manifest(machine, remote, [f"{name}.part" for name in files])
    right = [name for name, entry in files.items() if parts.get(f"{name}.part") == entry]
    if right:
        moves = "\n".join(
            f"mv -f -- {quote(f'{name}.part')} {quote(name)} || exit 1"
            for name in (f"./{name}" for name in right)
        )
        await run_checked(machine, f"cd -- {quote(remote)} || exit 1\n{moves}")
    return {name: entry for name, entry in files.items() if name not in right}
