from datetime import datetime, timedelta, timezone

import pytest

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.ids import check_export_id, check_run_id, export_id_for, rfc3339

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=timezone.utc)
SAME_MOMENT_IN_TOKYO = MOMENT.astimezone(timezone(timedelta(hours=9)))


@pytest.mark.parametrize("run_id", ["r", "My-run_1", "-", "20260102", "a" * 128])
def test_a_run_id_of_letters_digits_dashes_and_underscores_is_kept(run_id: str) -> None:
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id",
    [
        *("", ".", "..", "a/b", "/a", "../a", "a\\b", "a.b", "a b", "a\tb", "a\n", "\na", "a\0"),
        *("a" * 129, "é", "\u0661", "\uff41", "a;b", "$a", "a'b", "~", "*"),
        *(None, 5, b"a", ["a"]),
    ],
    ids=ascii,
)
def test_a_run_id_that_could_name_another_path_is_refused(run_id: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_run_id(run_id)
    assert repr(run_id) in str(caught.value)
    assert "1 to 128 ASCII letters, digits, '-' and '_'" in str(caught.value)


def test_an_export_id_says_when_its_dag_run_was_due_in_utc() -> None:
    assert export_id_for(SAME_MOMENT_IN_TOKYO, "dag").startswith("export_20260102-030405-")


def test_each_try_of_a_task_instance_gets_the_same_export_id() -> None:
    owner = ("dag", "manual__1", "stage_model", -1)
    assert export_id_for(MOMENT, *owner) == export_id_for(SAME_MOMENT_IN_TOKYO, *owner)


@pytest.mark.parametrize(
    "other",
    [
        ("dag", "manual__1", "stage_model", 0),
        ("dag", "manual__1", "stage_mode", "l-1"),
        ("dag", "manual__2", "stage_model", -1),
    ],
)
def test_two_task_instances_of_one_moment_get_two_export_ids(other: tuple[object, ...]) -> None:
    owner = ("dag", "manual__1", "stage_model", -1)
    assert export_id_for(MOMENT, *owner) != export_id_for(MOMENT, *other)


def test_a_made_export_id_passes_its_own_check() -> None:
    export_id = export_id_for(MOMENT, "dag", "run")
    assert check_export_id(export_id) == export_id


@pytest.mark.parametrize(
    "export_id",
    [
        "",
        "export_20260102-030405",
        "export_20260102-030405-0123ABCD",
        "export_20260102-030405-0123abcd\n",
        "export_20260102-030405-0123abcd/..",
        "../export_20260102-030405-0123abcd",
        "export_2026010\u0662-030405-0123abcd",
    ],
    ids=ascii,
)
def test_an_export_id_of_another_form_is_refused(export_id: str) -> None:
    with pytest.raises(
        InvalidInputError, match="export_<YYYYMMDD-HHMMSS>-<8 hex digits>"
    ) as caught:
        check_export_id(export_id)
    assert repr(export_id) in str(caught.value)


def test_a_record_gives_its_time_in_utc_to_the_second() -> None:
    assert rfc3339(SAME_MOMENT_IN_TOKYO) == "2026-01-02T03:04:05Z"
