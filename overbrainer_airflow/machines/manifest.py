"""What a directory holds: each file's size and SHA-256, here and on a machine alike."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.protocol import HASH_TIMEOUT, Machine, run_checked
from overbrainer_airflow.machines.runtime import python_word
from overbrainer_airflow.machines.shell import quote


@dataclass(frozen=True)
class FileDigest:
    """A file's content: its size in bytes and its SHA-256 in hex."""

    size: int
    sha256: str


#: Files by their path relative to one directory, with ``/``.
Manifest = Mapping[str, FileDigest]

_BLOCK = 1 << 20

# Prints a JSON object of what is there. The names come as JSON too, so they may hold anything.
_DIGESTS = """
import hashlib, json, os, sys
os.chdir(sys.argv[1])
found = {}
for name in json.load(sys.stdin):
    try:
        with open(name, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            found[name] = [file.tell(), digest.hexdigest()]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
print(json.dumps(found))
"""


async def local_manifest(root: Path, files: Iterable[Path]) -> dict[str, FileDigest]:
    """Return the manifest of ``files`` below ``root``; reading them blocks no event loop.

    Raises:
        OSError: one cannot be read.
    """
    names = list(files)
    return await asyncio.to_thread(
        lambda: {path.relative_to(root).as_posix(): digest_file(path) for path in names}
    )


async def machine_manifest(
    machine: Machine, root: str, names: Iterable[str]
) -> dict[str, FileDigest]:
    """Return the manifest of those of ``names`` that exist below ``root`` on the machine.

    Raises:
        MachineError: the machine cannot be reached, or has no Python to hash with.
    """
    wanted = sorted(names)
    test = f"[ -d {quote(root)} ] || {{ echo '{{}}'; exit; }}"
    python = python_word(machine.settings)
    hashed = f"{python} -c {quote(_DIGESTS)} {quote(root)} <<'NAMES'\n{json.dumps(wanted)}\nNAMES"
    script = (
        f"{test}\nif command -v {python} >/dev/null; then\n{hashed}\nelse\n"
        f"{_without_python(root, wanted)}\nfi"
    )
    output = await run_checked(machine, script, timeout=HASH_TIMEOUT)
    try:
        return {
            name: FileDigest(int(size), str(digest))
            for name, (size, digest) in json.loads(output).items()
        }
    except ValueError as error:
        raise MachineError(
            f"machine {machine.name}: no manifest of {root}: {output[:100]!r}"
        ) from error


def _without_python(root: str, names: list[str]) -> str:
    """Return shell that prints what `_DIGESTS` prints, for a machine that has no Python."""
    files = " ".join(quote(f"./{name}") for name in names)
    keys = " ".join(quote(json.dumps(name)) for name in names)
    return f"""
cd -- {quote(root)} || exit 1
set -- {keys}
comma=
printf '{{'
for file in {files}; do
    if [ -f "$file" ]; then
        digest=$(sha256sum <"$file" || shasum -a 256 <"$file") || exit 1
        printf '%s%s: [%d, "%s"]' "$comma" "$1" "$(($(wc -c <"$file")))" "${{digest%% *}}"
        comma=,
    fi
    shift
done
printf '}}\\n'
"""


def digest_file(path: Path) -> FileDigest:
    """Return the size and SHA-256 of a file, read once in small blocks."""
    digest = sha256()
    size = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileDigest(size, digest.hexdigest())


def manifest_digest(manifest: Manifest) -> str:
    """Return one SHA-256, in hex, for all that a manifest says."""
    lines = [[name, entry.size, entry.sha256] for name, entry in sorted(manifest.items())]
    return sha256(json.dumps(lines).encode()).hexdigest()
