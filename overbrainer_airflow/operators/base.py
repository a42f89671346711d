"""What the operators share: how they fail, and how they wait for a machine."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException, conf

from overbrainer_airflow.errors import InvalidInputError, OverbrainerError
from overbrainer_airflow.export.llama_cpp import LLAMA_CPP, LlamaCppRelease, load_release

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")


@contextmanager
def failing_fast() -> Iterator[None]:
    """Turn input that no retry can make right into a failure that is not retried."""
    try:
        yield
    except InvalidInputError as error:
        raise AirflowFailException(str(error)) from error


def run_async(work: Coroutine[object, object, T]) -> T:
    """Wait for a coroutine on this worker."""
    with failing_fast():
        return asyncio.run(work)


def looks_templated(value: object) -> bool:
    """Whether a value is known only when the task runs."""
    return not isinstance(value, str) or "{{" in value or "{%" in value


def runs_directory(runs_dir: str | None) -> Path:
    """Return the runs' directory: the operator's own, or ``[overbrainer] runs_dir``."""
    return Path(runs_dir or conf.get("overbrainer", "runs_dir", fallback="runs")).absolute()


def llama_cpp_release() -> LlamaCppRelease:
    """Return the release that ``[overbrainer] llama_cpp_release`` names, or the pinned one."""
    path = conf.get("overbrainer", "llama_cpp_release", fallback="")
    return load_release(Path(path)) if path else LLAMA_CPP


def about(subject: str, error: OverbrainerError) -> OverbrainerError:
    """Return the same error with what it happened to in front of its message."""
    return type(error)(f"{subject}: {error}")
