"""A directory of runs, for the tests of values, files and the script: no Airflow, no network."""

from pathlib import Path

import pytest


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """Return an empty ``runs/``."""
    path = tmp_path / "runs"
    path.mkdir()
    return path
