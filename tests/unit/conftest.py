"""Runs and a machine, for the tests of values, files and the script: no Airflow, no network."""

from pathlib import Path

import pytest

from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from tests.support.export_sh import Export, make_export
from tests.support.fake_llama_cpp import make_mirror


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """Return an empty ``runs/``."""
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def release(tmp_path: Path) -> LlamaCppRelease:
    """Return a release whose mirror is a directory."""
    return make_mirror(tmp_path / "mirror")


@pytest.fixture(params=["dash", "busybox sh"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Export:
    """Return a machine that runs jobs in the test's directory, with one shell and the other."""
    return make_export(tmp_path, request.param)


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Return the file in which axolotl keeps the config of its merge."""
    return tmp_path / "merge.yaml"
