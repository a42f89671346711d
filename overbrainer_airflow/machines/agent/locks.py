"""One transfer at a time into a directory, and nobody left who holds it in vain."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
from typing import BinaryIO

from overbrainer_airflow.machines.agent.parts import make_folders

LOCK_FILE = ".transfer.lock"


def take(folder: str, owner: str, *, ends_earlier_try: bool) -> BinaryIO | None:
    """Take the one place for a transfer into ``folder`` and return what holds it, or None.

    It is free again after `give_up`, or when the process is gone.

    Args:
        folder: the destination; made if missing.
        owner: whose transfer it is.
        ends_earlier_try: whether to end a process of this host that has it for the same owner: an
            earlier try of this transfer, cut off from its worker.

    Raises:
        OSError: the directory cannot be written.
    """
    make_folders(folder)
    path = os.path.join(folder, LOCK_FILE)
    while True:
        file = open(path, "a+b")  # noqa: SIM115 - open for as long as the place is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not (ends_earlier_try and _end_earlier_try(file, owner)):
                file.close()
                return None
            fcntl.flock(file, fcntl.LOCK_EX)
        # Who had it before may have removed the file that was waited for.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                file.truncate(0)
                file.write(json.dumps([owner, os.getpid(), socket.gethostname()]).encode())
                file.flush()
                return file
        file.close()


def give_up(folder: str, held: BinaryIO) -> None:
    """Free the place that `take` returned."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, LOCK_FILE))
    held.close()


def holder(folder: str) -> str:
    """Return who has the place in ``folder``, for messages."""
    with contextlib.suppress(OSError, ValueError):
        with open(os.path.join(folder, LOCK_FILE)) as file:
            owner, pid, host = json.load(file)
        return f"{owner} (process {pid} on {host})"
    return "another transfer"


def _end_earlier_try(file: BinaryIO, owner: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        file.seek(0)
        whose, pid, host = json.loads(file.read().decode())
        if (whose, host) == (owner, socket.gethostname()) and pid not in (0, 1, os.getpid()):
            os.kill(pid, signal.SIGTERM)
            return True
    return False
