"""What an export's log says of its stages and of its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from overbrainer_airflow.machines.progress import human_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overbrainer_airflow.machines.watch import JobEnd

SAID = "export: "
"""What every line of the export script itself starts with."""

_PRINTED = 3

_STAGE = re.compile(rf"{SAID}(\w+) took (\d+) s")


def stage_summary(said: Sequence[str]) -> str:
    """Return the stages that the script finished, with their durations; empty when none."""
    stages = [match.groups() for line in said if (match := _STAGE.fullmatch(line))]
    return ", ".join(f"{name} {human_duration(float(seconds))}" for name, seconds in stages)


def what_failed(end: JobEnd, job_dir: str) -> str:
    """Return why a job that ended like this has failed; empty when it has not."""
    reason = end.marked[-1] if end.marked else end.last[-1] if end.last else "it printed nothing"
    if end.how == "cancelled":
        return f"the job in {job_dir} was cancelled; a retry starts it again"
    if end.how == "timeout":
        return (
            f"the job in {job_dir} took longer than job_timeout allows and was cancelled; its last "
            f"words: {reason}"
        )
    if end.how == "lost":
        return (
            f"the job in {job_dir} was lost: its processes are gone without an exit code, killed "
            "or ended by a restart of the machine; a retry starts it again. Its last words: "
            f"{reason}"
        )
    if end.exit_code != 0:
        printed = [line for line in end.last if not line.startswith(SAID)][-_PRINTED:]
        ending = f"; the log ends with: {' | '.join(printed)}" if end.marked and printed else ""
        return f"the job in {job_dir} ended with exit code {end.exit_code}: {reason}{ending}"
    return ""
