"""The names that become paths, and the times that become names."""

import hashlib
import re
from datetime import datetime, timezone

from overbrainer_airflow.errors import InvalidInputError

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_EXPORT_ID = re.compile(r"export_[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


def check_run_id(run_id: object) -> str:
    """Return ``run_id`` if it may name a directory.

    Raises:
        InvalidInputError: it is not 1 to 128 ASCII letters, digits, ``-`` and ``_``.
    """
    if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id):
        return run_id
    raise InvalidInputError(
        f"run id {run_id!r} cannot name a run: give 1 to 128 ASCII letters, digits, '-' and '_', "
        "the name of its directory under runs/"
    )


def check_export_id(export_id: str) -> str:
    """Return ``export_id`` if `export_id_for` could have made it.

    Raises:
        InvalidInputError: it has another form.
    """
    if _EXPORT_ID.fullmatch(export_id):
        return export_id
    raise InvalidInputError(
        f"export id {export_id!r} is not of the form export_<YYYYMMDD-HHMMSS>-<8 hex digits>"
    )


def export_id_for(moment: datetime, *owner: object) -> str:
    """Name the export of one task instance: the same for each of its tries.

    Args:
        moment: when the DAG run was due; must know its time zone.
        owner: what tells the task instance from all others, such as DAG, run, task and map index.
    """
    utc = moment.astimezone(timezone.utc)
    digest = hashlib.sha256("\0".join(map(str, owner)).encode()).hexdigest()
    return f"export_{utc:%Y%m%d-%H%M%S}-{digest[:8]}"


def rfc3339(moment: datetime) -> str:
    """Return ``moment`` in UTC to the second, as overbrainer's records have it."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
