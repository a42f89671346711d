"""What a directory holds: each file's size and SHA-256, here and on a machine alike."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.agent.digests import digest_of
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

# Prints a JSON object of what is there. The names come as JSON too, so they may hold anything.
_DIGESTS = """
import hashlib, json, os, sys
os.chdir(sys.argv[1])
found = {}
for name in json.load(sys.stdin):
    try:
        with open(name, "rb") as file:
            digest = hashlib.sha256()
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
            found[name] = [file.tell(), digest.hexdigest()]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
print(json.dumps(found))
"""


async def local_manifest(root: Path, names: Iterable[str]) -> dict[str, FileDigest]:
    """Return the manifest of ``names`` below ``root``; digests that are known are not computed.

    Raises:
        OSError: one cannot be read.
    """
    wanted = list(names)
    return await asyncio.to_thread(lambda: {name: digest_file(root / name) for name in wanted})


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
    """Return the size and SHA-256 of a file; see `agent.digests.digest_of`.

    Raises:
        OSError: it cannot be read, or was written to meanwhile.
    """
    return FileDigest(path.stat().st_size, digest_of(str(path)))


def manifest_digest(manifest: Manifest) -> str:
    """Return one SHA-256, in hex, for all that a manifest says."""
    lines = [[name, entry.size, entry.sha256] for name, entry in sorted(manifest.items())]
    return sha256(json.dumps(lines).encode()).hexdigest()
