from pathlib import Path

import pytest

from overbrainer_airflow.export.modelfile import modelfile_text, sequence_len


def write_config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "axolotl.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_modelfile_takes_its_gguf_from_beside_it_and_its_context_from_the_training() -> None:
    text = modelfile_text("my-run-Q4_K_M.gguf", 2048)
    assert text == "FROM ./my-run-Q4_K_M.gguf\nPARAMETER num_ctx 2048\n"


def test_a_modelfile_of_a_training_of_unknown_length_leaves_the_context_to_ollama() -> None:
    assert modelfile_text("my-run-F16.gguf", None) == "FROM ./my-run-F16.gguf\n"


@pytest.mark.parametrize(
    "text",
    ["sequence_len: 4096\n", "a: b\nsequence_len:   4096 # tokens\n", "{sequence_len: 4096}"],
)
def test_the_sequence_length_is_read_from_the_top_level_of_the_config(
    text: str, tmp_path: Path
) -> None:
    assert sequence_len(write_config(tmp_path, text)) == 4096


@pytest.mark.parametrize(
    "text",
    [
        "base_model: base\n",
        "datasets:\n  - sequence_len: 4096\n",
        "nested:\n  sequence_len: 4096\n",
        "# sequence_len: 4096\n",
        "notes: |\n  sequence_len: 4096\n",
        "sequence_len:\n",
        "sequence_len: long\n",
        "sequence_len: true\n",
        "sequence_len: 4096.5\n",
        "sequence_len: -1\n",
        "sequence_len: 0\n",
        "sequence_len: [4096]\n",
        "sequence_len: 4294967296\n",
    ],
)
def test_a_config_without_a_length_in_tokens_at_its_top_level_has_none(
    text: str, tmp_path: Path
) -> None:
    assert sequence_len(write_config(tmp_path, text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        "text",
        "sequence_len: 4096\n: {",
        "sequence_len: 4096\nday: 2026-13-45\n",
        "[" * 9999,
    ],
)
def test_a_config_that_is_no_yaml_mapping_has_no_sequence_length(text: str, tmp_path: Path) -> None:
    assert sequence_len(write_config(tmp_path, text)) is None


def test_a_config_in_another_encoding_has_no_sequence_length(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_bytes("sequence_len: 4096\nname: é\n".encode("latin-1"))
    assert sequence_len(path) is None


def test_a_config_that_is_missing_has_no_sequence_length(tmp_path: Path) -> None:
    assert sequence_len(tmp_path / "axolotl.yaml") is None
