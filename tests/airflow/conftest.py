"""Operators on this machine and over a real sshd, without a scheduler."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator

from demo.sshd import LoopbackSSHD

#: Makes the connection ``gpu``; its settings are overlaid on a workdir of the test's own.
MakeConnection = Callable[..., None]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Return the workdir of the machine ``gpu``."""
    return tmp_path / "work dir"


@pytest.fixture
def connect(sshd: LoopbackSSHD, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> MakeConnection:
    """Return a function that makes the connection ``gpu`` to the sshd."""

    def make(
        extra: dict[str, object] | None = None, port: int = sshd.port, **settings: object
    ) -> None:
        connection = json.loads(sshd.connection({"workdir": str(workdir)} | settings))
        connection["port"] = port
        connection["extra"] |= extra or {}
        monkeypatch.setenv("AIRFLOW_CONN_GPU", json.dumps(connection))

    return make


def files_below(path: Path) -> list[str]:
    """Return every file below ``path``, relative to it."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


class TaskLog:
    """What the task's log shows, a message a line."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def lines(self) -> list[str]:
        """Every line until now."""
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def task_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> TaskLog:
    """Return the log of whatever operator runs in the test."""
    # Outside of a task Airflow's own logger prints past the handlers of the standard library.
    monkeypatch.setattr(BaseOperator, "log", logging.getLogger("overbrainer_airflow.operators"))
    caplog.set_level(logging.INFO, "overbrainer_airflow")
    return TaskLog(caplog)
