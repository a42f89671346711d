"""Files over plain SFTP, for a machine without Python: each whole, hashed once it is there."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines.agent.parts import open_part, part_of, publish
from overbrainer_airflow.machines.manifest import (
    FileDigest,
    Manifest,
    local_manifest,
    machine_manifest,
)
from overbrainer_airflow.machines.progress import progress_lines
from overbrainer_airflow.machines.protocol import Machine, run_checked
from overbrainer_airflow.machines.shell import quote
from overbrainer_airflow.machines.trees import Transferred

log = logging.getLogger(__name__)

_TRIES = 2
_REMOVED_AT_ONCE = 500


async def send_tree(
    machine: Machine,
    local: Path,
    remote: str,
    names: Sequence[str],
    *,
    owner: str,
    alone_in: str | None,
) -> Transferred:
    """See `overbrainer_airflow.machines.transfer.send_tree`.

    Raises:
        TransferError: a file arrived twice with other content.
        MachineError: the machine cannot be reached or written to.
        OSError: a file cannot be read here.
    """
    if alone_in is not None:
        await _remove_others(machine, alone_in, [f"{remote}/{name}" for name in names])
    manifest = await local_manifest(local, names)
    there = await machine_manifest(machine, remote, manifest)
    missing = {name: entry for name, entry in manifest.items() if there.get(name) != entry}
    moved = 0
    for _ in range(_TRIES):
        await _make_directories(machine, remote, missing)
        for name, entry in missing.items():
            shown = progress_lines(f"Sends {name} to {machine.name}")
            await machine.put(local / name, _part(f"{remote}/{name}", owner), shown)
            moved += entry.size
        missing = await _publish_there(machine, remote, missing, owner)
        if not missing:
            return Transferred(manifest, moved)
        log.warning("%s arrived damaged on %s", ", ".join(missing), machine.name)
    name, entry = next(iter(missing.items()))
    raise TransferError(
        f"machine {machine.name}: {remote}/{name} is not what was sent, twice (expected "
        f"{entry.size} bytes, SHA-256 {entry.sha256}): check the machine's disk and memory"
    )


async def equal_tree(
    machine: Machine, local: Path, remote: str, names: Sequence[str]
) -> Manifest | None:
    """See `overbrainer_airflow.machines.transfer.equal_tree`.

    Raises:
        MachineError: the machine cannot be reached.
        OSError: a file cannot be read here.
    """
    there = await machine_manifest(machine, remote, names)
    if there.keys() != set(names):
        return None
    return there if await local_manifest(local, names) == there else None


async def fetch_tree(
    machine: Machine,
    remote: str,
    local: Path,
    names: Sequence[str],
    expected: Manifest | None = None,
) -> Transferred:
    """See `overbrainer_airflow.machines.transfer.fetch_tree`.

    Raises:
        TransferError: a file arrived twice with other content, is not there or not as expected.
        MachineError: the machine cannot be reached.
        OSError: a file cannot be written here.
    """
    manifest = expected or await machine_manifest(machine, remote, names)
    here = await local_manifest(local, [name for name in names if (local / name).is_file()])
    moved = 0
    for name in names:
        if name not in manifest:
            raise TransferError(f"machine {machine.name}: there is no file {remote}/{name}")
        if here.get(name) != manifest[name]:
            await _fetch(machine, f"{remote}/{name}", local / name, manifest[name])
            moved += manifest[name].size
    return Transferred({name: manifest[name] for name in names}, moved)


async def _fetch(machine: Machine, remote: str, local: Path, expected: FileDigest) -> None:
    part = Path(part_of(str(local)))
    for _ in range(_TRIES):
        os.close(open_part(str(local)))
        shown = progress_lines(f"Fetches {local.name} from {machine.name}")
        await machine.get(remote, part, shown)
        arrived = (await local_manifest(part.parent, [part.name]))[part.name]
        if arrived == expected:
            await asyncio.to_thread(publish, [(str(local), expected.size, expected.sha256)])
            return
        log.warning("%s arrived damaged", local.name)
    part.unlink()
    raise TransferError(
        f"{local} is not what machine {machine.name} should hold as {remote}, twice: it is "
        f"{arrived.size} bytes with SHA-256 {arrived.sha256}, expected {expected.size} bytes with "
        f"{expected.sha256}: nothing was replaced, clear the export's tasks to make it again"
    )


async def _make_directories(machine: Machine, remote: str, files: Mapping[str, object]) -> None:
    parents = sorted({str(PurePosixPath(remote) / PurePosixPath(name).parent) for name in files})
    if parents:
        await run_checked(machine, "umask 022; mkdir -p -- " + " ".join(map(quote, parents)))


def _part(path: str, owner: str) -> str:
    """Return a part's name that no other transfer uses: here is no lock."""
    return part_of(f"{path}.{sha256(owner.encode()).hexdigest()[:8]}")


async def _remove_others(machine: Machine, root: str, paths: list[str]) -> None:
    """Remove the files below ``root`` that are none of ``paths``, but for those in ``gguf/``."""
    listed = await run_checked(
        machine,
        f"""
        cd -- {quote(root)} 2>/dev/null || exit 0
        find . -type f ! -path './gguf/*' -print0
        """,
    )
    names = [os.fsdecode(name).removeprefix("./") for name in listed.split(b"\0") if name]
    found = [f"{root}/{name}" for name in names]
    others = [path for path in found if path not in set(paths)]
    for at in range(0, len(others), _REMOVED_AT_ONCE):
        words = " ".join(map(quote, others[at : at + _REMOVED_AT_ONCE]))
        await run_checked(machine, f"rm -f -- {words}")


async def _publish_there(
    machine: Machine, remote: str, files: dict[str, FileDigest], owner: str
) -> dict[str, FileDigest]:
    """Give each part that is right its name; return the files whose part is not."""
    parts = {name: _part(name, owner) for name in files}
    found = await machine_manifest(machine, remote, parts.values())
    right = [name for name, entry in files.items() if found.get(parts[name]) == entry]
    if right:
        moves = "\n".join(
            f"chmod 644 -- {quote(f'./{parts[name]}')} && "
            f"mv -f -- {quote(f'./{parts[name]}')} {quote(f'./{name}')} || exit 1"
            for name in right
        )
        await run_checked(machine, f"cd -- {quote(remote)} || exit 1\nsync\n{moves}")
    return {name: entry for name, entry in files.items() if name not in right}
