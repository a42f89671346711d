"""How a machine is set up, and what that makes of a job's command."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from overbrainer_airflow.errors import InvalidInputError


def _plain_path(path: str) -> str:
    if not path or any(ord(letter) < 32 for letter in path):
        raise ValueError("give a path without control characters")
    return path


Path = Annotated[str, AfterValidator(_plain_path)]


class MachineSettings(BaseModel):
    """A machine's settings: the object ``overbrainer`` in the extra of its connection.

    Attributes:
        workdir: the directory that holds its runs and caches; below the home directory unless
            absolute.
        runtime: how jobs run: ``native``, with a Python of the machine.
        venv: the virtual environment with torch and axolotl; ``python3`` on PATH when None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workdir: Path = "overbrainer"
    runtime: Literal["native"] = "native"
    venv: Path | None = None

    @property
    def python(self) -> str:
        """The Python that runs jobs, as a shell on the machine finds it."""
        return f"{self.venv}/bin/python3" if self.venv else "python3"


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


def job_command(settings: MachineSettings, command: Sequence[str]) -> list[str]:
    """Return a job's command with the program that the machine's runtime means by it."""
    program, *arguments = command
    return [settings.python if program == "python3" else program, *arguments]
