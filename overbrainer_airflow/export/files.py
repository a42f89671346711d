"""Files read once and written whole."""

import os
from hashlib import sha256
from pathlib import Path

_BLOCK = 1 << 20


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of ``path`` in hex, reading it once in small blocks."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write ``path`` so that a reader finds the old file or the new one, never half of it."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
