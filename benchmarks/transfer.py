"""Transfers, against what people use instead, on the same sshd: `make bench-transfer`.

By turns and in the same run: ours, rsync, scp with `sha256sum` at both ends, `tar | ssh tar` and
paramiko's SFTP, with one large file and with a tree of small ones, both ways. Only ours and rsync
verify what arrives; scp is counted with the two `sha256sum` that a careful person runs. Ours also
writes to the disk before a file gets its name, which no other does. Then ours and rsync through a
relay that delays each direction by 25 ms and passes 1 Gbit/s.

Each of ours is a process of its own that tells its time from before the connection to after it,
and its peak memory, Airflow's included.
"""

import argparse
import asyncio
import contextlib
import functools
import getpass
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import paramiko  # type: ignore[import-untyped]

from demo.sshd import LoopbackSSHD, free_port, loopback_sshd
from demo.toolchain import need_programs
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines.transfer import fetch_tree, send_tree

CONNECTION = "bench"
ROUNDS = 3
LARGE_FILE = "model.safetensors"
LARGE_SIZE = 4 << 30
SMALL_FILES = 20_000
WAN_SIZE = 1 << 30
DELAY = 0.025
BYTES_A_SECOND = 125_000_000


@dataclass(frozen=True)
class Case:
    """A tree to move.

    Attributes:
        source: where it is.
        target: where it goes.
        port: of the sshd, or of the relay before it.
        server: whose keys log in.
        upload: whether the target is the machine.
    """

    source: Path
    target: Path
    port: int
    server: LoopbackSSHD
    upload: bool

    @property
    def ssh(self) -> list[str]:
        """The ssh command that logs in."""
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        key = ["-i", str(self.server.folder / "user_key")]
        return ["ssh", "-F", "none", *key, *(f"-o{option}" for option in options)]

    def at_machine(self, path: Path) -> str:
        """Return how scp and rsync name a directory's content on the machine."""
        return f"{getpass.getuser()}@127.0.0.1:{path}/"

    @property
    def ends(self) -> list[str]:
        """The two operands of scp and rsync."""
        source, target = f"{self.source}/", f"{self.target}/"
        if self.upload:
            return [source, self.at_machine(self.target)]
        return [self.at_machine(self.source), target]


Way = Callable[[Case], float]


def rsync(case: Case) -> float:
    """Move with rsync, which compares a digest of each file at the end."""
    remote = " ".join([*case.ssh, "-p", str(case.port)])
    return timed(["rsync", "-rt", "-e", remote, *case.ends])


def rsync_to_disk(case: Case) -> float:
    """Move with rsync that writes each file to the disk before it gets its name, as ours does."""
    remote = " ".join([*case.ssh, "-p", str(case.port)])
    return timed(["rsync", "-rt", "--fsync", "-e", remote, *case.ends])


def scp(case: Case) -> float:
    """Move with scp."""
    options = ["-q", "-r", "-P", str(case.port)]
    ends = [end + "." if end == f"{case.source}/" else end for end in case.ends]
    if not case.upload:
        ends[0] += "*"
    return timed(["scp", *case.ssh[1:], *options, *ends])


def scp_and_sha256sum(case: Case) -> float:
    """Move with scp, then do what a careful person does."""
    elapsed = scp(case)
    there = case.target if case.upload else case.source
    here = case.source if case.upload else case.target
    digest = "cd '{}' && find . -type f -exec sha256sum {{}} + | sort"
    login = [*case.ssh, "-p", str(case.port), f"{getpass.getuser()}@127.0.0.1"]
    started = time.monotonic()
    remote = subprocess.run([*login, digest.format(there)], capture_output=True, check=True)
    local = subprocess.run(["sh", "-c", digest.format(here)], capture_output=True, check=True)
    if remote.stdout != local.stdout:
        raise RuntimeError("scp brought other content")
    return elapsed + time.monotonic() - started


def tar(case: Case) -> float:
    """Move with tar through ssh."""
    login = " ".join([*case.ssh, "-p", str(case.port), f"{getpass.getuser()}@127.0.0.1"])
    pack, unpack = f"tar -C {case.source} -cf - .", f"tar -C {case.target} -xf -"
    if case.upload:
        return timed(["sh", "-c", f"{pack} | {login} '{unpack}'"])
    return timed(["sh", "-c", f"{login} '{pack}' | {unpack}"])


def paramiko_sftp(case: Case) -> float:
    """Move with paramiko's SFTP, as Airflow's SFTPOperator does."""
    started = time.monotonic()
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.MissingHostKeyPolicy())
        key = paramiko.Ed25519Key(filename=str(case.server.folder / "user_key"))
        client.connect("127.0.0.1", case.port, getpass.getuser(), pkey=key)
        with client.open_sftp() as sftp:
            move = sftp.put if case.upload else sftp.get
            for name in files_of(case.source):
                make_folder(case.target / name)
                move(str(case.source / name), str(case.target / name))
    return time.monotonic() - started


def make_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


def ours(case: Case) -> float:
    """Move as the operators do."""
    return run_ours(case)[0]


def run_ours(case: Case) -> tuple[float, float]:
    """Return the seconds and the peak memory in MB of a process that moves as the operators do."""
    connection = json.loads(case.server.connection()) | {"port": case.port}
    env = {**os.environ, f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps(connection)}
    way = "put" if case.upload else "get"
    program = [sys.executable, __file__, "--ours", way, str(case.source), str(case.target)]
    done = subprocess.run(program, env=env, capture_output=True, check=True, text=True)
    elapsed, memory = done.stdout.split()[-2:]
    return float(elapsed), float(memory)


async def move_ours(way: str, source: Path, target: Path) -> None:
    """Move and tell the seconds and the peak memory."""
    names = files_of(source)
    started = time.monotonic()
    async with MachineHook(CONNECTION).machine() as machine:
        if way == "put":
            await send_tree(machine, source, str(target), names, owner="bench")
        else:
            await fetch_tree(machine, str(source), target, names, owner="bench")
    elapsed = time.monotonic() - started
    print(elapsed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


def timed(command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def fresh(case: Case, way: Way) -> float:
    """Time a way of moving into an empty directory; nothing of an earlier one is being written."""
    if case.target.exists():
        set_aside(case.target)
    case.target.mkdir()
    os.sync()
    return way(case)


def set_aside(target: Path) -> None:
    """Remove a large file; thousands of small ones only get another name.

    ext4 gives no inode again within seconds of its deletion, and looks at each before it says so.
    """
    if len(files_of(target)) == 1:
        shutil.rmtree(target)
    else:
        target.rename(tempfile.mkdtemp(dir=target.parent))


def by_turns(case: Case, ways: list[Way], rounds: int = ROUNDS) -> dict[Way, float]:
    """Return the median seconds of each way."""
    times: dict[Way, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            times[way].append(fresh(case, way))
    medians = {way: statistics.median(found) for way, found in times.items()}
    size = sum((case.source / name).stat().st_size for name in files_of(case.source))
    for way, median in medians.items():
        spread = ", ".join(f"{seconds:.2f}" for seconds in times[way])
        name = way.__name__.replace("_", " ")
        print(
            f"  {name:18} {median:7.2f} s {size / median / 1e6:7.0f} MB/s  ({spread})", flush=True
        )
    return medians


@dataclass
class Direction:
    """One direction of a long link; all connections through it share its rate."""

    free_at: float = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection's bytes on ``DELAY`` later, all of them at ``BYTES_A_SECOND``."""
        # Twice what the link itself holds: a router has a queue, too.
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        arriving = asyncio.create_task(self._arrive(under_way, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.free_at = max(self.free_at, time.monotonic()) + len(data) / BYTES_A_SECOND
                await under_way.put((self.free_at + DELAY, data))
        await under_way.put((time.monotonic() + DELAY, b""))
        await arriving

    async def _arrive(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0, due - time.monotonic()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


async def serve_relay(port: int, server: int) -> None:
    """Serve the long link to an sshd on a port."""
    up, down = Direction(), Direction()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(up.carry(reader, there_writer), down.carry(there_reader, writer))

    listener = await asyncio.start_server(connected, "127.0.0.1", port)
    await listener.serve_forever()


@contextlib.contextmanager
def relayed(server: LoopbackSSHD) -> Iterator[int]:
    """Yield the port of a running relay."""
    port = free_port()
    program = [sys.executable, __file__, "--relay", str(port), str(server.port)]
    with subprocess.Popen(program) as relay:
        try:
            while relay.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            yield port
        finally:
            relay.kill()


def make_large(folder: Path) -> None:
    folder.mkdir()
    with (folder / LARGE_FILE).open("wb") as file:
        for _ in range(LARGE_SIZE >> 24):
            file.write(os.urandom(1 << 24))


def make_small(folder: Path) -> None:
    for index in range(SMALL_FILES):
        path = folder / f"{index % 100:02}" / f"{index:05}.json"
        make_folder(path)
        path.write_bytes(os.urandom(500 + index % 3000))


@dataclass(frozen=True)
class Place:
    """Where it is measured: a server, the trees, and where they go."""

    server: LoopbackSSHD
    large: Path
    small: Path
    target: Path

    def case(self, source: Path, *, upload: bool, port: int | None = None) -> Case:
        """Return a case of moving a tree."""
        return Case(source, self.target, port or self.server.port, self.server, upload)


def large(place: Place, *, upload: bool) -> str:
    """Compare ways of moving the large file."""
    case = place.case(place.large, upload=upload)
    took = by_turns(case, [ours, rsync, rsync_to_disk, scp_and_sha256sum, tar])
    by_turns(case, [paramiko_sftp], rounds=1)
    careful = took[scp_and_sha256sum] / took[ours]
    return f"{took[rsync] / took[ours]:.2f} x rsync, {careful:.2f} x scp+sha256sum"


def small(place: Place) -> str:
    """Compare ways of moving many small files; the worse direction counts."""
    ratios = []
    for upload in (True, False):
        case = place.case(place.small, upload=upload)
        took = by_turns(case, [ours, rsync, tar])
        by_turns(case, [rsync_to_disk, scp], rounds=1)
        ratios.append(took[rsync] / took[ours])
    by_turns(place.case(place.small, upload=True), [paramiko_sftp], rounds=1)
    return f"{min(ratios):.2f} x rsync"


def wan(place: Place) -> str:
    """Compare with rsync over a long link; the worse direction counts."""
    os.truncate(place.large / LARGE_FILE, WAN_SIZE)
    ratios = []
    with relayed(place.server) as port:
        for upload in (True, False):
            took = by_turns(place.case(place.large, upload=upload, port=port), [ours, rsync])
            ratios.append(took[rsync] / took[ours])
    return f"{min(ratios):.2f} x rsync"


def again(place: Place) -> str:
    """Measure peak memory, and sending the unchanged file again."""
    case = place.case(place.large, upload=True)
    memory: list[float] = []

    def first(case: Case) -> float:
        elapsed, peak = run_ours(case)
        memory.append(peak)
        return elapsed

    took = fresh(case, first)
    shares = [run_ours(case)[0] / took for _ in range(ROUNDS)]
    fetched = place.case(place.large, upload=False)
    fresh(fetched, first)
    return f"rss {max(memory):.0f} MB; again {100 * statistics.median(shares):.1f} %"


PARTS: dict[str, Callable[[Place], str]] = {
    "put": functools.partial(large, upload=True),
    "get": functools.partial(large, upload=False),
    "small": small,
    "again": again,
    "wan": wan,
}


def measure(parts: list[str]) -> None:
    """Measure parts and print the line of their ratios."""
    need_programs("sshd", "rsync")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_large(folder / "large")
        make_small(folder / "small")
        with loopback_sshd(folder / "sshd") as server:
            place = Place(server, folder / "large", folder / "small", folder / "target")
            found = {}
            for part in parts:
                print(f"{part}:", flush=True)
                found[part] = PARTS[part](place)
    named = [text if part == "again" else f"{part} {text}" for part, text in found.items()]
    print("; ".join(named))


def main() -> None:
    """Measure all of it, or be one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--ours", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--relay", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        way, source, target = options.ours
        asyncio.run(move_ours(way, Path(source), Path(target)))
    elif options.relay:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve_relay(*options.relay))
    else:
        measure(options.parts)


if __name__ == "__main__":
    main()
