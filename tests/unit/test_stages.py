import pytest

from overbrainer_airflow.machines.watch import JobEnd
from overbrainer_airflow.operators.stages import stage_summary, what_failed

SAID = ["export: merges the adapter output", "export: merge took 75 s", "export: convert took 3 s"]


def test_the_stages_are_summed_up_with_their_durations() -> None:
    assert stage_summary(SAID) == "merge 1 min 15 s, convert 3.0 s"


def test_a_log_without_stages_has_no_summary() -> None:
    assert stage_summary(["export: merges the adapter output"]) == ""


def test_a_job_that_ended_well_has_not_failed() -> None:
    assert what_failed(JobEnd("exited", 0, ["x"], SAID), "/job") == ""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            JobEnd("exited", 137, ["x"], SAID),
            "exit code 137: export: convert took 3 s; the log ends with: x",
        ),
        (JobEnd("exited", 143, ["x"], []), "exit code 143: x"),
        (JobEnd("exited", 1, [], []), "exit code 1: it printed nothing"),
        (JobEnd("lost", None, ["x"], []), "was lost: its processes are gone"),
        (JobEnd("cancelled", None, [], []), "was cancelled; a retry starts it again"),
        (JobEnd("timeout", None, ["x"], []), "longer than job_timeout allows"),
    ],
)
def test_a_failed_job_says_how_it_ended_and_its_last_words(end: JobEnd, message: str) -> None:
    assert message in what_failed(end, "/job")
    assert "/job" in what_failed(end, "/job")
