"""A llama.cpp release in a directory, laid out like GitHub's and made by each test.

    archive/refs/tags/<tag>.tar.gz                            llama.cpp-<tag>/
    releases/download/<tag>/llama-<tag>-bin-<asset>.tar.gz    llama-<tag>/

Its programs write what they were asked for, so a test reads the way of a model from the GGUF.
"""

import hashlib
import tarfile
from pathlib import Path

from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from tests.support.runs import write_files

TAG = "b1"
ASSETS = {
    "Linux x86_64": "ubuntu-x64",
    "Linux aarch64": "ubuntu-arm64",
    "Linux arm64": "ubuntu-arm64",
    "Darwin arm64": "macos-arm64",
}

_CONVERT = """\
import pathlib, sys
_, model, _, outtype, _, target = sys.argv
pathlib.Path(target).write_text(f"{outtype} of {pathlib.Path(model).name}")
"""
_QUANTIZE = 'printf "%s of %s" "$3" "$(cat "$1")" >"$2"'
_GGUF = """\
import os, types
class GGUFReader:
    def __init__(self, path):
        kind = types.SimpleNamespace(name="F32")
        size = os.path.getsize(path)
        self.tensors = [types.SimpleNamespace(data_offset=0, n_bytes=size, tensor_type=kind)]
"""


def make_mirror(
    folder: Path, quantize: str = _QUANTIZE, convert: str = _CONVERT, gguf: str = _GGUF
) -> LlamaCppRelease:
    """Make the release in ``folder``.

    Args:
        folder: where it is made.
        quantize: the shell script that is llama-quantize.
        convert: the Python that is convert_hf_to_gguf.py.
        gguf: the Python module that reads GGUF files.
    """
    source = {"convert_hf_to_gguf.py": convert, "gguf-py/gguf.py": gguf}
    source_sha256 = _pack(
        folder / "archive" / "refs" / "tags" / f"{TAG}.tar.gz", f"llama.cpp-{TAG}", source
    )
    programs = {
        asset: _pack(
            folder / "releases" / "download" / TAG / f"llama-{TAG}-bin-{asset}.tar.gz",
            f"llama-{TAG}",
            {"llama-quantize": f"#!/bin/sh\n{quantize}\n", "asset": asset},
        )
        for asset in set(ASSETS.values())
    }
    return LlamaCppRelease(
        tag=TAG,
        url=folder.as_uri(),
        source_sha256=source_sha256,
        ubuntu_x64_sha256=programs["ubuntu-x64"],
        ubuntu_arm64_sha256=programs["ubuntu-arm64"],
        macos_arm64_sha256=programs["macos-arm64"],
    )


def _pack(archive: Path, top: str, files: dict[str, str]) -> str:
    """Make ``archive`` of the directory ``top`` and return its SHA-256."""
    tree = archive.parent / f"{archive.name}.d" / top
    write_files(tree, files)
    for path in tree.iterdir():
        path.chmod(0o755)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, top)
    return hashlib.sha256(archive.read_bytes()).hexdigest()
