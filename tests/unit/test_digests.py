"""Digests: going on from anywhere, and remembered only while the file is certainly the same."""

import ast
import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from overbrainer_airflow.machines.agent.digests import (
    WORTH_REMEMBERING,
    RunningDigest,
    digest_of,
    remembered,
    settles_in,
)
from overbrainer_airflow.machines.link import agent_source

CONTENT = os.urandom(WORTH_REMEMBERING + 10)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file whose digest has been remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    settle(path)
    digest_of(str(path))
    assert remembered(str(path)) == sha256(CONTENT).hexdigest()
    return path


def settle(path: Path) -> None:
    """Wait until the kernel's clock for files has moved on since the file's last change."""
    time.sleep(settles_in(path.stat()) / 1e9)


def changed(byte: int) -> bytes:
    return CONTENT[:byte] + bytes([CONTENT[byte] ^ 1]) + CONTENT[byte + 1 :]


def test_other_content_of_the_same_size_and_time_is_noticed(model: Path) -> None:
    before = model.stat()
    model.write_bytes(changed(5))
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_mtime_ns == before.st_mtime_ns
    assert digest_of(str(model)) == sha256(changed(5)).hexdigest()


def test_another_file_of_the_same_size_and_time_in_its_place_is_noticed(model: Path) -> None:
    before = model.stat()
    other = model.with_name("other")
    other.write_bytes(changed(7))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(model)
    assert digest_of(str(model)) == sha256(changed(7)).hexdigest()


def test_a_file_that_changed_a_moment_ago_is_not_remembered(model: Path) -> None:
    model.write_bytes(changed(9))
    assert digest_of(str(model)) == sha256(changed(9)).hexdigest()
    assert remembered(str(model)) is None


def test_a_small_file_is_not_worth_remembering(model: Path) -> None:
    small = model.with_name("small")
    small.write_bytes(b"small")
    settle(small)
    assert digest_of(str(small)) == sha256(b"small").hexdigest()
    assert remembered(str(small)) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"is": 5}', b"\xff"])
def test_a_damaged_memory_is_no_memory(model: Path, damage: bytes) -> None:
    [note] = (model.parent / "cache").rglob("*.json")
    note.write_bytes(damage)
    assert digest_of(str(model)) == sha256(CONTENT).hexdigest()


def test_a_memory_that_cannot_be_written_is_no_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert digest_of(str(model)) == sha256(CONTENT).hexdigest()


class TestRunningDigest:
    """Ranges that pass, that are read, and that come again."""

    @pytest.fixture
    def digest(self, model: Path) -> RunningDigest:
        return RunningDigest(str(model))

    def test_what_passes_in_order_is_not_read(self, tmp_path: Path) -> None:
        digest = RunningDigest(str(tmp_path / "no file"))
        for start in (0, 100):
            digest.begin(start)
            digest.take(CONTENT[start : start + 60])
            digest.take(CONTENT[start + 60 : start + 100])
            digest.end()
        assert digest.upto(0, 100) == sha256(CONTENT[:100]).hexdigest()
        assert digest.upto(100, 200) == sha256(CONTENT[:200]).hexdigest()

    def test_what_does_not_pass_is_read(self, digest: RunningDigest) -> None:
        assert digest.upto(0, 100) == sha256(CONTENT[:100]).hexdigest()
        digest.begin(500)
        digest.take(CONTENT[500:600])
        digest.end()
        assert digest.upto(100, 600) == sha256(CONTENT[:600]).hexdigest()

    def test_a_range_that_passes_again_counts_as_it_passed_last(
        self, digest: RunningDigest
    ) -> None:
        digest.begin(0)
        digest.take(b"damaged on the way")
        digest.end()
        assert digest.upto(0, 18) == sha256(b"damaged on the way").hexdigest()
        digest.begin(18)
        digest.take(CONTENT[18:100])
        digest.end()
        digest.begin(0)
        digest.take(CONTENT[:18])
        digest.end()
        assert digest.upto(0, 18) == sha256(CONTENT[:18]).hexdigest()
        assert digest.upto(18, 100) == sha256(CONTENT[:100]).hexdigest()

    def test_a_file_that_ends_too_early_is_an_error(self, digest: RunningDigest) -> None:
        with pytest.raises(OSError, match=f"ends at {len(CONTENT)} bytes"):
            digest.upto(0, len(CONTENT) + 1)


def test_the_agent_is_written_for_old_pythons() -> None:
    for node in ast.walk(ast.parse(agent_source())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SOURCES":
            sources = ast.literal_eval(node.value)
    assert len(sources) == 4
    for _, source in sources:
        ast.parse(source, feature_version=(3, 7))
