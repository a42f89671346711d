"""Files on their way: a part grows beside its place and gets its name when it is whole."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from typing import Any, Tuple

from overbrainer_airflow.machines.agent.digests import (
    WORTH_REMEMBERING,
    Buffer,
    RunningDigest,
    remember_new,
)

# A path, its size in bytes and its SHA-256 in hex.
Whole = Tuple[str, int, str]

_LONGEST_NAME = 255
_MANY = 8

# Of linux/falloc.h and linux/fs.h.
_KEEP_SIZE = 1
_WRITE = 2


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
        make_folders(os.path.dirname(part))
        descriptor = os.open(part, flags, 0o644)
    os.fchmod(descriptor, 0o644)
    return descriptor


def make_folders(folder: str) -> None:
    """Make a directory and those above it, readable by all whatever the umask."""
    if os.path.isdir(folder):
        return
    make_folders(os.path.dirname(folder))
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


def reserve_part(path: str, size: int) -> os.stat_result:
    """Take the room for all of a large file, cut what its part has beyond, return what it is.

    Blocks that are taken at once lie together: writing into them costs a fraction of the time.

    Raises:
        OSError: there is not so much room, or the part cannot be written.
    """
    descriptor = open_part(path)
    try:
        if os.fstat(descriptor).st_size > size:
            os.ftruncate(descriptor, size)
        taken = _call("fallocate", descriptor, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))
        if taken == errno.ENOSPC:
            raise OSError(taken, os.strerror(taken), part_of(path))
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def write_out(descriptor: int, start: int, end: int) -> None:
    """Have the disk begin with a range, so that little is left for it to do at the end."""
    size = ctypes.c_int64(end - start)
    _call("sync_file_range", descriptor, ctypes.c_int64(start), size, _WRITE)


def _call(name: str, *arguments: Any) -> int:
    """Call a function of Linux and return its error, which is also that it is missing."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError:
        return errno.ENOSYS
    return 0 if function(*arguments) == 0 else ctypes.get_errno()


def publish(files: list[Whole]) -> None:
    """Give parts that were found right their names, once all of them are on the disk.

    Raises:
        OSError: a part is missing, a large one has another size, or one cannot be renamed.
    """
    large = [whole for whole in files if whole[1] >= WORTH_REMEMBERING]
    for path, size, digest in large:
        _check_whole(part_of(path), size, digest)
    _sync([part_of(path) for path, _, _ in files])
    for path, _, _ in files:
        os.replace(part_of(path), path)
    _sync(sorted({os.path.dirname(path) for path, _, _ in files}))
    remember_new({path: digest for path, _, digest in large})


def _check_whole(part: str, size: int, digest: str) -> None:
    """Refuse a part that somebody has cut since its bytes passed: there is a hole in it."""
    with open(part, "rb", buffering=0) as file:
        found = file.seek(0, os.SEEK_END)
        if found != size:
            raise OSError(f"{part} has {found} bytes, {size} were expected")
        with contextlib.suppress(OSError, AttributeError):  # not every system can tell
            if file.seek(0, os.SEEK_HOLE) == size:
                return
    # Some file systems make holes of zeros.
    if RunningDigest(part).upto(0, size) != digest:
        raise OSError(f"{part} was cut while it was being written")


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
        return _call("syncfs", descriptor) == 0
    finally:
        os.close(descriptor)
