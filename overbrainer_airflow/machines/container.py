"""A job in a container: what of the machine it sees, and how it is started and stopped.

/workspace/run         the run directory, so that a job in place sees its model two levels up
/workspace/cache       the cache of tools
/workspace/hf-cache    the Hugging Face cache (HF_HOME)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.machines.runtime import Launch, MachineSettings
from overbrainer_airflow.machines.shell import quote

_RUN = "/workspace/run"
_CACHE = "/workspace/cache"
_HF_CACHE = "/workspace/hf-cache"

_STOP_SECONDS = 8

_GPUS = {
    "docker": "--gpus all --ulimit memlock=-1 --ulimit stack=67108864",
    "podman": "--device nvidia.com/gpu=all --security-opt=label=disable",
}

# Podman gives containers limits that an account which is limited itself may not set.
_PODMAN = '--ulimit host $([ "$(id -u)" = 0 ] || echo --userns=keep-id)'


@dataclass(frozen=True)
class JobPlace:
    """Where a job is on its machine; paths are absolute.

    Attributes:
        name: one word that no other job has.
        run_dir: the run directory.
        job_dir: the job directory, somewhere below it.
        workdir: the machine's workdir.
    """

    name: str
    run_dir: str
    job_dir: str
    workdir: str


def root_in(settings: MachineSettings, place: JobPlace) -> str:
    """Return the job directory as the job sees it."""
    if settings.runtime == "native":
        return place.job_dir
    return _RUN + place.job_dir.removeprefix(place.run_dir)


def container_launch(
    settings: MachineSettings,
    place: JobPlace,
    command: Sequence[str],
    env: Mapping[str, str],
    secrets: Mapping[str, str],
) -> Launch:
    """Return how a job is started in a container of its own, and stopped.

    Secrets come through the container's input, so that the engine, which writes down how it was
    told to start a container, does not know them.

    Raises:
        InvalidInputError: a path that no mount can name, or a secret of several lines.
    """
    mounts = {
        _RUN: (place.run_dir, "Z"),
        _CACHE: (f"{place.workdir}/.cache", "z"),
        _HF_CACHE: (f"{place.workdir}/.hf-cache", "z"),
    }
    for source, _ in mounts.values():
        if ":" in source:
            raise InvalidInputError(f"{source} cannot be mounted in a container: it has a colon")
    for name, value in secrets.items():
        if "\n" in value:
            raise InvalidInputError(f"the secret {name} has several lines, a container takes one")
    env = dict(env) | {"OVERBRAINER_CACHE": _CACHE, "HF_HOME": _HF_CACHE, "HOME": "/tmp"}  # noqa: S108
    labels = settings.engine == "podman"
    run = [
        f"exec {settings.engine} run --rm --interactive --ipc=host",
        f"--name {quote(place.name)}",
        '--user "$(id -u):$(id -g)"',
        _PODMAN if settings.engine == "podman" else "",
        _GPUS[settings.engine] if settings.gpus == "all" else "",
        *(
            f"--volume {quote(f'{source}:{target}' + (f':{label}' if labels else ''))}"
            for target, (source, label) in mounts.items()
        ),
        f"--workdir {quote(root_in(settings, place))}",
        *(f"--env {quote(f'{name}={value}')}" for name, value in env.items()),
        quote(settings.image),
        "sh -c",
        quote(_reading(secrets)),
        "sh",
        *map(quote, command),
    ]
    told = "".join(f'printf "%s\\n" "${name}"; ' for name in secrets)
    folders = " ".join(quote(source) for source, _ in mounts.values())
    script = f"mkdir -p {folders} && {{ {told}:; }} | {' '.join(filter(None, run))}"
    stop = (
        f"{settings.engine} stop --time {_STOP_SECONDS} {quote(place.name)}\n"
        f"{settings.engine} rm --force {quote(place.name)}\n"
    )
    return Launch(f"sh -c {quote(script)}", dict(secrets), stop)


def _reading(secrets: Mapping[str, str]) -> str:
    """Return shell that takes the secrets from its input, then runs its arguments."""
    reads = "".join(f"IFS= read -r {name}; export {name}; " for name in secrets)
    return f'{reads}exec "$@" </dev/null'
