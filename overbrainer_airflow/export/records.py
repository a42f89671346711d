"""JSON files that overbrainer and this package both read and write."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from overbrainer_airflow.errors import OverbrainerError


class Record(BaseModel):
    """A JSON object whose unknown fields are kept: a newer writer may have written them."""

    model_config = ConfigDict(frozen=True, extra="allow")


_Record = TypeVar("_Record", bound=Record)


def read_record(
    kind: type[_Record], path: Path, failure: type[OverbrainerError], what: str
) -> _Record:
    """Read a record, which messages call ``what``.

    Raises:
        OverbrainerError: of the type ``failure``: the file cannot be read or is no such record.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise failure(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise failure(f"{path} is not {what}: {where}: {first['msg']}") from error


def pretty(fields: dict[str, Any]) -> str:
    """Return the text of a record's file: pretty JSON and a final newline."""
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
