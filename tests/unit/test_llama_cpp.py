import json
from pathlib import Path

import pytest

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.llama_cpp import LLAMA_CPP, LlamaCppRelease, load_release

PIN = {
    "OVERBRAINER_LLAMA_CPP": "b11320",
    "OVERBRAINER_LLAMA_CPP_URL": "https://github.com/ggml-org/llama.cpp",
    "OVERBRAINER_LLAMA_CPP_SOURCE_SHA256": (
        "edd777f61c1d3704456f01bbb9a77b4bd71a1b39d9b8fe0109c3d65c2c4ece74"
    ),
    "OVERBRAINER_LLAMA_CPP_UBUNTU_X64_SHA256": (
        "ef1856938dc1434138ce53688791eb0d2d64cf46e309a0942a12bba3366c0919"
    ),
    "OVERBRAINER_LLAMA_CPP_UBUNTU_ARM64_SHA256": (
        "88589b963d8e2ffd2d4df2f542ed7e301fb636b637c99081f5d58646aee20a9a"
    ),
    "OVERBRAINER_LLAMA_CPP_MACOS_ARM64_SHA256": (
        "f6f337fc7d2ff9260f53177cf4fe6bbf6b0f7faa75a49fb224aaf66885a5c956"
    ),
    "OVERBRAINER_LLAMA_CPP_CUDA": "13.4",
    "OVERBRAINER_LLAMA_CPP_UBUNTU_CUDA_X64_SHA256": (
        "4c6b7cf40228efb96930f6694e7faae43a7e01993baba8e7894e2a3fc43e8a31"
    ),
    "OVERBRAINER_LLAMA_CPP_UBUNTU_CUDA_ARM64_SHA256": (
        "df2ea0d5c3bd5492dda70cd86f2a384709f7aa7ceec123b159e20b2844ce2f46"
    ),
    "OVERBRAINER_LLAMA_CPP_CUDART_X64_SHA256": (
        "249a86f9156641b98d586c6c6c649335f691d3a27f9fdaaca699af9cbfbb3ca2"
    ),
    "OVERBRAINER_LLAMA_CPP_CUDART_ARM64_SHA256": (
        "e0895065d9244b3f8a50c2d85e196605e8a48c1f06a53f2f52db089fbd29d8bb"
    ),
    "OVERBRAINER_LLAMA_CPP_ROCM": "10.0",
    "OVERBRAINER_LLAMA_CPP_UBUNTU_ROCM_X64_SHA256": (
        "d3f610c849bc8d365c31a62dba9c1a309a783202fe5d86d85f6a64b34cecb195"
    ),
}

MINIMAL = {"tag": "b1", "url": "https://mirror.example/llama.cpp", "source_sha256": "0" * 64}


def write_release(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "release.json"
    path.write_text(json.dumps(content))
    return path


def test_the_script_is_told_exactly_the_pinned_release() -> None:
    assert LLAMA_CPP.env() == PIN


def test_the_script_is_not_told_of_platforms_that_a_release_lacks(tmp_path: Path) -> None:
    assert load_release(write_release(tmp_path, MINIMAL)).env() == {
        "OVERBRAINER_LLAMA_CPP": "b1",
        "OVERBRAINER_LLAMA_CPP_URL": "https://mirror.example/llama.cpp",
        "OVERBRAINER_LLAMA_CPP_SOURCE_SHA256": "0" * 64,
    }


def test_a_release_file_is_read_back_as_the_release_that_it_names(tmp_path: Path) -> None:
    path = write_release(tmp_path, LLAMA_CPP.model_dump())
    assert load_release(path) == LLAMA_CPP


def test_a_release_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file") as caught:
        load_release(tmp_path / "absent.json")
    assert str(tmp_path / "absent.json") in str(caught.value)


def test_a_release_file_that_is_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="directory") as caught:
        load_release(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ubuntu_x64_sha265", "0" * 64),
        ("ubuntu_x64_sha256", "0" * 63),
        ("ubuntu_x64_sha256", "A" * 64),
        ("source_sha256", "0" * 64 + "\n"),
        ("source_sha256", None),
        ("tag", "../b1"),
        ("tag", "b1\n"),
        ("url", "https://mirror.example/llama.cpp/"),
        ("url", "https://mirror.example/it's"),
        ("url", "https://mirror.example/a b"),
        ("url", "ftp://mirror.example/llama.cpp"),
        ("url", "/srv/llama.cpp"),
    ],
)
def test_a_release_file_with_a_wrong_field_is_refused_by_file_and_field(
    field: str, value: object, tmp_path: Path
) -> None:
    path = write_release(tmp_path, MINIMAL | {field: value})
    with pytest.raises(InvalidInputError) as caught:
        load_release(path)
    assert f"{path} is not usable: {field}: " in str(caught.value)


def test_a_release_file_without_a_source_digest_is_refused(tmp_path: Path) -> None:
    path = write_release(tmp_path, {"tag": "b1", "url": "https://mirror.example"})
    with pytest.raises(InvalidInputError, match="source_sha256: Field required"):
        load_release(path)


def test_every_fault_of_a_release_file_is_told_at_once(tmp_path: Path) -> None:
    path = write_release(tmp_path, MINIMAL | {"tag": "", "url": "mirror"})
    with pytest.raises(InvalidInputError, match=r"tag: .*; url: "):
        load_release(path)


def test_a_release_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "release.json"
    path.write_text("b11320")
    with pytest.raises(InvalidInputError, match="is not usable: file: Invalid JSON"):
        load_release(path)


def test_a_release_may_be_a_directory_of_the_machine(tmp_path: Path) -> None:
    release = load_release(write_release(tmp_path, MINIMAL | {"url": tmp_path.as_uri()}))
    assert release.url == tmp_path.as_uri()


@pytest.mark.parametrize("uname", ["Linux x86_64", "Linux aarch64", "Linux arm64", "Darwin arm64"])
def test_the_pinned_release_has_programs_for_the_platform(uname: str) -> None:
    LLAMA_CPP.check_platform(uname)
    with pytest.raises(InvalidInputError):
        LlamaCppRelease.model_validate(MINIMAL).check_platform(uname)


@pytest.mark.parametrize("uname", ["Darwin x86_64", "Linux riscv64", "", "linux x86_64"])
def test_an_unknown_platform_is_answered_with_those_that_work(uname: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        LLAMA_CPP.check_platform(uname)
    assert f"no programs for {uname}: " in str(caught.value)
    assert "Linux x86_64, Linux aarch64, Linux arm64, Darwin arm64" in str(caught.value)


def test_a_platform_that_a_release_does_not_pin_is_answered_with_the_field_to_add() -> None:
    release = LlamaCppRelease.model_validate(MINIMAL | {"ubuntu_x64_sha256": "1" * 64})
    with pytest.raises(InvalidInputError, match="b1 is not pinned for Linux aarch64") as caught:
        release.check_platform("Linux aarch64")
    assert "add ubuntu_arm64_sha256 to the release file" in str(caught.value)
