"""Files to and from a machine, whatever happens on the way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.constants import MSG_CHANNEL_OPEN, MSG_IGNORE

from demo.sshd import LoopbackSSHD
from overbrainer_airflow.errors import MachineError, OverbrainerError, TransferError
from overbrainer_airflow.machines import ssh
from overbrainer_airflow.machines.agent.locks import LOCK_FILE
from overbrainer_airflow.machines.agent.parts import part_of
from overbrainer_airflow.machines.manifest import FileDigest
from overbrainer_airflow.machines.protocol import Machine
from overbrainer_airflow.machines.ranges import RANGE
from overbrainer_airflow.machines.runtime import MachineSettings
from overbrainer_airflow.machines.transfer import fetch_file, fetch_tree, send_tree
from overbrainer_airflow.machines.trees import Transferred
from tests.integration.conftest import Use
from tests.support.machines import over_ssh, use
from tests.support.relay import cut_after

SIZE = 96 << 20

Work = Callable[[Machine], Awaitable[Any]]


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def source(tmp_path: Path, content: bytes) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model").write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sending(source: Path, target: Path, owner: str = "test") -> Work:
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    return lambda machine: send_tree(machine, source, str(target), names, owner=owner)


def fetching(source: Path, target: Path, content: bytes) -> Work:
    expected = FileDigest(len(content), sha256(content).hexdigest())
    return lambda machine: fetch_file(
        machine, f"{source}/model", target / "model", expected, owner="test"
    )


def whole_or_nothing(path: Path, content: bytes) -> bool:
    return not path.exists() or path.read_bytes() == content


def when_begun(part: Path, size: int, act: Callable[[], object]) -> threading.Thread:
    """Do something as soon as a part has grown to ``size`` bytes."""

    def watch() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if part.exists() and part.stat().st_size >= size:
                act()
                return
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_tree_arrives_and_comes_back_as_it_is(
    on_machine: Use, source: Path, tmp_path: Path
) -> None:
    (source / "deep").mkdir()
    (source / "deep" / "small").write_text("small")
    (source / "empty").touch()
    sent: Transferred = on_machine(sending(source, tmp_path / "there"))
    names = list(sent.manifest)
    back: Transferred = on_machine(
        lambda machine: fetch_tree(
            machine, str(tmp_path / "there"), tmp_path / "back", names, owner="test"
        )
    )
    assert back == sent
    assert sent.moved == SIZE + len("small")
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    assert [path.name for path in (tmp_path / "there").rglob(".*")] == []
    assert list(tmp_path.rglob("*.part")) == []


def test_what_is_there_and_equal_is_not_sent_again(
    on_machine: Use, source: Path, tmp_path: Path
) -> None:
    on_machine(sending(source, tmp_path / "there"))
    assert on_machine(sending(source, tmp_path / "there")).moved == 0


def test_other_content_of_the_same_size_and_time_is_sent(
    on_machine: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    on_machine(sending(source, tmp_path / "there"))
    for changed in (source / "model", tmp_path / "there" / "model"):
        before = changed.stat()
        with changed.open("r+b") as file:
            file.seek(SIZE // 2)
            file.write(bytes([content[SIZE // 2] ^ 1]))
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
        expected = (source / "model").read_bytes()
        assert on_machine(sending(source, tmp_path / "there")).moved == SIZE
        assert (tmp_path / "there" / "model").read_bytes() == expected
        (source / "model").write_bytes(content)
        on_machine(sending(source, tmp_path / "there"))


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_a_connection_that_is_cut_costs_only_what_was_not_there(
    sshd: LoopbackSSHD, source: Path, tmp_path: Path, content: bytes, percent: int
) -> None:
    target = tmp_path / "there" / "model"
    with cut_after(sshd, up=SIZE * percent // 100) as relayed:
        with pytest.raises(MachineError, match="test machine: the connection was lost"):
            use(over_ssh(relayed), sending(source, target.parent))
        assert not target.exists()
        there = Path(part_of(str(target))).stat().st_size
        sent = use(over_ssh(relayed), sending(source, target.parent))
    assert target.read_bytes() == content
    assert sent.moved <= SIZE - there + RANGE
    assert sent.moved <= SIZE - SIZE * percent // 100 + 2 * RANGE


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_a_fetch_that_is_cut_goes_on(
    sshd: LoopbackSSHD, source: Path, tmp_path: Path, content: bytes, percent: int
) -> None:
    target = tmp_path / "here" / "model"
    with cut_after(sshd, down=SIZE * percent // 100) as relayed:
        with pytest.raises(MachineError, match="test machine: the connection was lost"):
            use(over_ssh(relayed), fetching(source, target.parent, content))
        assert not target.exists()
        moved = use(over_ssh(relayed), fetching(source, target.parent, content))
    assert target.read_bytes() == content
    assert moved <= SIZE - SIZE * percent // 100 + 2 * RANGE


def test_a_server_that_is_killed_and_started_again_is_gone_on_with(
    sshd: LoopbackSSHD, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    killed = when_begun(Path(part_of(str(target))), SIZE // 4, lambda: restart(sshd))
    with pytest.raises(MachineError, match="test machine"):
        use(over_ssh(sshd), sending(source, target.parent))
    killed.join()
    assert use(over_ssh(sshd), sending(source, target.parent)).moved <= SIZE
    assert target.read_bytes() == content


def restart(sshd: LoopbackSSHD) -> None:
    sshd.stop()
    sshd.start()


def test_a_killed_worker_leaves_no_file_and_its_retry_goes_on(
    sshd: LoopbackSSHD, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from demo.sshd import LoopbackSSHD\n"
        "from tests.integration.test_transfer import sending\n"
        "from tests.support.machines import over_ssh, use\n"
        "folder, port, source, target = sys.argv[1:]\n"
        "server = LoopbackSSHD(Path(folder), int(port))\n"
        "use(over_ssh(server), sending(Path(source), Path(target)))\n"
    )
    arguments = [str(sshd.folder), str(sshd.port), str(source), str(target.parent)]
    with subprocess.Popen([sys.executable, "-c", program, *arguments]) as worker:
        when_begun(Path(part_of(str(target))), SIZE // 2, worker.kill).join()
    assert worker.returncode == -signal.SIGKILL
    assert not target.exists()
    assert use(over_ssh(sshd), sending(source, target.parent)).moved <= SIZE
    assert target.read_bytes() == content


def test_bytes_that_were_damaged_on_arrival_are_sent_again(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    part = Path(part_of(str(target)))
    part.parent.mkdir()
    damaged = bytearray(content[: SIZE // 2])
    damaged[20 << 20] ^= 1
    part.write_bytes(damaged)
    sent = over_ssh_only(sending(source, target.parent))
    assert target.read_bytes() == content
    assert sent.moved == SIZE - (16 << 20)


def test_a_part_of_another_export_is_not_taken_for_ours(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    target.parent.mkdir()
    Path(part_of(str(target))).write_bytes(os.urandom(SIZE + 5))
    over_ssh_only(sending(source, target.parent))
    assert target.read_bytes() == content


def test_a_remote_file_that_is_not_the_expected_one_replaces_nothing(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "here"
    target.mkdir()
    (target / "model").write_text("before")
    (source / "model").write_bytes(bytes(SIZE))
    with pytest.raises(TransferError, match="changed since it was made"):
        over_ssh_only(fetching(source, target, content))
    os.truncate(source / "model", 5)
    with pytest.raises(TransferError, match="5 bytes"):
        over_ssh_only(fetching(source, target, content))
    (source / "model").unlink()
    with pytest.raises(TransferError, match="there is no file"):
        over_ssh_only(fetching(source, target, content))
    assert [path.name for path in target.iterdir()] == ["model"]
    assert (target / "model").read_text() == "before"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a disk of its own cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_at_either_end(
    over_ssh_only: Use, source: Path, small_disk: Path, content: bytes
) -> None:
    with pytest.raises(TransferError, match="No space left"):
        over_ssh_only(sending(source, small_disk / "there"))
    Path(part_of(str(small_disk / "there" / "model"))).unlink()
    with pytest.raises((OSError, OverbrainerError), match="No space left"):
        over_ssh_only(fetching(source, small_disk / "here", content))
    assert not (small_disk / "there" / "model").exists()
    assert not (small_disk / "here" / "model").exists()


def test_two_fetches_of_one_file_do_not_mix(
    sshd: LoopbackSSHD, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "here"

    async def both() -> list[int]:
        machines = [over_ssh(sshd), over_ssh(sshd)]
        try:
            work = fetching(source, target, content)
            return list(await asyncio.gather(*map(work, machines)))
        finally:
            for machine in machines:
                await machine.close()

    assert sorted(asyncio.run(both())) == [0, SIZE]
    assert (target / "model").read_bytes() == content


def test_modes_are_sane_whatever_the_umask(
    over_ssh_only: Use, source: Path, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        over_ssh_only(sending(source, tmp_path / "there" / "deep"))
    finally:
        os.umask(before)
    assert (tmp_path / "there" / "deep" / "model").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "there" / "deep").stat().st_mode & 0o777 == 0o755


def test_a_machine_without_python_gets_whole_files_over_sftp(
    sshd: LoopbackSSHD, source: Path, tmp_path: Path, content: bytes
) -> None:
    def machine() -> Machine:
        return over_ssh(sshd, MachineSettings(venv="/nowhere"))

    (source / "empty").touch()
    assert use(machine(), sending(source, tmp_path / "there")).moved == SIZE
    assert use(machine(), sending(source, tmp_path / "there")).moved == 0
    use(machine(), fetching(tmp_path / "there", tmp_path / "here", content))
    assert (tmp_path / "here" / "model").read_bytes() == content
    assert list(tmp_path.rglob("*.part")) == []


def test_thousands_of_small_files_arrive(over_ssh_only: Use, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for index in range(20_000):
        path = source / f"{index % 100}" / f"{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {index}")
    sent = over_ssh_only(sending(source, tmp_path / "there"))
    assert len(sent.manifest) == 20_000
    found = {p.name: p.read_text() for p in (tmp_path / "there").rglob("*") if p.is_file()}
    assert found == {f"{index}": f"file {index}" for index in range(20_000)}


def test_a_read_only_destination_is_told(over_ssh_only: Use, source: Path) -> None:
    with pytest.raises((TransferError, MachineError), match="/proc/there"):
        over_ssh_only(sending(source, Path("/proc/there")))


NAMES = [
    "a name with spaces",
    'it\'s "quoted" $HOME `x`',
    "new\nline",
    "-rf",
    "größe 模型",
    ".hidden",
    "a" * 255,
    "deep/-er/*",
]


def test_names_arrive_as_they_are(on_machine: Use, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in NAMES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "large -x").write_bytes(os.urandom(3 << 20))
    on_machine(sending(source, tmp_path / "there $HOME 'q'"))
    back = tmp_path / "back"
    names = [*NAMES, "large -x"]
    on_machine(
        lambda machine: fetch_tree(
            machine, str(tmp_path / "there $HOME 'q'"), back, names, owner="test"
        )
    )
    for name in names:
        assert (back / name).read_bytes() == (source / name).read_bytes()


def test_links_arrive_as_the_content_behind_them(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    (source / "blobs").mkdir()
    (source / "model").rename(source / "blobs" / "0f3a")
    (source / "model").symlink_to("blobs/0f3a")
    over_ssh_only(
        lambda machine: send_tree(machine, source, str(tmp_path / "there"), ["model"], owner="test")
    )
    arrived = tmp_path / "there" / "model"
    assert not arrived.is_symlink()
    assert arrived.read_bytes() == content


def test_a_source_that_is_written_to_while_it_is_sent_is_no_file_there(
    over_ssh_only: Use, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there" / "model"

    def write() -> None:
        with (source / "model").open("r+b") as file:
            file.write(b"other")

    writing = when_begun(Path(part_of(str(target))), SIZE // 8, write)
    with pytest.raises(TransferError, match="was written to while it was sent"):
        over_ssh_only(sending(source, target.parent))
    writing.join()
    assert not target.exists()
    expected = (source / "model").read_bytes()
    over_ssh_only(sending(source, target.parent))
    assert target.read_bytes() == expected


def test_a_source_that_changed_between_two_tries_is_sent_as_it_is_now(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    target.parent.mkdir()
    Path(part_of(str(target))).write_bytes(content[: SIZE // 2])
    (source / "model").write_bytes(content[::-1])
    assert over_ssh_only(sending(source, target.parent)).moved == SIZE
    assert target.read_bytes() == content[::-1]


def test_a_part_that_somebody_removes_meanwhile_gets_no_name(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    part = Path(part_of(str(target)))
    removing = when_begun(part, SIZE // 4, part.unlink)
    with pytest.raises(TransferError, match="was (replaced|cut) while it was being written"):
        over_ssh_only(sending(source, target.parent))
    removing.join()
    assert not target.exists()
    over_ssh_only(sending(source, target.parent))
    assert target.read_bytes() == content


def test_a_part_that_somebody_cuts_meanwhile_gets_no_name(
    over_ssh_only: Use, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there" / "model"
    part = Path(part_of(str(target)))
    cutting = when_begun(part, SIZE // 4, lambda: os.truncate(part, 5))
    with pytest.raises(TransferError, match="was cut while it was being written"):
        over_ssh_only(sending(source, target.parent))
    cutting.join()
    assert not target.exists()


def test_a_source_that_is_cut_while_it_is_fetched_is_told(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "here" / "model"
    part = Path(part_of(str(target)))
    cutting = when_begun(part, SIZE // 4, lambda: os.truncate(source / "model", SIZE // 3))
    with pytest.raises(OverbrainerError, match=str(source / "model")):
        over_ssh_only(fetching(source, target.parent, content))
    cutting.join()
    assert not target.exists()


def test_a_file_that_is_here_but_not_what_is_expected_is_not_taken_for_it(
    over_ssh_only: Use, source: Path, content: bytes
) -> None:
    (source / "model").write_bytes(bytes(SIZE))
    with pytest.raises(TransferError, match="changed since it was made"):
        over_ssh_only(fetching(source, source, content))


def test_a_source_that_grew_before_its_turn_is_no_file_there(
    over_ssh_only: Use, source: Path, tmp_path: Path
) -> None:
    (source / "a").write_bytes(bytes(64 << 20))
    growing = when_begun(
        Path(part_of(str(tmp_path / "there" / "a"))),
        1 << 20,
        lambda: os.truncate(source / "model", SIZE + 5),
    )
    with pytest.raises(TransferError, match="was written to while it was sent"):
        over_ssh_only(sending(source, tmp_path / "there"))
    growing.join()
    assert not (tmp_path / "there" / "model").exists()


def test_new_links_to_a_source_are_no_change_of_it(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"
    linking = when_begun(
        Path(part_of(str(target))), 1 << 20, lambda: os.link(source / "model", tmp_path / "link")
    )
    over_ssh_only(sending(source, target.parent))
    linking.join()
    assert target.read_bytes() == content


def test_a_file_that_is_called_like_the_part_of_another_is_refused(
    over_ssh_only: Use, source: Path, tmp_path: Path
) -> None:
    (source / "model.part").write_text("left over")
    with pytest.raises(TransferError, match="would be called model.part on its way"):
        over_ssh_only(sending(source, tmp_path / "there"))


def test_an_agent_that_dies_is_named_and_costs_only_its_try(
    over_ssh_only: Use, source: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / "there" / "model"

    def kill_agent() -> None:
        _, pid, _ = json.loads((target.parent / LOCK_FILE).read_text())
        os.kill(pid, signal.SIGKILL)

    killing = when_begun(Path(part_of(str(target))), SIZE // 4, kill_agent)
    with pytest.raises(MachineError, match="test machine: the program at its end is gone"):
        over_ssh_only(sending(source, target.parent))
    killing.join()
    over_ssh_only(sending(source, target.parent))
    assert target.read_bytes() == content


def test_no_decoy_packets_are_sent(sshd: LoopbackSSHD, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send_packet = asyncssh.SSHClientConnection.send_packet

    def record(self: Any, pkttype: int, *args: Any, **options: Any) -> None:
        sent.append(pkttype)
        send_packet(self, pkttype, *args, **options)

    def after_login() -> set[int]:
        use(over_ssh(sshd), lambda machine: machine.run("true"))
        found = set(sent[sent.index(MSG_CHANNEL_OPEN) + 1 :])
        sent.clear()
        return found

    monkeypatch.setattr(asyncssh.SSHClientConnection, "send_packet", record)
    assert MSG_IGNORE not in after_login()
    monkeypatch.setattr(ssh, "spare_decoys", id)
    assert MSG_IGNORE in after_login(), "asyncssh has changed: spare_decoys may go"
