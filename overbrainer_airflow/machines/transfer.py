"""Files to and from a machine: none gets its name before SHA-256 says that it is whole.

A file on its way is called ``<name>.part``; a reader of the destination never sees half of one.
What is there already and equal is not moved, what was begun is gone on with, and one transfer at a
time writes into a directory. A machine without a Python for the agent gets whole files over SFTP.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from overbrainer_airflow.errors import TransferError
from overbrainer_airflow.machines import plain_transfer
from overbrainer_airflow.machines.agent.locks import give_up, holder, take
from overbrainer_airflow.machines.agent.parts import part_of
from overbrainer_airflow.machines.link import Link, NoAgentError, linked
from overbrainer_airflow.machines.manifest import FileDigest, Manifest
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.trees import Transferred, TreeTransfer

log = logging.getLogger(__name__)

# A place is free at once when its holder is gone; nobody is told.
_LOOKS_EVERY = 0.5


async def send_tree(
    machine: Machine,
    local: Path,
    remote: str,
    names: Iterable[str],
    *,
    owner: str,
    alone_in: str | None = None,
) -> Transferred:
    """Bring files from ``local`` to ``remote`` on the machine.

    Args:
        machine: where to.
        local: the directory here.
        remote: the directory there; nothing else in it is touched.
        names: the files, relative to both.
        owner: whose transfer it is: an interrupted one of the same owner is taken over, one of
            another owner into the same directory is waited for.
        alone_in: a directory of the tree that holds an earlier state of it and no one's files:
            what is not sent is removed there, but for what its ``gguf/`` holds.

    Raises:
        TransferError: a file arrived twice with other content, changed while it was sent, or
            cannot be written there.
        MachineError: the machine cannot be reached.
        OSError: a file cannot be read here.
    """
    wanted = _wanted(names)
    try:
        async with linked(machine) as control:
            await _lock_there(control, remote, owner)
            if alone_in is not None:
                await _remove_others(control, f"{remote}/{alone_in}", wanted, alone_in)
            sent = await TreeTransfer(machine, control, local, remote).send(wanted)
            await control.ask("unlock")
            return sent
    except NoAgentError as error:
        log.warning("%s: sends over SFTP, an interrupted file starts over", error)
        inside = alone_in and f"{remote}/{alone_in}"
        return await plain_transfer.send_tree(
            machine, local, remote, wanted, owner=owner, alone_in=inside
        )


async def equal_tree(
    machine: Machine, local: Path, remote: str, names: Iterable[str]
) -> Manifest | None:
    """Return the files of ``local`` if the very same are in ``remote`` on the machine.

    Raises:
        MachineError: the machine cannot be reached.
        OSError: a file cannot be read here.
    """
    wanted = sorted(set(names))
    try:
        async with linked(machine) as control:
            return await TreeTransfer(machine, control, local, remote).equal(wanted)
    except NoAgentError:
        return await plain_transfer.equal_tree(machine, local, remote, wanted)


async def fetch_tree(
    machine: Machine, remote: str, local: Path, names: Iterable[str], *, owner: str
) -> Transferred:
    """Bring files from ``remote`` on the machine to ``local``; the other way of `send_tree`.

    Raises:
        TransferError: a file arrived twice with other content, or is not there.
        MachineError: the machine cannot be reached.
        OSError: a file cannot be written here.
    """
    return await _fetch(machine, remote, local, _wanted(names), expected=None, owner=owner)


async def fetch_file(
    machine: Machine, remote: str, local: Path, expected: FileDigest, *, owner: str
) -> int:
    """Bring a file to ``local``, which it replaces once it is ``expected``; return bytes moved.

    Raises:
        TransferError: it arrived twice with other content, is not there, or not what is expected.
        MachineError: the machine cannot be reached.
        OSError: it cannot be written here.
    """
    root, _, name = remote.rpartition("/")
    if name != local.name:
        raise ValueError(f"{remote} and {local} have different names")
    fetched = await _fetch(
        machine, root, local.parent, [name], expected={name: expected}, owner=owner
    )
    return fetched.moved


async def _fetch(
    machine: Machine,
    remote: str,
    local: Path,
    names: list[str],
    *,
    expected: Manifest | None,
    owner: str,
) -> Transferred:
    async with _locked_here(local, owner):
        try:
            async with linked(machine) as control:
                return await TreeTransfer(machine, control, local, remote).fetch(names, expected)
        except NoAgentError as error:
            log.warning("%s: fetches over SFTP, an interrupted file starts over", error)
            return await plain_transfer.fetch_tree(machine, remote, local, names, expected)


async def _remove_others(control: Link, root: str, names: list[str], top: str) -> None:
    inside = [name.removeprefix(f"{top}/") for name in names if name.startswith(f"{top}/")]
    keep = [*inside, *map(part_of, inside)]
    answer = await control.ask("prune", root=root, keep=keep, spare=["gguf"])
    if answer["removed"]:
        log.info("Removes %d files of an earlier model in %s", len(answer["removed"]), root)


async def _lock_there(control: Link, folder: str, owner: str) -> None:
    waited_for = None
    answer = await control.ask("lock", folder=folder, owner=owner)
    while answer["holder"] is not None:
        if answer["holder"] != waited_for:
            waited_for = answer["holder"]
            log.info("Waits for the transfer of %s into %s", waited_for, folder)
        await asyncio.sleep(_LOOKS_EVERY)
        answer = await control.ask("lock", folder=folder, owner=owner)


@asynccontextmanager
async def _locked_here(folder: Path, owner: str) -> AsyncIterator[None]:
    place = str(folder)
    waited_for = None
    while (held := take(place, owner, ends_earlier_try=False)) is None:
        if holder(place) != waited_for:
            waited_for = holder(place)
            log.info("Waits for the transfer of %s into %s", waited_for, folder)
        await asyncio.sleep(_LOOKS_EVERY)
    try:
        yield
    finally:
        give_up(place, held)


def _wanted(names: Iterable[str]) -> list[str]:
    """Return the names once each, none of which is what another is called on its way.

    Raises:
        TransferError: one is.
    """
    wanted = set(names)
    for name in wanted:
        if part_of(name) in wanted:
            raise TransferError(
                f"{name} would be called {part_of(name)} on its way, and there is a file of that "
                "name, left by another transfer: remove or rename it"
            )
    return sorted(wanted)
