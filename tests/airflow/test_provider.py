"""What Airflow finds of this package once it is installed."""

import importlib
from importlib.metadata import entry_points
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager

from overbrainer_airflow.provider_info import get_provider_info


def modules(info: dict[str, Any]) -> list[str]:
    """Return every module that the provider names."""
    kinds = ("operators", "hooks", "triggers")
    return [name for kind in kinds for entry in info[kind] for name in entry["python-modules"]]


def test_the_provider_is_found_by_its_entry_point() -> None:
    found = {entry.value for entry in entry_points(group="apache_airflow_provider")}
    assert "overbrainer_airflow.provider_info:get_provider_info" in found


def test_airflow_lists_the_provider_and_its_settings() -> None:
    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    assert "overbrainer-airflow" in manager.providers
    sections = dict(manager.provider_configs)["overbrainer-airflow"]
    options = sections["overbrainer"]["options"]
    assert set(options) == {"runs_dir", "llama_cpp_release", "local_machine"}


@pytest.mark.parametrize("name", modules(get_provider_info()))
def test_a_module_that_the_provider_names_can_be_imported(name: str) -> None:
    assert importlib.import_module(name).__doc__
