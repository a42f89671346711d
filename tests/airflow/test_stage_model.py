"""`StageModelOperator`: what it refuses, before anything is sent, and what it brings."""

import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from overbrainer_airflow.errors import InvalidInputError, MachineError, RunNotReadyError
from overbrainer_airflow.operators.stage_model import StageModelOperator
from tests.airflow.conftest import MakeConnection, files_below
from tests.support.exports import task_context
from tests.support.runs import make_run


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "my-run")
    return tmp_path / "runs"


def stage(runs_dir: Path, ssh_conn_id: str | None = "gpu", **arguments: Any) -> object:
    operator = StageModelOperator(
        task_id="stage_model",
        runs_dir=str(runs_dir),
        ssh_conn_id=ssh_conn_id,
        **{"run_id": "my-run"} | arguments,
    )
    return operator.execute(task_context())


@pytest.mark.parametrize("run_id", ["../x", "a/b", "a b", "", "é"])
def test_a_run_id_that_cannot_name_a_directory_is_refused_when_the_dag_is_parsed(
    run_id: str,
) -> None:
    with pytest.raises(InvalidInputError, match="ASCII letters, digits"):
        StageModelOperator(task_id="stage", run_id=run_id)


def test_an_unknown_quantize_type_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidInputError, match="did you mean Q4_K_M"):
        StageModelOperator(task_id="stage", run_id="my-run", quantize="q4km")


def test_a_rendered_run_id_is_checked_when_the_task_runs(runs_dir: Path) -> None:
    operator = StageModelOperator(task_id="stage", run_id="{{ params.x }}", runs_dir=str(runs_dir))
    operator.run_id = "../x"
    with pytest.raises(AirflowFailException, match="cannot name a run"):
        operator.execute(task_context())


def test_an_unknown_run_is_named(runs_dir: Path) -> None:
    with pytest.raises(RunNotReadyError, match="run other is unknown"):
        stage(runs_dir, run_id="other")


def test_a_missing_connection_is_named_and_not_retried(runs_dir: Path) -> None:
    with pytest.raises(AirflowFailException, match="there is no connection nowhere"):
        stage(runs_dir, ssh_conn_id="nowhere")


def test_a_connection_of_another_type_is_refused(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WEB", '{"conn_type": "http", "host": "127.0.0.1"}')
    with pytest.raises(AirflowFailException, match="needs one of the type ssh"):
        stage(runs_dir, ssh_conn_id="web")


def test_an_unknown_setting_of_a_connection_is_named(
    runs_dir: Path, connect: MakeConnection
) -> None:
    connect(wrokdir="/x")
    with pytest.raises(AirflowFailException, match="connection gpu .*wrokdir"):
        stage(runs_dir)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"host_key": "ssh-ed25519 " + "A" * 43}, "host key"),
        (
            {
                "host_key": "ssh-ed25519 "
                "AAAAC3NzaC1lZDI1NTE5AAAAIJDSVAYzxGgJyOg2tvqLEzoK2AO1ODrQQhDBDUMVQ4mZ"
            },
            "its host key is not the one that is known",
        ),
        ({"host_key": None, "known_hosts": "/dev/null"}, "host key"),
        ({"host_key": None, "no_host_key_check": "true"}, "does not check the machine's host key"),
    ],
    ids=["garbled", "changed", "unknown", "unchecked"],
)
def test_a_machine_that_cannot_be_trusted_gets_nothing(
    runs_dir: Path, workdir: Path, connect: MakeConnection, extra: dict[str, object], message: str
) -> None:
    connect(extra)
    with pytest.raises(MachineError, match=message):
        stage(runs_dir)
    assert not workdir.exists()
    assert not (runs_dir / "my-run" / "exports").exists()


def test_a_workdir_that_cannot_be_written_is_named(runs_dir: Path, connect: MakeConnection) -> None:
    connect(workdir="/proc/overbrainer")
    with pytest.raises(MachineError, match="/proc/overbrainer cannot be written by .*workdir"):
        stage(runs_dir)
    assert not (runs_dir / "my-run" / "exports").exists()


@pytest.mark.parametrize(
    ("venv", "message"),
    [
        ("/nonexistent", "there is no /nonexistent/bin/python3"),
        (sys.prefix, "lacks torch, .*axolotl: install"),
    ],
)
def test_a_machine_without_the_tools_gets_nothing(
    runs_dir: Path, workdir: Path, connect: MakeConnection, venv: str, message: str
) -> None:
    connect(venv=venv)
    with pytest.raises(MachineError, match=message):
        stage(runs_dir)
    assert files_below(workdir) == []
    assert not (runs_dir / "my-run" / "exports").exists()


def test_a_platform_that_the_release_does_not_pin_gets_nothing(
    runs_dir: Path,
    tmp_path: Path,
    workdir: Path,
    connect: MakeConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = tmp_path / "release.json"
    release.write_text(
        '{"tag": "b1", "url": "https://example.org/llama.cpp", "source_sha256": "%s"}' % ("0" * 64)
    )
    monkeypatch.setenv("AIRFLOW__OVERBRAINER__LLAMA_CPP_RELEASE", str(release))
    connect()
    with pytest.raises(AirflowFailException, match="b1 is not pinned for Linux"):
        stage(runs_dir)
    assert files_below(workdir) == []


def test_a_release_file_that_cannot_be_read_is_named(
    runs_dir: Path, connect: MakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OVERBRAINER__LLAMA_CPP_RELEASE", "/nonexistent.json")
    connect()
    with pytest.raises(AirflowFailException, match=r"/nonexistent\.json"):
        stage(runs_dir)
