import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pytest

from overbrainer_airflow.errors import InvalidInputError
from overbrainer_airflow.export.llama_cpp import LlamaCppRelease
from overbrainer_airflow.export.script import TRAMPOLINE, export_script, write_script
from tests.support.fake_llama_cpp import ASSETS, TAG, make_mirror
from tests.support.runs import write_files

PYTHON_DIR = str(Path(sys.executable).parent)
SHELLS = ["dash", "busybox sh"]
HELPERS = (files("overbrainer_airflow.export") / "scripts" / "llama_cpp.sh").read_text("utf-8")
SHOW = 'echo "$llama_cpp_source"; echo "$llama_cpp_bin"; echo "$LD_LIBRARY_PATH"'
FETCH_SOURCE = (
    'llama_cpp_fetch "$OVERBRAINER_LLAMA_CPP_URL/archive/refs/tags/b1.tar.gz" '
    '"$OVERBRAINER_LLAMA_CPP_SOURCE_SHA256" llama.cpp-b1 "$OVERBRAINER_CACHE/llama.cpp/b1/source"'
)

every_shell = pytest.mark.parametrize("shell", SHELLS)


@pytest.fixture
def release(tmp_path: Path) -> LlamaCppRelease:
    """Return a release whose mirror is a directory."""
    return make_mirror(tmp_path / "the mirror")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return the cache of a machine, which is not made yet, of an awkward name."""
    return tmp_path / 'it\'s a "cache" of $HOME'


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """Return a directory that is first on the PATH of the helpers."""
    path = tmp_path / "bin"
    path.mkdir()
    return path


def add_program(bin_dir: Path, name: str, script: str) -> None:
    path = bin_dir / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def start(
    shell: str, call: str, bin_dir: Path, cache: Path, env: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start ``call`` in ``shell``, after the helpers."""
    script = bin_dir.parent / "helpers.sh"
    script.write_text(f"{HELPERS}\nset -u\n{call}\n")
    search = os.pathsep.join([str(bin_dir), PYTHON_DIR, os.environ["PATH"]])
    return subprocess.Popen(
        [*shell.split(), str(script)],
        env={"PATH": search, "OVERBRAINER_CACHE": str(cache), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_script_passes_shellcheck(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    found = subprocess.run(
        ["shellcheck", "-s", "sh", str(write_script(tmp_path))],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stdout) == (0, "")


@every_shell
def test_the_script_parses(shell: str, tmp_path: Path) -> None:
    subprocess.run([*shell.split(), "-n", str(write_script(tmp_path))], check=True)


def test_the_script_is_the_llama_cpp_helpers_and_then_the_export() -> None:
    scripts = files("overbrainer_airflow.export") / "scripts"
    assert export_script().startswith(HELPERS)
    assert export_script().endswith((scripts / "export.sh").read_text("utf-8"))


def test_writing_the_script_makes_the_job_directory_and_replaces_an_older_script(
    tmp_path: Path,
) -> None:
    job_dir = tmp_path / "exports" / "job"
    write_files(job_dir, {"export.sh": "old"})
    assert write_script(job_dir) == job_dir / "export.sh"
    assert (job_dir / "export.sh").read_text("utf-8") == export_script()
    assert names(job_dir) == ["export.sh"]


@pytest.mark.parametrize("path", [{"PATH": "/usr/bin:/bin"}, {}], ids=["path", "no-path"])
def test_the_trampoline_puts_the_directory_of_its_python_first_on_the_path(
    path: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "a script.sh"
    script.write_text('printf "%s\\n" "$PATH" "$#"\n')
    done = subprocess.run(
        [sys.executable, "-c", TRAMPOLINE, str(script)],
        check=True,
        capture_output=True,
        text=True,
        env=path,
    )
    search, arguments = done.stdout.splitlines()
    assert search == f"{PYTHON_DIR}:{path.get('PATH', os.defpath)}"
    assert arguments == "0"


@every_shell
def test_the_source_and_the_programs_are_unpacked_into_the_cache(
    shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    job = start(shell, f"llama_cpp_ready; {SHOW}", bin_dir, cache, release.env())
    out, err = job.communicate()
    source, programs, libraries = out.splitlines()[-3:]
    assert (job.returncode, err) == (0, "")
    assert (Path(source) / "convert_hf_to_gguf.py").is_file()
    assert os.access(Path(programs) / "llama-quantize", os.X_OK)
    assert libraries == programs
    assert names(cache / "llama.cpp" / TAG) == sorted(["source", Path(programs).name])


def test_a_cache_that_has_the_release_is_used_without_the_mirror(
    release: LlamaCppRelease, bin_dir: Path, cache: Path, tmp_path: Path
) -> None:
    start("dash", "llama_cpp_ready", bin_dir, cache, release.env()).communicate()
    shutil.rmtree(tmp_path / "the mirror")
    job = start("dash", f"llama_cpp_ready; {SHOW}", bin_dir, cache, release.env())
    out, err = job.communicate()
    assert (job.returncode, err) == (0, "")
    assert len(out.splitlines()) == 3


@every_shell
def test_an_archive_of_another_digest_is_refused_and_nothing_of_it_is_unpacked(
    shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    wrong = release.env() | {"OVERBRAINER_LLAMA_CPP_SOURCE_SHA256": "0" * 64}
    job = start(shell, "llama_cpp_ready; echo went on", bin_dir, cache, wrong)
    out, err = job.communicate()
    assert job.returncode == 1
    assert f"its SHA-256 is {release.source_sha256}, expected {'0' * 64}" in err
    assert err.startswith(f"export: {release.url}/archive/refs/tags/b1.tar.gz is not the pinned")
    assert "went on" not in out
    assert names(cache / "llama.cpp" / TAG) == []


def test_a_mirror_that_lacks_the_release_is_told_by_its_url(
    release: LlamaCppRelease, bin_dir: Path, cache: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "the mirror" / "archive")
    job = start("dash", "llama_cpp_ready", bin_dir, cache, release.env())
    _, err = job.communicate()
    assert job.returncode == 1
    assert f"export: cannot fetch {release.url}/archive/refs/tags/b1.tar.gz: " in err
    assert "[overbrainer] llama_cpp_release" in err
    assert names(cache / "llama.cpp" / TAG) == []


@every_shell
@pytest.mark.parametrize("url", ["https://mirror.invalid/\u00e9", "https://[mirror/llama.cpp"])
def test_a_mirror_whose_url_cannot_be_asked_is_told_in_one_line(
    url: str, shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    env = release.env() | {"OVERBRAINER_LLAMA_CPP_URL": url}
    env["PYTHONIOENCODING"] = "ascii:backslashreplace"
    job = start(shell, "llama_cpp_ready", bin_dir, cache, env)
    _, err = job.communicate()
    assert job.returncode == 1
    assert err.startswith("export: cannot fetch https://")
    assert len(err.splitlines()) == 1
    assert names(cache / "llama.cpp" / TAG) == []


def test_a_pinned_file_that_is_no_archive_is_told_as_such(
    release: LlamaCppRelease, bin_dir: Path, cache: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "the mirror" / "archive" / "refs" / "tags" / "b1.tar.gz"
    archive.write_text("<html>")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    env = release.env() | {"OVERBRAINER_LLAMA_CPP_SOURCE_SHA256": digest}
    job = start("dash", "llama_cpp_ready", bin_dir, cache, env)
    _, err = job.communicate()
    assert job.returncode == 1
    assert err.startswith(f"export: cannot unpack {release.url}/archive/refs/tags/b1.tar.gz: ")
    assert names(cache / "llama.cpp" / TAG) == []


@every_shell
def test_libraries_that_the_machine_already_looks_for_are_found_after_those_of_the_release(
    shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    env = release.env() | {"LD_LIBRARY_PATH": "/opt/cuda/lib"}
    job = start(shell, f"llama_cpp_ready; {SHOW}", bin_dir, cache, env)
    out, _ = job.communicate()
    _, programs, libraries = out.splitlines()[-3:]
    assert libraries == f"{programs}:/opt/cuda/lib"


def test_an_archive_of_another_release_is_refused(
    release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    call = FETCH_SOURCE.replace("llama.cpp-b1 ", "llama.cpp-b2 ")
    job = start("dash", call, bin_dir, cache, release.env())
    _, err = job.communicate()
    assert job.returncode == 1
    assert "does not hold the directory llama.cpp-b2" in err
    assert names(cache / "llama.cpp" / TAG) == []


@every_shell
def test_two_jobs_that_fetch_at_once_leave_one_complete_directory(
    shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path, tmp_path: Path
) -> None:
    meeting = shlex.quote(str(tmp_path / "meeting"))
    mktemp = f"""
mkdir -p {meeting} && : >{meeting}/$$
for _ in $(seq 200); do
    [ "$(ls {meeting} | wc -l)" -ge 2 ] && break
    sleep 0.05
done
exec {shutil.which("mktemp")} "$@" """
    add_program(bin_dir, "mktemp", mktemp)
    jobs = [start(shell, FETCH_SOURCE, bin_dir, cache, release.env()) for _ in range(2)]
    outputs = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert [(out.startswith("export: fetches "), err) for out, err in outputs] == [(True, "")] * 2
    assert names(cache / "llama.cpp" / TAG) == ["source"]
    assert names(cache / "llama.cpp" / TAG / "source") == ["convert_hf_to_gguf.py", "gguf-py"]


def test_two_jobs_that_export_at_once_share_one_cache(
    release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    call = f"llama_cpp_ready; {SHOW}"
    jobs = [start("dash", call, bin_dir, cache, release.env()) for _ in range(2)]
    outputs = [job.communicate()[0].splitlines()[-3:] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    assert outputs[0] == outputs[1]
    assert names(cache / "llama.cpp" / TAG) == sorted(["source", Path(outputs[0][1]).name])


@every_shell
def test_what_a_killed_job_left_days_ago_is_removed_and_a_living_fetch_is_not(
    shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    living, left = (cache / "llama.cpp" / TAG / name for name in (".fetch.living", ".fetch.left"))
    write_files(living, {"archive.tar.gz": "half"})
    write_files(left, {"archive.tar.gz": "half"})
    three_days_ago = time.time() - 3 * 86400
    os.utime(left, (three_days_ago, three_days_ago))
    start(shell, "llama_cpp_ready", bin_dir, cache, release.env()).communicate()
    assert living.is_dir()
    assert not left.exists()


@every_shell
@pytest.mark.parametrize(("uname", "asset"), ASSETS.items())
def test_each_platform_that_a_release_offers_gets_its_own_programs(
    uname: str, asset: str, shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    add_program(bin_dir, "uname", f"echo '{uname}'")
    job = start(shell, 'llama_cpp_ready; cat "$llama_cpp_bin/asset"', bin_dir, cache, release.env())
    out, _ = job.communicate()
    assert out.endswith(asset)
    release.check_platform(uname)


@every_shell
@pytest.mark.parametrize("uname", ["Linux riscv64", "Darwin x86_64"])
def test_a_platform_that_no_release_offers_is_told_where_to_export(
    uname: str, shell: str, release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    add_program(bin_dir, "uname", f"echo '{uname}'")
    job = start(shell, "llama_cpp_ready", bin_dir, cache, release.env())
    _, err = job.communicate()
    assert job.returncode == 1
    assert err.startswith(f"export: llama.cpp has no programs for {uname}: export on Linux")
    assert not cache.exists()
    with pytest.raises(InvalidInputError):
        release.check_platform(uname)


def test_a_platform_that_the_release_does_not_pin_is_told_before_anything_is_fetched(
    release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    add_program(bin_dir, "uname", "echo Linux aarch64")
    unpinned = release.model_copy(update={"ubuntu_arm64_sha256": None})
    job = start("dash", "llama_cpp_ready", bin_dir, cache, unpinned.env())
    _, err = job.communicate()
    assert job.returncode == 1
    assert "export: llama.cpp b1 is not pinned for ubuntu-arm64: add its SHA-256" in err
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_named(
    release: LlamaCppRelease, bin_dir: Path, cache: Path
) -> None:
    cache.write_text("a file")
    job = start("dash", "llama_cpp_ready", bin_dir, cache, release.env())
    _, err = job.communicate()
    assert job.returncode == 1
    assert f"export: cannot write the cache {cache}/llama.cpp/b1: check its owner" in err
