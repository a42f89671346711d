"""Following a job, against the SSH provider's own trigger on the same sshd: `make bench-follow`.

Everything is measured in the same run, ours and the provider's by turns, both at their defaults:

- bytes and round trips a look: one job that prints a line a second, through a relay that counts;
- processor time: a process that follows 200 silent jobs for a minute;
- end to end: from a job's own end to the trigger's event, for jobs of several lengths.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from airflow.providers.ssh.triggers.ssh_remote_job import SSHRemoteJobTrigger
from airflow.providers.ssh.utils.remote_job import RemoteJobPaths, build_posix_wrapper_command

from demo.sshd import LoopbackSSHD, loopback_sshd
from overbrainer_airflow.hooks.machine import MachineHook
from overbrainer_airflow.machines import detached_job
from overbrainer_airflow.machines.runtime import Launch
from overbrainer_airflow.triggers.export_job import ExportJobTrigger

CONNECTION = "bench"
JOBS = 200
MINUTE = 60
LENGTHS = (7.3, 13.1, 19.7, 26.3, 33.9)

#: Starts a job of a shell command in a directory and returns the trigger that follows it.
Start = Callable[[Path, str], Any]


async def start_ours(directory: Path, script: str) -> Any:
    directory.mkdir(parents=True)
    async with MachineHook(CONNECTION).machine() as machine:
        await detached_job.start(
            machine,
            str(directory),
            Launch(f"sh -c {shlex.quote(script)}", {}),
            inputs="x",
            result="none",
        )
    return ExportJobTrigger(
        ssh_conn_id=CONNECTION,
        job_dir=str(directory),
        watcher="bench",
        mark="export: ",
        time_limit=None,
    )


async def start_theirs(directory: Path, script: str) -> Any:
    paths = RemoteJobPaths(job_id=directory.name, remote_os="posix", base_dir=str(directory))
    command = build_posix_wrapper_command(f"sh -c {shlex.quote(script)}", paths)
    shell = await asyncio.create_subprocess_exec("bash", "-c", command, stdout=subprocess.DEVNULL)
    await shell.wait()
    return SSHRemoteJobTrigger(
        ssh_conn_id=CONNECTION,
        remote_host=None,
        job_id=paths.job_id,
        job_dir=paths.job_dir,
        log_file=paths.log_file,
        exit_code_file=paths.exit_code_file,
        remote_os="posix",
    )


async def event_of(trigger: Any) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("a trigger fires")


@dataclass
class Relay:
    """Passes bytes on to the sshd and counts them, and how often the direction turns."""

    port: int
    bytes: int = 0
    turns: int = 0
    _client_spoke: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._pass(reader, up_writer, client=True),
                self._pass(up_reader, writer, client=False),
            )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool
    ) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._pass_all(reader, writer, client=client)

    async def _pass_all(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            self.bytes += len(data)
            self.turns += self._client_spoke and not client
            self._client_spoke = client
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def relayed(server: LoopbackSSHD) -> AsyncIterator[Relay]:
    """Make the connection go through a relay."""
    relay = Relay(server.port)
    listener = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    connect(server, listener.sockets[0].getsockname()[1])
    try:
        yield relay
    finally:
        connect(server, server.port)
        listener.close()


def connect(server: LoopbackSSHD, port: int) -> None:
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = json.dumps(
        json.loads(server.connection()) | {"port": port}
    )


async def a_look(server: LoopbackSSHD, start: Start, directory: Path) -> tuple[float, float]:
    """Return bytes and round trips for each five seconds of following a job that talks."""
    trigger = await start(directory, "for n in $(seq 40); do echo line $n; sleep 1; done")
    async with relayed(server) as relay:
        following = asyncio.create_task(event_of(trigger))
        await asyncio.sleep(10)  # the connection is made and the pace has settled
        before = relay.bytes, relay.turns
        await asyncio.sleep(20)
        after = relay.bytes, relay.turns
        await following
    return (after[0] - before[0]) / 4, (after[1] - before[1]) / 4


async def to_the_event(start: Start, directory: Path) -> float:
    """Return the median of the seconds between a job's end and its event."""

    async def one(length: float) -> float:
        here = directory / f"{length}"
        ended = directory / f"{length}.ended"
        trigger = await start(here, f"sleep {length}; touch {shlex.quote(str(ended))}")
        await event_of(trigger)
        return time.time() - ended.stat().st_mtime

    return statistics.median(await asyncio.gather(*(one(length) for length in LENGTHS)))


async def many(start: Start, directory: Path, seconds: float) -> tuple[float, float]:
    """Follow many silent jobs; return the processor's percentage and the peak memory in MB."""
    script = f"sleep {seconds + 90}"
    triggers = [await start(directory / f"{number}", script) for number in range(JOBS)]
    following = []
    for trigger in triggers:  # a login at a time, as tasks do that start one after the other
        following.append(asyncio.create_task(event_of(trigger)))
        await asyncio.sleep(0.05)
    await asyncio.sleep(15)
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    for task in following:
        if task.done():
            raise AssertionError(f"a job is no longer followed: {task.result()}")
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return 100 * spent / seconds, after.ru_maxrss / 1000


def in_a_process(who: str, directory: Path) -> tuple[float, float]:
    """Run `many` in a process of its own, whose memory is nobody else's."""
    command = [sys.executable, __file__, "--many", who, "--directory", str(directory)]
    done = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, check=True, text=True)
    percentage, megabytes = map(float, done.stdout.split()[-2:])
    return percentage, megabytes


STARTS: dict[str, Start] = {"ours": start_ours, "theirs": start_theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--many", choices=list(STARTS))
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    if options.many:
        print(*asyncio.run(many(STARTS[options.many], options.directory, MINUTE)))
        return
    scratch = Path(tempfile.mkdtemp(prefix="overbrainer-bench-"))
    try:
        limits = {"MaxStartups": "1000:100:1000", "LogLevel": "ERROR"}
        with loopback_sshd(scratch / "sshd", limits) as server:
            connect(server, server.port)
            report(server, scratch)
    finally:
        subprocess.run(["pkill", "-KILL", "-f", f"{scratch}"], check=False)
        shutil.rmtree(scratch, ignore_errors=True)


def report(server: LoopbackSSHD, scratch: Path) -> None:
    looks = {
        who: asyncio.run(a_look(server, STARTS[who], scratch / f"{who}-look")) for who in STARTS
    }
    for who, (size, turns) in looks.items():
        print(f"{who}: {size:.0f} bytes and {turns:.1f} round trips each 5 s of a talking job")
    ends = {who: asyncio.run(to_the_event(STARTS[who], scratch / f"{who}-end")) for who in STARTS}
    for who, seconds in ends.items():
        print(f"{who}: {seconds:.2f} s from a job's end to the event, median of {len(LENGTHS)}")
    loads = {who: in_a_process(who, scratch / f"{who}-many") for who in STARTS}
    for who, (percentage, megabytes) in loads.items():
        print(f"{who}: {percentage:.1f} % of a core, {megabytes:.0f} MB for {JOBS} jobs")
    print(
        f"poll bytes {looks['ours'][0] / looks['theirs'][0]:.2f} x, "
        f"round trips {looks['ours'][1] / looks['theirs'][1]:.2f} x, "
        f"cpu {loads['ours'][0] / loads['theirs'][0]:.2f} x, "
        f"end to end {ends['ours'] / ends['theirs']:.2f} x of the provider's; "
        f"{JOBS} jobs: cpu {loads['ours'][0]:.1f} %, rss {loads['ours'][1]:.0f} MB"
    )


if __name__ == "__main__":
    main()
