"""Text for a POSIX shell: quoting, and scripts that any login shell passes on unharmed.

A script travels over the channel's standard input to `sh -s`, so that whatever it holds (paths,
secrets) is in no argument list, and whatever the account's login shell is, a POSIX shell runs it.
"""

import re
import shlex
import uuid
from collections.abc import Mapping

from overbrainer_airflow.errors import InvalidInputError, MachineError

SHELL_COMMAND = "exec sh -s"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quote(text: str) -> str:
    """Return ``text`` as one word of a POSIX shell.

    Raises:
        InvalidInputError: it holds a NUL byte, which no argument can carry.
    """
    if "\0" in text:
        raise InvalidInputError(f"{text!r} holds a NUL byte")
    return shlex.quote(text)


def exports(env: Mapping[str, str]) -> str:
    """Return the lines that export ``env``.

    Raises:
        InvalidInputError: a name that is no variable's name, or a value with a NUL byte.
    """
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise InvalidInputError(f"{name!r} cannot name an environment variable")
    return "".join(f"export {name}={quote(value)}\n" for name, value in env.items())


def new_mark() -> str:
    """Return a line that no login shell prints by itself."""
    return f"overbrainer:{uuid.uuid4().hex}"


def framed(script: str, mark: str, *, reads: bool = False) -> bytes:
    """Return what is sent to `sh -s` for ``script``.

    The braces make the shell read all of it before it runs any of it: a script that a lost
    connection cut short does nothing. The mark separates the script's output from a login shell's
    banner. Unless it ``reads``, the script's own input is empty; a script that does must not be
    sent anything before its mark has arrived.
    """
    source = "" if reads else " </dev/null"
    return f"{{\nprintf '\\n%s\\n' {quote(mark)}\n{script}\n}}{source}\n".encode()


def after_mark(output: bytes, mark: str) -> bytes:
    """Return the part of ``output`` that the script of that mark printed.

    Raises:
        MachineError: the mark is missing: the shell did not run the script.
    """
    _, found, rest = output.partition(f"{mark}\n".encode())
    if not found:
        said = output.decode("utf-8", "replace").strip()[-200:]
        raise MachineError(
            f"the login shell did not run a POSIX shell script, it said: {said or 'nothing'}"
        )
    return rest
