import pytest

from overbrainer_airflow.machines.log_lines import LogLines

LOG = "one\ntwo ä€😀\n10%|#\r50%|##\r100%|###\rdone\r\nlast".encode()
LINES = ["one", "two ä€😀", "done", "last"]


@pytest.mark.parametrize("size", range(1, len(LOG) + 1))
def test_lines_are_the_same_wherever_the_log_was_cut(size: int) -> None:
    lines = LogLines()
    shown = []
    for begin in range(0, len(LOG), size):
        shown += lines.feed(LOG[begin : begin + size])
    assert shown + lines.end() == LINES


def test_what_is_pending_is_what_was_not_shown() -> None:
    lines = LogLines()
    lines.feed(b"one\ntw")
    assert lines.pending == 2


def test_cursor_codes_are_not_shown() -> None:
    assert LogLines().feed(b"\x1b[1;31mred\x1b[0m\x07\n") == ["red"]


def test_a_line_without_an_end_is_shown_before_it_fills_the_memory() -> None:
    lines = LogLines()
    assert lines.feed(b"x" * 70_000) == ["x" * 70_000]
    assert lines.pending == 0


def test_the_last_lines_are_remembered() -> None:
    lines = LogLines(remember=2)
    lines.feed(b"1\n2\n3\n")
    assert list(lines.last) == ["2", "3"]
