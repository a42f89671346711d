"""`OllamaCreateOperator` with a stand-in for the `ollama` command, which no test can install."""

import os
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from overbrainer_airflow.errors import InvalidInputError, OllamaError
from overbrainer_airflow.operators.ollama_create import OllamaCreateOperator
from tests.airflow.conftest import TaskLog
from tests.support.exports import task_context


@pytest.fixture
def delivered(tmp_path: Path) -> dict[str, Any]:
    """Return a delivery on disk."""
    gguf_dir = tmp_path / "my runs" / "output" / "gguf"
    gguf_dir.mkdir(parents=True)
    (gguf_dir / "my-run-Q4_K_M.gguf").write_text("gguf")
    (gguf_dir / "Modelfile").write_text("FROM ./my-run-Q4_K_M.gguf\n")
    return {
        "run_id": "my-run",
        "gguf": str(gguf_dir / "my-run-Q4_K_M.gguf"),
        "modelfile": str(gguf_dir / "Modelfile"),
        "record": {"sha256": "0" * 64},
    }


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script named ``ollama`` first on PATH."""
    program = tmp_path / "bin" / "ollama"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def create(delivered: object, name: str | None = "my-model:q4") -> dict[str, Any]:
    operator = OllamaCreateOperator(task_id="ollama_create", delivered=delivered, name=name)
    return operator.execute(task_context())


def test_the_model_is_created_beside_its_modelfile(
    delivered: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, f'echo "$PWD $*" >{tmp_path}/called')
    assert create(delivered) == {"name": "my-model:q4", "sha256": "0" * 64}
    gguf_dir = Path(delivered["gguf"]).parent
    assert (tmp_path / "called").read_text() == f"{gguf_dir} create my-model:q4 -f Modelfile\n"


def test_a_failure_fails_the_task_with_its_last_error_line(
    delivered: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = r"printf '\033[?25lcopying 50%%\r\033[Kcopying 100%%\nError: no space\n\n' >&2; exit 1"
    install(tmp_path, monkeypatch, script)
    with pytest.raises(OllamaError, match="ollama create my-model:q4: Error: no space"):
        create(delivered)


def test_without_ollama_the_task_is_skipped_and_says_what_to_run(
    delivered: dict[str, Any], monkeypatch: pytest.MonkeyPatch, task_log: TaskLog
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(AirflowSkipException, match="not installed"):
        create(delivered)
    gguf_dir = Path(delivered["gguf"]).parent
    command = f"cd '{gguf_dir}' && ollama create my-model:q4 -f Modelfile"
    assert command in "\n".join(task_log.lines)


@pytest.mark.parametrize("name", ["", None])
def test_without_a_name_the_task_is_skipped(delivered: dict[str, Any], name: str | None) -> None:
    with pytest.raises(AirflowSkipException, match="no Ollama name"):
        create(delivered, name)


def test_a_name_that_ollama_cannot_serve_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidInputError, match="cannot serve a model named 'x:cloud'"):
        OllamaCreateOperator(task_id="ollama_create", delivered={}, name="x:cloud")


def test_a_rendered_name_is_checked_before_anything_is_created(
    delivered: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, f"touch {tmp_path}/called")
    operator = OllamaCreateOperator(
        task_id="ollama_create", delivered=delivered, name="{{ params.name }}"
    )
    operator.name = "-x"
    with pytest.raises(AirflowFailException, match="cannot serve"):
        operator.execute(task_context())
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("missing", ["gguf", "modelfile"])
def test_a_file_that_is_gone_is_named(delivered: dict[str, Any], missing: str) -> None:
    Path(delivered[missing]).unlink()
    with pytest.raises(OllamaError, match=Path(delivered[missing]).name):
        create(delivered)
