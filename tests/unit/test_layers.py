import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import overbrainer_airflow

PACKAGE = Path(overbrainer_airflow.__file__).parent
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

#: What the modules of a layer must not import, by the first part of their path.
FORBIDDEN = {
    "errors.py": ("airflow", "overbrainer_airflow"),
    "export": ("airflow", "machines", "hooks", "triggers", "operators", "task_groups"),
    "machines": ("airflow", "export", "hooks", "triggers", "operators", "task_groups"),
    "hooks": ("triggers", "operators", "task_groups"),
    "triggers": ("operators", "task_groups"),
}


def imports(source: str) -> Iterator[str]:
    """Yield every dotted name that ``source`` imports, in functions and branches too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def climbs(source: str) -> list[int]:
    """Return the lines of relative imports from a package further up."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return [node.lineno for node in found if node.level > 1]


def is_of(name: str, layer: str) -> bool:
    top = layer if layer in ("airflow", "overbrainer_airflow") else f"overbrainer_airflow.{layer}"
    return name == top or name.startswith(f"{top}.")


def read(module: str) -> str:
    return (PACKAGE / module).read_text(encoding="utf-8")


def test_an_import_is_found_wherever_it_stands() -> None:
    source = """
if TYPE_CHECKING:
    from airflow.sdk import Context
def later():
    import airflow.models as models
from overbrainer_airflow import operators
"""
    found = ["airflow.sdk.Context", "airflow.models", "overbrainer_airflow.operators"]
    assert sorted(imports(source)) == sorted(found)


@pytest.mark.parametrize("module", [name for name in MODULES if Path(name).parts[0] in FORBIDDEN])
def test_a_module_imports_nothing_of_the_layers_that_it_must_not_know(module: str) -> None:
    layers = FORBIDDEN[Path(module).parts[0]]
    assert [name for name in imports(read(module)) for layer in layers if is_of(name, layer)] == []


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_with_rules_exists(layer: str) -> None:
    assert (PACKAGE / layer).exists()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_nothing_by_a_relative_path_that_goes_up(module: str) -> None:
    assert climbs(read(module)) == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_under_300_lines(module: str) -> None:
    assert len(read(module).splitlines()) < 300
