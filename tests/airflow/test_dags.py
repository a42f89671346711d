"""The DAG files: they load in no time, reach for nothing, and say what they are."""

import socket
import time
from pathlib import Path

import pytest

from tests.support.dags import DAGS, dag_bag

FILES = sorted(DAGS.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dag_file_loads_without_a_connection_and_in_no_time(
    airflow_db: None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag_bag(path)  # imports what every DAG file imports, once

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a DAG file opens a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    source = compile(path.read_text(), path, "exec")
    began = time.process_time()
    exec(source, {"__name__": path.stem, "__file__": str(path), "__doc__": ""})  # noqa: S102
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dag_file_documents_its_dags(airflow_db: None, path: Path) -> None:
    for dag in dag_bag(path).dags.values():
        assert dag.doc_md
        assert "overbrainer" in dag.tags


def test_the_form_asks_for_what_an_export_needs(airflow_db: None) -> None:
    dag = dag_bag(DAGS / "overbrainer_export.py").dags["overbrainer_export"]
    assert list(dag.params) == ["run_id", "quantize", "machine", "ollama_name"]
    for name, wrong in {
        "run_id": "../x",
        "quantize": "Q9",
        "machine": "a b",
        "ollama_name": "a b",
    }.items():
        with pytest.raises(Exception, match="Invalid input for param"):
            dag.params.update({name: wrong})


def test_the_tasks_are_in_order_and_what_was_staged_is_torn_down(airflow_db: None) -> None:
    dag = dag_bag(DAGS / "overbrainer_export.py").dags["overbrainer_export"]
    after = {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}
    assert after["export.stage_model"] == [
        "export.discard_staged",
        "export.run_export",
    ]
    assert after["export.run_export"] == ["export.deliver_gguf"]
    assert after["export.deliver_gguf"] == ["export.discard_staged", "export.ollama_create"]
    assert dag.get_task("export.discard_staged").is_teardown
    assert dag.get_task("export.stage_model").is_setup
