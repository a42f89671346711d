"""Whether a machine can do a job, asked before anything is sent to it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.machines.protocol import Machine, run_checked
from overbrainer_airflow.machines.runtime import python_word, shell_path

_MISSING = """
import importlib.util, json, os, shutil, sys
modules, programs = json.loads(sys.argv[1])
path = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
missing = [name for name in modules if importlib.util.find_spec(name) is None]
missing += [name for name in programs if shutil.which(name, path=path) is None]
print(json.dumps([sys.executable, missing]))
"""


@dataclass(frozen=True)
class MachineFacts:
    """What a machine says of itself.

    Attributes:
        workdir: the absolute path of its workdir, which exists and can be written.
        platform: its ``uname -sm``.
    """

    workdir: str
    platform: str


async def look_at(machine: Machine) -> MachineFacts:
    """Ask a machine what it is; its workdir is made if need be.

    Raises:
        MachineError: it cannot be reached, or its workdir cannot be written.
    """
    workdir = shell_path(machine.settings.workdir)
    output = await run_checked(
        machine,
        f"""
        mkdir -p -- {workdir} && cd -- {workdir} && [ -w . ] || {{
            echo "the workdir "{workdir}" cannot be written by $(id -un):" \\
                "give another one in the setting workdir" >&2
            exit 1
        }}
        pwd -P
        uname -sm
        """,
    )
    path, platform = output.decode("utf-8", "replace").splitlines()[-2:]
    return MachineFacts(path, platform.strip())


async def check_tools(machine: Machine, modules: Sequence[str], programs: Sequence[str]) -> None:
    """Make sure that jobs find ``modules`` and ``programs``, or that there is an engine.

    What a container's image holds shows only in the container.

    Raises:
        MachineError: something is missing; the message says what and where.
    """
    if machine.settings.runtime == "container":
        await _check_engine(machine, machine.settings.engine)
        return
    python = python_word(machine.settings)
    wanted = json.dumps([list(modules), list(programs)])
    output = await run_checked(
        machine,
        f"""
        command -v {python} >/dev/null || {{
            echo "there is no "{python}": install it, or name the virtual environment with torch" \\
                "and axolotl in the setting venv" >&2
            exit 1
        }}
        {python} - '{wanted}' <<'PYTHON'
{_MISSING}
PYTHON
        """,
    )
    executable, missing = json.loads(output.decode("utf-8", "replace").splitlines()[-1])
    if missing:
        raise MachineError(
            f"machine {machine.name}: {executable} lacks {', '.join(missing)}: install what is "
            "missing, or name another environment in the setting venv"
        )


async def _check_engine(machine: Machine, engine: str) -> None:
    await run_checked(
        machine,
        f"""
        command -v {engine} >/dev/null || {{
            echo "there is no {engine}: install it, or name another one in the setting engine" >&2
            exit 1
        }}
        said=$({engine} version 2>&1) || {{
            echo "{engine} cannot be used by $(id -un): $(echo "$said" | tail -n 1)" >&2
            exit 1
        }}
        """,
    )
