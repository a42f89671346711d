"""What importing the operators adds to importing Airflow: `make bench-import`."""

import statistics
import subprocess
import sys

ROUNDS = 7
AIRFLOW = "import airflow.sdk; from airflow.sdk import BaseHook, BaseOperator, TaskGroup"
OPERATORS = (
    "from overbrainer_airflow.operators import deliver_gguf, ollama_create, run_export, stage_model"
)
PROGRAM = """
import time
{airflow}
begin = time.perf_counter()
{operators}
print((time.perf_counter() - begin) * 1000, begin - start)
"""


def main() -> None:
    added, base = [], []
    for _ in range(ROUNDS):
        program = "import time\nstart = time.perf_counter()" + PROGRAM.format(
            airflow=AIRFLOW, operators=OPERATORS
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, text=True
        )
        milliseconds, seconds = map(float, done.stdout.split()[-2:])
        added.append(milliseconds)
        base.append(seconds * 1000)
    ours, theirs = statistics.median(added), statistics.median(base)
    print(
        f"import: operators add {ours:.0f} ms to Airflow's {theirs:.0f} ms ({ours / theirs:.2f} x)"
    )


if __name__ == "__main__":
    main()
