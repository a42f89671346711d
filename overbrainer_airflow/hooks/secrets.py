"""Secrets of a job, read where Airflow keeps them and only when the job is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook, Variable
from airflow.sdk.log import mask_secret

from overbrainer_airflow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_secrets(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the values of secrets by the names of their environment variables.

    Args:
        sources: for each variable ``connection:<id>``, whose password it is, or ``variable:<key>``.

    Raises:
        InvalidInputError: a source has another form, or is not there; no value is in the message.
    """
    secrets = {name: _read(name, source) for name, source in sources.items()}
    for value in secrets.values():
        mask_secret(value)
    return secrets


def _read(name: str, source: str) -> str:
    kind, _, key = source.partition(":")
    value: str | None = None
    try:
        if kind == "connection" and key:
            value = BaseHook.get_connection(key).password
        elif kind == "variable" and key:
            value = Variable.get(key, default=None)
        else:
            raise InvalidInputError(
                f"the secret {name} has the source {source!r}: give connection:<id> or "
                "variable:<key>"
            )
    except AirflowNotFoundException as error:
        raise InvalidInputError(f"the secret {name}: there is no {kind} {key}") from error
    if not value:
        raise InvalidInputError(f"the secret {name}: the {kind} {key} holds no value")
    return value
