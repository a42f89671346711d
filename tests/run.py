"""Sets up what the tests need and runs them: `python3 tests/run.py [--only SUITE] [pytest ...]`.

Standard library only: the tools are in the environments that `demo.toolchain` makes.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from demo import toolchain  # noqa: E402 - the checkout is not installed here

OLDEST_AIRFLOW = "apache-airflow==3.1.8"
SUITES = ("lint", "unit", "airflow", "oldest", "integration", "acceptance")
BENCHMARKS = {
    "bench-import": "benchmarks/import_operators.py",
    "bench-follow": "benchmarks/follow_jobs.py",
    "bench-transfer": "benchmarks/transfer.py",
}


def main() -> None:
    """Run the suites and exit with 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[*SUITES, "format", *BENCHMARKS])
    options, rest = parser.parse_known_args()
    suites = [options.only] if options.only else list(SUITES)
    toolchain.need_programs("sshd", "busybox", "shellcheck", "dash")
    python = toolchain.airflow_python()
    failed = []
    for suite in suites:
        started = time.monotonic()
        ok = all([_run(command) for command in _commands(suite, python, rest)])
        verdict = "passed" if ok else "FAILED"
        print(f"tests: {suite} {verdict} in {time.monotonic() - started:.0f} s", flush=True)
        failed += [] if ok else [suite]
    if failed:
        sys.exit(f"tests: failed: {', '.join(failed)}")


def _commands(suite: str, python: Path, rest: list[str]) -> list[list[str]]:
    bin_dir = python.parent
    if suite == "format":
        return [
            [f"{bin_dir}/ruff", "format", "--quiet", "."],
            [f"{bin_dir}/ruff", "check", "--quiet", "--fix", "."],
        ]
    if suite == "lint":
        return [
            [f"{bin_dir}/ruff", "format", "--quiet", "--check", "."],
            [f"{bin_dir}/ruff", "check", "--quiet", "."],
            [f"{bin_dir}/mypy", "--no-error-summary"],
        ]
    if suite in BENCHMARKS:
        return [[str(python), BENCHMARKS[suite], *rest]]
    folders = [f"tests/{suite}"]
    if suite == "oldest":
        python = toolchain.airflow_python(OLDEST_AIRFLOW)
        folders = ["tests/unit", "tests/airflow"]
    if suite == "acceptance":
        toolchain.base_model()
        toolchain.llama_cpp_mirror()
    return [[str(python), "-m", "pytest", "-q", "--no-header", *folders, *rest]]


def _run(command: list[str]) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    main()
