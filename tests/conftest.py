"""The settings that Airflow reads when it is imported, and the fixtures that every suite uses."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_HOME = Path(tempfile.mkdtemp(prefix="overbrainer-tests-"))
(_HOME / "dags").mkdir()
os.environ.update(
    {
        "AIRFLOW_HOME": str(_HOME),
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "AIRFLOW__CORE__DAGS_FOLDER": str(_HOME / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
)

from demo.sshd import LoopbackSSHD, loopback_sshd  # noqa: E402 - after the settings


@pytest.fixture(scope="session", autouse=True)
def _home_is_removed() -> Iterator[None]:
    import shutil

    yield
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSSHD]:
    """A real sshd on loopback that is left running; a test that harms it starts its own."""
    with loopback_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Make Airflow's database, once for all tests of a session."""
    from airflow.utils import db

    db.initdb()
