"""``export.sh``, as it is written into a job directory."""

from importlib.resources import files
from pathlib import Path

from overbrainer_airflow.export.files import write_whole

SCRIPT_FILE = "export.sh"

TRAMPOLINE = (
    "import os, sys; os.environ['PATH'] = os.pathsep.join("
    "[os.path.dirname(sys.executable), os.environ.get('PATH', os.defpath)]); "
    "os.execvp('sh', ['sh', *sys.argv[1:]])"
)
"""Python that starts the script with its own directory first on ``PATH``.

The ``python3`` and ``axolotl`` that the script calls are then those of the environment that the
machine's runtime chose, whatever the login shell's ``PATH`` says.
"""

PYTHON_MODULES = ("torch", "numpy", "transformers", "yaml")
"""What the script's Python imports."""

MERGE_PROGRAM = "axolotl"
"""What merges an adapter; stands beside the Python."""

_PARTS = ("llama_cpp.sh", "export.sh")


def export_script() -> str:
    """Return the whole script: the llama.cpp helpers, then the export."""
    scripts = files("overbrainer_airflow.export") / "scripts"
    return "\n".join((scripts / part).read_text(encoding="utf-8") for part in _PARTS)


def write_script(job_dir: Path) -> Path:
    """Write the script into ``job_dir``, which is made if need be, and return its path."""
    job_dir.mkdir(parents=True, exist_ok=True)
    path = job_dir / SCRIPT_FILE
    write_whole(path, export_script())
    return path
