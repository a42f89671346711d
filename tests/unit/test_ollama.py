import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.ollama import (
    Created,
    Failed,
    NotFound,
    check_ollama_name,
    ollama_command,
    ollama_create,
)


@pytest.fixture
def gguf_dir(tmp_path: Path) -> Path:
    """Return a run's directory of GGUF files, of an awkward name."""
    path = tmp_path / "it's my $run"
    path.mkdir()
    (path / "Modelfile").write_text("FROM ./my-run-Q4_K_M.gguf\n")
    return path


def make_program(tmp_path: Path, script: str) -> str:
    """Return a program that does what the shell ``script`` says."""
    path = tmp_path / "ollama"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "name",
    [
        *("m", "my-model", "my_model:latest", "user/my-model:Q4_K_M", "Model-1.5:v0.1", "_m"),
        *("a" * 80, f"{'n' * 80}/{'m' * 80}:{'t' * 80}"),
        *("m:clouds", "m:my-cloud-2", "m:locally", "cloud", "local/cloud"),
    ],
)
def test_a_name_that_ollama_can_serve_is_kept(name: str) -> None:
    assert check_ollama_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "my model", " m", "m ", "m\n", "m\tt", "é", "m:", ":latest", "/m", "u/", "m:a:b"),
        *("-m", "--help", "u/-m", "m:-t", ".m", "m:.t", "u.ser/m", "a/b/c", "../m", "m;ls", "m@1"),
        *("a" * 81, "m:" + "t" * 81, "u" * 81 + "/m"),
        *("m:cloud", "m:CLOUD", "m:local", "m:Local", "m:480b-cloud", "u/m:x-Cloud"),
        *(None, 5, b"m"),
    ],
    ids=ascii,
)
def test_a_name_that_ollama_cannot_serve_is_refused_with_what_is_accepted(name: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_ollama_name(name)
    assert f"named {name!r}: give [namespace/]model[:tag]" in str(caught.value)
    assert "the tags cloud, local and *-cloud are Ollama's" in str(caught.value)


def test_a_model_is_created_from_the_modelfile_in_its_directory(
    tmp_path: Path, gguf_dir: Path
) -> None:
    program = make_program(tmp_path, f'pwd >{tmp_path}/seen; printf "%s\\n" "$@" >>{tmp_path}/seen')
    assert ollama_create(gguf_dir, "my-model:v1", program) == Created()
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen == [str(gguf_dir), "create", "my-model:v1", "-f", "Modelfile"]


def test_a_model_that_was_created_noisily_was_created(tmp_path: Path, gguf_dir: Path) -> None:
    program = make_program(tmp_path, "echo 'Error: only a warning' >&2")
    assert ollama_create(gguf_dir, "m", program) == Created()


def test_a_failure_is_told_by_the_last_line_without_cursor_codes(
    tmp_path: Path, gguf_dir: Path
) -> None:
    script = r"""
printf '\033[?2026h\033[?25l\033[1Ggathering model components ⠋ \033[K\033[?25h\033[?2026l' >&2
printf '\r\033[A\033[1Ggathering model components ⠙ \033[K\n' >&2
printf '\033[31mError: no Modelfile or safetensors files found\033[0m\033[K\n\033[?25h\n  \n' >&2
exit 1"""
    outcome = ollama_create(gguf_dir, "m", make_program(tmp_path, script))
    assert outcome == Failed("Error: no Modelfile or safetensors files found")


def test_a_directory_without_a_modelfile_is_a_failure_that_names_it(
    tmp_path: Path, gguf_dir: Path
) -> None:
    (gguf_dir / "Modelfile").unlink()
    program = make_program(tmp_path, f"touch {tmp_path}/started")
    outcome = ollama_create(gguf_dir, "m", program)
    assert outcome == Failed(f"there is no {gguf_dir / 'Modelfile'}")
    assert not (tmp_path / "started").exists()


def test_a_failure_that_says_nothing_is_told_by_its_exit_status(
    tmp_path: Path, gguf_dir: Path
) -> None:
    program = make_program(tmp_path, "echo on stdout; exit 3")
    assert ollama_create(gguf_dir, "m", program) == Failed("exit status 3")


def test_a_failure_in_bytes_that_are_no_text_is_told_all_the_same(
    tmp_path: Path, gguf_dir: Path
) -> None:
    program = make_program(tmp_path, r"printf 'Error: \377 bad\n' >&2; exit 1")
    assert ollama_create(gguf_dir, "m", program) == Failed("Error: \ufffd bad")


def test_a_program_that_cannot_be_started_is_a_failure(tmp_path: Path, gguf_dir: Path) -> None:
    program = make_program(tmp_path, "")
    Path(program).chmod(0o644)
    assert ollama_create(gguf_dir, "m", program) == Failed(f"{program}: Permission denied")


def test_a_create_asks_nothing_of_the_input_of_its_worker(tmp_path: Path, gguf_dir: Path) -> None:
    program = make_program(tmp_path, 'read -r answer; echo "Error: read <$answer>" >&2; exit 1')
    script = (
        "import sys, pathlib, overbrainer_airflow.export.ollama as ollama\n"
        "print(ollama.ollama_create(pathlib.Path(sys.argv[1]), 'm', sys.argv[2]).reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(gguf_dir), program],
        input="yes\n",
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "Error: read <>\n"


def test_without_ollama_the_answer_is_the_command_to_run_by_hand(
    tmp_path: Path, gguf_dir: Path
) -> None:
    outcome = ollama_create(gguf_dir, "my-model", str(tmp_path / "absent"))
    assert outcome == NotFound(ollama_command(gguf_dir, "my-model"))


def test_the_command_to_run_by_hand_quotes_the_directory() -> None:
    command = ollama_command(Path("/runs/my-run/output/gguf"), "my-model")
    assert command == "cd '/runs/my-run/output/gguf' && ollama create my-model -f Modelfile"


def test_the_command_to_run_by_hand_works_in_a_directory_of_any_name(
    tmp_path: Path, gguf_dir: Path
) -> None:
    make_program(tmp_path, f"pwd >{shlex.quote(str(tmp_path / 'seen'))}")
    command = f"PATH={shlex.quote(str(tmp_path))}:$PATH; {ollama_command(gguf_dir, 'm')}"
    subprocess.run(["sh", "-c", command], check=True)
    assert (tmp_path / "seen").read_text() == f"{gguf_dir}\n"


def test_a_name_that_ollama_cannot_serve_starts_nothing(tmp_path: Path, gguf_dir: Path) -> None:
    program = make_program(tmp_path, f"touch {tmp_path}/started")
    with pytest.raises(InvalidInputError):
        ollama_create(gguf_dir, "m:cloud", program)
    assert not (tmp_path / "started").exists()
