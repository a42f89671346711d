"""Jobs in containers of a real engine, on an image made on the spot."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo import toolchain
from demo.sshd import LoopbackSSHD, loopback_sshd
from overbrainer_airflow.errors import JobError, MachineError
from overbrainer_airflow.machines.preflight import check_tools
from overbrainer_airflow.machines.runtime import MachineSettings
from overbrainer_airflow.operators.handover import StagedExport
from overbrainer_airflow.operators.run_export import RunExportOperator
from tests.support.exports import MAKE_GGUF, staged_job, task_context, worker_following
from tests.support.machines import over_ssh, use
from tests.support.stack import until

IMAGE = "local/debian:test"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an engine of its own needs root")


@dataclass(frozen=True)
class Engine:
    """A container engine that the tests made, and a machine that uses it."""

    name: str
    server: LoopbackSSHD

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.name, *arguments],
            env=os.environ | self.server.env,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    @property
    def settings(self) -> dict[str, str]:
        return {"runtime": "container", "engine": self.name, "image": IMAGE, "gpus": "none"}


@contextlib.contextmanager
def dockerd(folder: Path) -> Iterator[dict[str, str]]:
    """Run a Docker engine with a socket and data of its own; yield what its clients need."""
    toolchain.need_programs("dockerd")
    socket = f"unix://{folder}/docker.sock"
    command = [
        "dockerd",
        f"--host={socket}",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/docker.pid",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
    ]
    env = {"DOCKER_HOST": socket}
    with (folder / "dockerd.log").open("wb") as log:
        engine = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        version = ["docker", "version"]
        until(
            lambda: (
                not subprocess.run(
                    version, env=os.environ | env, check=False, capture_output=True
                ).returncode
            ),
            "the Docker engine answers",
        )
        yield env
    finally:
        engine.terminate()
        engine.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def podman(folder: Path) -> Iterator[dict[str, str]]:
    """Set podman up with storage of its own; yield what its clients need."""
    toolchain.need_programs("podman")
    (folder / "containers.conf").write_text(
        '[containers]\nnetns = "host"\n'
        'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'  # what a guest may set
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    yield {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    start = {"docker": dockerd, "podman": podman}[request.param]
    image = toolchain.debian_image()
    with (
        start(tmp_path_factory.mktemp(request.param)) as env,
        loopback_sshd(tmp_path_factory.mktemp("sshd"), env=env) as server,
    ):
        made = Engine(request.param, server)
        made.run("import", str(image), IMAGE)
        yield made


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return tmp_path / "my runs $HOME 'q'"


@pytest.fixture
def stage(engine: Engine, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Stage"]:
    monkeypatch.setenv("AIRFLOW_CONN_GPU", engine.server.connection(engine.settings))
    yield Stage(workdir)
    assert engine.run("ps", "--all", "--quiet") == ""


@dataclass(frozen=True)
class Stage:
    """Stages a script as a job in a container."""

    workdir: Path

    def __call__(self, script: str) -> StagedExport:
        return staged_job(self.workdir, script, "gpu")


def run(staged: StagedExport, **secrets: str) -> dict[str, object]:
    task = RunExportOperator(task_id="run_export", staged=staged.plain(), secrets=secrets)
    return task.execute(task_context())


def job_file(staged: StagedExport, name: str) -> Path:
    return Path(staged.job_dir) / name


def wait_for(path: Path) -> None:
    until(path.exists, f"{path.name} appears")


def test_a_job_sees_its_run_and_the_caches_and_leaves_files_of_the_ssh_user(
    stage: Stage, workdir: Path
) -> None:
    script = (
        "pwd >seen; cat ../../axolotl.yaml >>seen; "
        'echo "$OVERBRAINER_CACHE $HF_HOME $OVERBRAINER_METRICS" >>seen; '
        f'echo x >"$OVERBRAINER_CACHE/tool"; echo x >"$HF_HOME/model"; {MAKE_GGUF}'
    )
    staged = stage(script)
    (workdir / "my-run" / "axolotl.yaml").write_text("base_model: x\n")
    run(staged)
    root = f"/workspace/run/exports/{staged.export_id}"
    assert job_file(staged, "seen").read_text().splitlines() == [
        root,
        "base_model: x",
        f"/workspace/cache /workspace/hf-cache {root}/metrics.jsonl",
    ]
    assert (workdir / ".cache" / "tool").exists()
    assert (workdir / ".hf-cache" / "model").exists()
    assert job_file(staged, "seen").stat().st_uid == os.getuid()


def test_the_exit_code_and_the_log_are_the_jobs(stage: Stage) -> None:
    with pytest.raises(JobError, match=r"exit code 3: export: cannot"):
        run(stage("echo 'export: cannot' >&2; exit 3"))


def test_a_secret_is_in_the_job_and_not_in_what_the_engine_knows(
    stage: Stage, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "s3cret 'x' $y")
    staged = stage(f'echo "$HF_TOKEN" >seen; until [ -e go ]; do sleep 0.1; done; {MAKE_GGUF}')
    with worker_following(staged, {"HF_TOKEN": "variable:token"}):
        wait_for(job_file(staged, "seen"))
        assert "s3cret" not in engine.run("inspect", f"overbrainer-{staged.export_id}")
    assert job_file(staged, "seen").read_text() == "s3cret 'x' $y\n"
    job_file(staged, "go").touch()
    run(staged, HF_TOKEN="variable:token")


def test_cancelling_stops_the_container(stage: Stage, engine: Engine) -> None:
    staged = stage("trap '' TERM; touch begun; sleep 60 & wait; sleep 60")
    with worker_following(staged):
        wait_for(job_file(staged, "begun"))
    began = time.monotonic()
    RunExportOperator(task_id="run_export", staged=staged.plain()).on_kill()
    assert engine.run("ps", "--all", "--quiet") == ""
    assert job_file(staged, "cancelled").exists()
    assert time.monotonic() - began < 30


def test_a_container_that_outlives_its_job_is_stopped_and_the_job_lost(
    stage: Stage, engine: Engine
) -> None:
    staged = stage("touch begun; sleep 60")
    with worker_following(staged):
        wait_for(job_file(staged, "begun"))
    os.killpg(int(job_file(staged, "job.pid").read_text()), signal.SIGKILL)
    job_file(staged, "job.inputs").write_text("x\n")
    job_file(staged, "export.sh").write_text(MAKE_GGUF)
    run(staged)
    assert engine.run("ps", "--all", "--quiet") == ""


def test_an_engine_that_is_not_there_is_named(engine: Engine, tmp_path: Path) -> None:
    for name in ("sh", "id", "tail"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    settings = MachineSettings.model_validate(engine.settings)
    with (
        loopback_sshd(tmp_path / "sshd", env={"PATH": str(tmp_path)}) as server,
        pytest.raises(MachineError, match=f"there is no {engine.name}"),
    ):
        use(over_ssh(server, settings), lambda machine: check_tools(machine, [], []))


def test_an_engine_that_the_account_cannot_use_is_named(engine: Engine) -> None:
    if engine.name != "docker":
        pytest.skip("podman has no daemon to be refused by")
    env = {"DOCKER_HOST": "unix:///nonexistent.sock"}
    settings = MachineSettings.model_validate(engine.settings)
    with (
        loopback_sshd(engine.server.folder / "refused", env=env) as server,
        pytest.raises(MachineError, match="docker cannot be used by"),
    ):
        use(over_ssh(server, settings), lambda machine: check_tools(machine, [], []))
