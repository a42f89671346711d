"""A real Airflow: scheduler, DAG processor, triggerer and API server on a database file."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from demo.sshd import free_port

T = TypeVar("T")

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")


@dataclass
class AirflowStack:
    """A running Airflow whose DAG files are in ``<home>/dags``."""

    home: Path
    port: int
    env: Mapping[str, str]
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict, init=False)
    _token: str = field(default="", init=False)

    @property
    def url(self) -> str:
        """Where the API server answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, component: str) -> None:
        """Start a component; its output goes to a file of its name in ``home``."""
        arguments = ["--skip-serve-logs"] if component in ("scheduler", "triggerer") else []
        with (self.home / f"{component}.out").open("ab") as output:
            self._processes[component] = subprocess.Popen(
                [sys.executable, "-m", "airflow", component, *arguments],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self, component: str, signum: int = signal.SIGTERM) -> None:
        """Send a component's processes a signal and wait until they are gone."""
        process = self._processes.pop(component)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def stop_all(self) -> None:
        """Stop every component that runs."""
        for component in list(self._processes):
            self.stop(component)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the REST API and return its answer."""
        if not self._token:
            with urllib.request.urlopen(f"{self.url}/auth/token", timeout=30) as answer:  # noqa: S310
                self._token = json.loads(answer.read())["access_token"]
        request = urllib.request.Request(  # noqa: S310 - it is our own loopback
            f"{self.url}/api/v2{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")

    def trigger(self, dag_id: str, conf: object) -> str:
        """Start a DAG run and return its id."""
        body = {"logical_date": None, "conf": conf}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return a task instance."""
        return self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> list[str]:
        """Return the messages of a task's log, as the UI shows them."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self.call("GET", f"{path}?full_content=true")["content"]
        return [str(line["event"] if isinstance(line, dict) else line) for line in content]


@contextlib.contextmanager
def airflow_stack(
    home: Path, dags: Mapping[str, str], env: Mapping[str, str]
) -> Iterator[AirflowStack]:
    """Yield a running stack with the DAG files ``dags`` (text by name); it is gone at the end."""
    (home / "dags").mkdir(parents=True)
    for name, text in dags.items():
        (home / "dags" / name).write_text(text)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    whole = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    whole |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__SECRET_KEY": "test",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "PYTHONWARNINGS": "ignore",
        **env,
    }
    stack = AirflowStack(home, port, whole)
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, env=whole, check=True, capture_output=True)
    try:
        for component in COMPONENTS:
            stack.start(component)
        dag_ids = [name.removesuffix(".py") for name in dags]
        for dag_id in dag_ids:
            until(lambda: stack.call("GET", f"/dags/{dag_id}"), f"DAG {dag_id} is there", 60)  # noqa: B023
        yield stack
    finally:
        stack.stop_all()


def until(condition: Callable[[], T], what: str, timeout: float = 30) -> T:
    """Wait until ``condition`` returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if value := condition():
                return value
        assert time.monotonic() < deadline, f"it does not happen within {timeout:g} s: {what}"
        time.sleep(0.2)
