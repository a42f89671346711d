"""One transfer at a time into a directory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overbrainer_airflow.machines.agent.locks import LOCK_FILE, give_up, holder, take

HOLD = """
import sys
from overbrainer_airflow.machines.agent.locks import take
held = take(sys.argv[1], sys.argv[2], ends_earlier_try=False)
print("taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(folder: Path, owner: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", HOLD, str(folder), owner]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_transfer_hears_who_has_the_place(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path, "export A") as process:
        assert take(str(tmp_path), "export B", ends_earlier_try=True) is None
        assert holder(str(tmp_path)).startswith(f"export A (process {process.pid} on ")


def test_an_earlier_try_of_the_same_owner_is_ended(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path, "export A") as process:
        held = take(str(tmp_path), "export A", ends_earlier_try=True)
        assert held is not None
        assert process.wait(10) != 0
        give_up(str(tmp_path), held)


def test_a_place_whose_holder_was_killed_is_free(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path, "export A") as process:
        process.kill()
        process.wait()
        assert (tmp_path / LOCK_FILE).exists()
        held = take(str(tmp_path), "export B", ends_earlier_try=False)
        assert held is not None
        give_up(str(tmp_path), held)


def test_nothing_stays_of_a_place_that_was_given_up(tmp_path: Path) -> None:
    held = take(str(tmp_path / "deep"), "export A", ends_earlier_try=False)
    assert held is not None
    give_up(str(tmp_path / "deep"), held)
    assert list((tmp_path / "deep").iterdir()) == []
