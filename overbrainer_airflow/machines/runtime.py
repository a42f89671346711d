"""How a machine is set up, and what that makes of a job's command."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.machines.shell import quote


def _plain_path(path: str) -> str:
    if not path or any(ord(letter) < 32 for letter in path):
        raise ValueError("give a path without control characters")
    return path


Path = Annotated[str, AfterValidator(_plain_path)]


class MachineSettings(BaseModel):
    """A machine's settings: the object ``overbrainer`` in the extra of its connection.

    Attributes:
        workdir: the directory that holds its runs and caches.
        runtime: how jobs run: ``native``, with a Python of the machine.
        venv: the virtual environment with torch and axolotl; ``python3`` on PATH when None.

    Paths are below the home directory unless absolute.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workdir: Path = "overbrainer"
    runtime: Literal["native"] = "native"
    venv: Path | None = None


def settings_from(value: object, owner: str) -> MachineSettings:
    """Read settings from a connection's extra or the configuration.

    Args:
        value: the object, or None for the defaults.
        owner: where it was found, for messages.

    Raises:
        InvalidInputError: an unknown setting or a wrong value; the message names it.
    """
    try:
        return MachineSettings.model_validate({} if value is None else value)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'overbrainer'}: {fault['msg']}"
            for fault in error.errors()
        )
        known = ", ".join(MachineSettings.model_fields)
        raise InvalidInputError(
            f"{owner} has settings that cannot be used: {faults}; the settings are {known}"
        ) from error


def shell_path(path: str) -> str:
    """Return a path of the settings as a word of a shell on the machine."""
    return quote(path) if path.startswith("/") else f'"$HOME"/{quote(path.removeprefix("~/"))}'


def python_word(settings: MachineSettings) -> str:
    """Return the Python that runs jobs, as a word of a shell on the machine."""
    return shell_path(f"{settings.venv}/bin/python3") if settings.venv else "python3"


def job_command(settings: MachineSettings, command: Sequence[str]) -> str:
    """Return a job's command as shell, with the program that the runtime means by ``python3``."""
    program, *arguments = command
    first = python_word(settings) if program == "python3" else quote(program)
    return " ".join([first, *map(quote, arguments)])
