import os
from pathlib import Path

import pytest

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.quantize import (
    DEFAULT_QUANTIZE,
    QUANTIZE_TYPES,
    check_quantize,
    gguf_name,
    latest_gguf,
    quantize_of,
)


def test_the_quantize_types_are_those_of_overbrainer_with_the_default_first() -> None:
    listed = "Q4_K_M Q4_K_S Q5_K_M Q5_K_S Q6_K Q8_0 Q3_K_M Q2_K F16 BF16"
    assert " ".join(QUANTIZE_TYPES) == listed
    assert DEFAULT_QUANTIZE == "Q4_K_M"


@pytest.mark.parametrize("kind", QUANTIZE_TYPES)
def test_a_quantize_type_is_accepted_in_lower_case(kind: str) -> None:
    assert check_quantize(kind.lower()) == kind


@pytest.mark.parametrize("spelled", ["q4-k-m", " Q4_K_M ", "Q4_k-m\n"])
def test_a_quantize_type_is_accepted_in_another_spelling(spelled: str) -> None:
    assert check_quantize(spelled) == "Q4_K_M"


@pytest.mark.parametrize("name", ["Q4", "IQ2_XXS", "", "F32", "Q4_K_M;ls", None, 4])
def test_an_unknown_quantize_type_is_refused_with_the_list_of_types(name: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_quantize(name)
    assert repr(name) in str(caught.value)
    assert "Q4_K_M, Q4_K_S, Q5_K_M, Q5_K_S, Q6_K, Q8_0, Q3_K_M, Q2_K, F16, BF16" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("typed", "meant"), [("Q4KM", "Q4_K_M"), ("Q8", "Q8_0"), ("bfloat16", "BF16"), ("Q6K", "Q6_K")]
)
def test_a_mistyped_quantize_type_is_answered_with_the_closest_one(typed: str, meant: str) -> None:
    with pytest.raises(InvalidInputError, match=f"; did you mean {meant}\\?$"):
        check_quantize(typed)


def test_a_quantize_type_that_is_close_to_none_gets_no_suggestion() -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_quantize("tiny")
    assert "did you mean" not in str(caught.value)


def test_a_gguf_is_named_after_its_run_and_type() -> None:
    assert gguf_name("my-run", "Q4_K_M") == "my-run-Q4_K_M.gguf"


@pytest.mark.parametrize("kind", QUANTIZE_TYPES)
def test_the_type_of_a_gguf_is_read_from_its_name(kind: str) -> None:
    assert quantize_of(gguf_name("my-run", kind)) == kind


@pytest.mark.parametrize(
    "file_name",
    ["my-run.gguf", "my-run-Q4_K_M", "my-run-Q4_K_M.gguf.part", "my-run-Q9_K.gguf", "Q4_K_M.gguf"],
)
def test_a_file_that_is_no_export_has_no_quantize_type(file_name: str) -> None:
    assert quantize_of(file_name) is None


def make_gguf(run_dir: Path, file_name: str, modified: int) -> None:
    path = run_dir / "output" / "gguf" / file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("gguf")
    os.utime(path, (modified, modified))


def test_the_latest_gguf_is_the_newest_by_modification_time(tmp_path: Path) -> None:
    make_gguf(tmp_path, "my-run-Q8_0.gguf", 100)
    make_gguf(tmp_path, "my-run-F16.gguf", 300)
    make_gguf(tmp_path, "my-run-Q4_K_M.gguf", 200)
    assert latest_gguf(tmp_path, "my-run") == "my-run-F16.gguf"


@pytest.mark.parametrize(
    "newer", ["my-run-Q9_K.gguf", "other-Q8_0.gguf", "my-run-2-Q8_0.gguf", "my-run-F16.gguf.part"]
)
def test_a_newer_file_that_is_no_export_of_the_run_is_not_the_latest(
    newer: str, tmp_path: Path
) -> None:
    make_gguf(tmp_path, "my-run-Q8_0.gguf", 100)
    make_gguf(tmp_path, newer, 200)
    assert latest_gguf(tmp_path, "my-run") == "my-run-Q8_0.gguf"


def test_a_directory_named_like_an_export_is_not_the_latest(tmp_path: Path) -> None:
    make_gguf(tmp_path, "my-run-Q8_0.gguf", 100)
    (tmp_path / "output" / "gguf" / "my-run-F16.gguf").mkdir()
    assert latest_gguf(tmp_path, "my-run") == "my-run-Q8_0.gguf"


def test_a_run_without_exports_has_no_latest_gguf(tmp_path: Path) -> None:
    assert latest_gguf(tmp_path, "my-run") is None
