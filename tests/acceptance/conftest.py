"""A real fine-tuning, and the four things that a training can leave."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import toolchain
from demo.run import train
from demo.sshd import LoopbackSSHD, loopback_sshd

MERGE = """
import sys
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
base, adapter, target = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(base, dtype="bfloat16")
PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(target)
AutoTokenizer.from_pretrained(adapter).save_pretrained(target)
"""


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return runs that were really trained: adapter, merged, full and stopped."""
    runs = tmp_path_factory.mktemp("my runs $HOME")
    adapter = runs / "adapter"
    train(adapter)
    merged = runs / "merged" / "output" / "merged"
    shutil.copytree(adapter, runs / "merged")
    subprocess.run(
        [
            toolchain.machine_python(),
            "-c",
            MERGE,
            toolchain.base_model(),
            adapter / "output",
            merged,
        ],
        env=toolchain.offline(),
        check=True,
        capture_output=True,
    )
    (runs / "full").mkdir()
    shutil.copytree(merged, runs / "full" / "output")
    shutil.copy(adapter / "axolotl.yaml", runs / "full")
    stopped = runs / "stopped"
    (stopped / "output").mkdir(parents=True)
    shutil.copytree(adapter / "output", stopped / "output" / "checkpoint-30")
    shutil.copy(adapter / "axolotl.yaml", stopped)
    record = json.loads((adapter / "run.json").read_text()) | {
        "id": "stopped",
        "state": "stopped",
        "snapshot": {"checkpoint": "checkpoint-30", "step": 30, "reason": "stopped by hand"},
    }
    (stopped / "run.json").write_text(json.dumps(record))
    return runs


@pytest.fixture(scope="session")
def gpu_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSSHD]:
    """Set up Airflow for a machine with torch, axolotl and a llama.cpp mirror, over sshd."""
    settings = {
        "workdir": str(tmp_path_factory.mktemp("work dir")),
        "venv": str(toolchain.machine_python().parent.parent),
    }
    offline = {name: value for name, value in toolchain.offline().items() if name.startswith("HF_")}
    changed = {
        "AIRFLOW__OVERBRAINER__LLAMA_CPP_RELEASE": str(
            toolchain.llama_cpp_mirror() / "release.json"
        ),
    }
    with loopback_sshd(tmp_path_factory.mktemp("gpu"), env=offline) as server:
        changed["AIRFLOW_CONN_GPU"] = server.connection(settings)
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        yield server
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
