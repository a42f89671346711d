"""How a machine is set up, and what that makes of a job's command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.machines.shell import quote


def _plain_path(path: str) -> str:
    if not path or any(ord(letter) < 32 for letter in path):
        raise ValueError("give a path without control characters")
    return path


Path = Annotated[str, AfterValidator(_plain_path)]

IMAGE = (
    "axolotlai/axolotl:0.19.0-py3.12-cu130-2.12.1"
    "@sha256:9de7c7a5b8830480a7d2eb3b6d49759586615f5f8eb1126d5df29f8bd9fa324b"
)


class MachineSettings(BaseModel):
    """A machine's settings: the object ``overbrainer`` in the extra of its connection.

    Attributes:
        workdir: the directory that holds its runs and caches.
        runtime: how jobs run: ``native``, with a Python of the machine, or in a ``container``.
        venv: native: the virtual environment with torch and axolotl; ``python3`` on PATH when None.
        engine: container: ``docker`` or ``podman``.
        image: container: the image with torch and axolotl.
        runs_dir: where the machine sees the very runs that the worker has, on a file system that
            they share; None when they share none.
        gpus: container: ``all`` of the machine's GPUs, or ``none``.

    Paths are below the home directory unless absolute.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workdir: Path = "overbrainer"
    runtime: Literal["native", "container"] = "native"
    venv: Path | None = None
    runs_dir: Path | None = None
    engine: Literal["docker", "podman"] = "docker"
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] = IMAGE
    gpus: Literal["all", "none"] = "all"


@dataclass(frozen=True)
class Launch:
    """How a job is started, and stopped where its process group is not all of it.

    Attributes:
        command: shell words that run the job in its job directory, until it ends.
        env: the environment of the command; may hold secrets.
        stop: shell that ends what a signal to the process group does not reach.
    """

    command: str
    env: Mapping[str, str]
    stop: str = ""


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


def native_launch(
    settings: MachineSettings, command: Sequence[str], env: Mapping[str, str]
) -> Launch:
    """Return how a job is started with the machine's own Python."""
    program, *arguments = command
    first = python_word(settings) if program == "python3" else quote(program)
    return Launch(" ".join([first, *map(quote, arguments)]), env)
