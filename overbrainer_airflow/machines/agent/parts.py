"""Files on their way: a part grows beside its place and gets its name when it is whole."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from typing import Tuple

from overbrainer_airflow.machines.agent.digests import WORTH_REMEMBERING, Buffer, remember_new

# A path, its size in bytes and its SHA-256 in hex.
Whole = Tuple[str, int, str]

_LONGEST_NAME = 255
_MANY = 8


def part_of(path: str) -> str:
    """Return what ``path`` is called until all of it is there and right."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) + len(".part") > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, name + ".part")


def open_part(path: str, *, anew: bool = False) -> int:
    """Open the part of ``path``, empty or as it is, and return the descriptor.

    Its directories are made.

    Its modes are those of any file of a run, whatever the umask.

    Raises:
        OSError: it cannot be written, or somebody put a link in its place.
    """
    part = part_of(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if anew else 0)
    try:
        descriptor = os.open(part, flags, 0o644)
    except FileNotFoundError:
        _make_folders(os.path.dirname(part))
        descriptor = os.open(part, flags, 0o644)
    os.fchmod(descriptor, 0o644)
    return descriptor


def _make_folders(folder: str) -> None:
    if os.path.isdir(folder):
        return
    _make_folders(os.path.dirname(folder))
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # noqa: S103 - readable, as the modes of the files say


def write_at(descriptor: int, data: memoryview, at: int) -> None:
    """Write all of ``data`` at an offset.

    Raises:
        OSError: the disk is full, or it cannot be written.
    """
    while data:
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count


def write_part(path: str, content: Buffer) -> None:
    """Write all of a small file into its part.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = open_part(path, anew=True)
    try:
        write_at(descriptor, memoryview(content), 0)
    finally:
        os.close(descriptor)


def cut_part(path: str, size: int) -> None:
    """Make the part of ``path``, if there is one, no longer than ``size``."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(part_of(path)).st_size > size:
            os.truncate(part_of(path), size)


def publish(files: list[Whole]) -> None:
    """Give parts that were found right their names, once all of them are on the disk.

    Raises:
        OSError: a part is missing, a large one has another size, or one cannot be renamed.
    """
    large = [whole for whole in files if whole[1] >= WORTH_REMEMBERING]
    for path, size, _ in large:
        found = os.stat(part_of(path)).st_size
        if found != size:
            raise OSError(f"{part_of(path)} has {found} bytes, {size} were expected")
    _sync([part_of(path) for path, _, _ in files])
    for path, _, _ in files:
        os.replace(part_of(path), path)
    _sync(sorted({os.path.dirname(path) for path, _, _ in files}))
    remember_new({path: digest for path, _, digest in large})


def _sync(paths: list[str]) -> None:
    """Write files or directories of one file system to its disk."""
    if len(paths) > _MANY and _sync_file_system(paths[0]):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError:
            # Some network file systems cannot do this to a directory.
            if not os.path.isdir(path):
                raise
        finally:
            os.close(descriptor)


def _sync_file_system(path: str) -> bool:
    """Write out all of a file system at once, which costs less than many files one by one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return bool(ctypes.CDLL(None).syncfs(descriptor) == 0)
    except (OSError, AttributeError):
        return False
    finally:
        os.close(descriptor)
