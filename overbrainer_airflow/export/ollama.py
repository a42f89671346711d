"""``ollama create`` through Ollama's own command line."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.modelfile import MODELFILE

# The grammar of a local name (Ollama's types/model/name.go). The tags `cloud`, `local` and
# `*-cloud` can be created but never shown, run or deleted: they select a source.
_NAME = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_-]{0,79}/)?"
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
    r"(?::(?!(?i:cloud|local|[A-Za-z0-9_.-]*-cloud)\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,79})?"
)
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\u2800-\u28ff]")


def check_ollama_name(name: object) -> str:
    """Return ``name`` if Ollama can create a model of that name and find it again.

    Raises:
        InvalidInputError: it cannot.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidInputError(
        f"Ollama cannot serve a model named {name!r}: give [namespace/]model[:tag] of ASCII "
        "letters, digits, '_', '-' and (not in the namespace) '.', each part starting with a "
        "letter, digit or '_' and at most 80 long; the tags cloud, local and *-cloud are Ollama's"
    )


@dataclass(frozen=True)
class Created:
    """The model is there."""


@dataclass(frozen=True)
class NotFound:
    """``ollama`` is not installed here; ``command`` is what to run by hand."""

    command: str


@dataclass(frozen=True)
class Failed:
    """``ollama create`` failed; ``reason`` is the last line of its error output."""

    reason: str


def ollama_command(gguf_dir: Path, name: str) -> str:
    """Return the shell command that creates the model from the Modelfile in ``gguf_dir``."""
    return f"cd {_quoted(gguf_dir)} && ollama create {name} -f {MODELFILE}"


def ollama_create(
    gguf_dir: Path, name: str, program: str = "ollama"
) -> Created | NotFound | Failed:
    """Run ``ollama create`` in ``gguf_dir``, so that a relative FROM means the same to any version.

    Raises:
        InvalidInputError: ``name`` is none that Ollama can serve.
    """
    check_ollama_name(name)
    if not (gguf_dir / MODELFILE).is_file():
        return Failed(f"there is no {gguf_dir / MODELFILE}")
    try:
        done = subprocess.run(  # noqa: S603 - the name is checked and no shell is involved
            [program, "create", name, "-f", MODELFILE],
            cwd=gguf_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    except FileNotFoundError:
        return NotFound(ollama_command(gguf_dir, name))
    except OSError as error:
        return Failed(f"{program}: {error.strerror}")
    if done.returncode == 0:
        return Created()
    lines = _plain_lines(done.stderr.decode("utf-8", "replace"))
    return Failed(lines[-1] if lines else f"exit status {done.returncode}")


def _quoted(path: Path) -> str:
    quoted = shlex.quote(str(path))
    return quoted if quoted.startswith("'") else f"'{quoted}'"


def _plain_lines(text: str) -> list[str]:
    """Return the lines of a terminal's output that say something, without cursor codes."""
    lines = (_TERMINAL.sub("", line).strip() for line in re.split(r"[\r\n]+", text))
    return [line for line in lines if line]
