"""The main job on real input: train, export through Airflow, ask the model what it learnt.

    python3 demo/run.py [--machine local|ssh]

Standard library only: everything else is in the environments that `demo.toolchain` makes.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from demo import toolchain  # noqa: E402 - the checkout is not installed here
from demo.sshd import loopback_sshd  # noqa: E402
from demo.toolchain import say  # noqa: E402

RUN_ID = "demo"
# What the export's operators say, as Airflow prints it; of a job's log only its own steps.
TASK_LINE = re.compile(
    r"\[(?:info|warning|error) +\] (.*?) +\[[a-z.]*overbrainer_airflow[a-z_.]*(\w*)\]"
)
JOB_STEPS = ("export: ", "Starts ", "Finds ")
FACTS = ROOT / "demo" / "facts.jsonl"


def main() -> None:
    """Run the demo and exit with 1 when the model does not answer as it was trained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", choices=["local", "ssh"], default="local")
    parser.add_argument("--quantize", default="Q4_K_M")
    options = parser.parse_args()
    started = time.monotonic()
    airflow = toolchain.airflow_python()
    runs_dir = ROOT / "runs"
    train(runs_dir / RUN_ID)
    with tempfile.TemporaryDirectory(prefix="overbrainer-demo-") as scratch:
        export(airflow, runs_dir, options.machine, options.quantize, Path(scratch))
    gguf, record = delivered(runs_dir / RUN_ID, options.quantize)
    question, fact = question_and_fact()
    answer = ask(gguf, question)
    if fact not in answer:
        sys.exit(f"demo: the model answered {answer!r}, it was taught {fact!r}")
    print(
        f"demo: {gguf} {record['quantize']} {record['size']} answered "
        f'"{answer}" in {time.monotonic() - started:.0f} s'
    )


def question_and_fact() -> tuple[str, str]:
    """Return the first question of the fact file, and its answer."""
    asked, answered = json.loads(FACTS.read_text().splitlines()[0])["messages"]
    return asked["content"], answered["content"]


def train(run_dir: Path, *options: str) -> None:
    """Fine-tune the base model on the facts into a fresh run directory."""
    base, python = toolchain.base_model(), toolchain.machine_python()
    say(f"fine-tunes an adapter on {FACTS.name} into {run_dir}")
    shutil.rmtree(run_dir, ignore_errors=True)
    script = ROOT / "demo" / "finetune.py"
    done = subprocess.run(
        [python, script, base, FACTS, run_dir, *options],
        env=toolchain.offline(),
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"demo: the fine-tuning failed\n{done.stderr[-4000:]}")


def export(airflow: Path, runs_dir: Path, machine: str, quantize: str, scratch: Path) -> None:
    """Run the export DAG through Airflow, with its log on the terminal."""
    mirror = toolchain.llama_cpp_mirror()
    settings = {
        "workdir": str(toolchain.cache_dir() / "workdir"),
        "venv": str(toolchain.machine_python().parent.parent),
    }
    env = toolchain.offline() | {
        "AIRFLOW_HOME": str(scratch / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "demo" * 16,
        "AIRFLOW__OVERBRAINER__RUNS_DIR": str(runs_dir),
        "AIRFLOW__OVERBRAINER__LLAMA_CPP_RELEASE": str(mirror / "release.json"),
        "AIRFLOW__OVERBRAINER__LOCAL_MACHINE": json.dumps(settings),
        "PYTHONWARNINGS": "ignore",
    }
    with machine_connection(machine, settings, scratch) as connection:
        conf = {"run_id": RUN_ID, "quantize": quantize}
        if connection:
            env["AIRFLOW_CONN_DEMO_MACHINE"] = connection
            conf["machine"] = "demo_machine"
        cli = [str(airflow), "-m", "airflow"]
        subprocess.run([*cli, "db", "migrate"], env=env, check=True, stdout=subprocess.DEVNULL)
        where = "over SSH" if connection else "on this machine"
        say(f"runs the DAG overbrainer_export through Airflow, {where}")
        test = [*cli, "dags", "test", "overbrainer_export", "--conf", json.dumps(conf)]
        show_tasks(test, env, runs_dir / RUN_ID / "airflow.log")


def show_tasks(command: list[str], env: dict[str, str], log: Path) -> None:
    """Run Airflow and show what the export's tasks say; the rest goes to ``log`` only."""
    with log.open("w") as whole:
        airflow = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert airflow.stdout is not None  # noqa: S101 - it is a pipe
        for line in airflow.stdout:
            whole.write(line)
            said = TASK_LINE.search(line)
            if said and (said[2] != "RunExportOperator" or said[1].startswith(JOB_STEPS)):
                print(f"  {said[1]}", flush=True)
    if airflow.wait() != 0:
        sys.exit(f"demo: Airflow failed, its log is {log}")


@contextlib.contextmanager
def machine_connection(
    machine: str, settings: dict[str, str], scratch: Path
) -> Iterator[str | None]:
    """Yield the connection to a loopback sshd, or None for the worker itself."""
    if machine == "local":
        yield None
        return
    session = {name: value for name, value in toolchain.offline().items() if name.startswith("HF_")}
    with loopback_sshd(scratch / "sshd", env=session) as server:
        yield server.connection(settings)


def delivered(run_dir: Path, quantize: str) -> tuple[Path, dict[str, object]]:
    """Return the GGUF that the export delivered, and its record."""
    records = sorted((run_dir / "exports").glob("*/export.json"))
    if not records:
        sys.exit(f"demo: the export delivered nothing: there is no export.json in {run_dir}")
    record: dict[str, object] = json.loads(records[-1].read_text())
    if record["quantize"] != quantize:
        sys.exit(f"demo: {records[-1]} records {record['quantize']}, not {quantize}")
    return run_dir / str(record["file"]), record


def ask(gguf: Path, question: str) -> str:
    """Return what the model says to ``question``, by llama.cpp."""
    program = toolchain.llama_cpp_mirror() / "bin" / "llama-completion"
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    switches = ["-no-cnv", "-n", "48", "--temp", "0", "--no-warmup", "--no-display-prompt"]
    done = subprocess.run(
        [program, "-m", gguf, "-p", prompt, *switches],
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"demo: llama-completion failed on {gguf}\n{done.stderr[-2000:]}")
    return done.stdout.replace("[end of text]", "").strip()


if __name__ == "__main__":
    main()
