"""Room: estimated from the model's own files, and what is missing is told."""

import asyncio
import json
import os
import struct
from pathlib import Path

import pytest

from overbrainer_airflow.errors import MachineError
from overbrainer_airflow.export.runs import model_of
from overbrainer_airflow.export.space import room_for
from overbrainer_airflow.machines.local import LocalMachine
from overbrainer_airflow.machines.space import check_space, check_space_here, free_bytes
from tests.support.runs import make_run


def safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_a_full_model_needs_a_16_bit_and_a_quantized_gguf(runs_dir: Path) -> None:
    run = make_run(runs_dir, "full", files={"config.json": "{}", "model.safetensors": ""})
    safetensors(run / "output" / "model.safetensors", {"a": [1000, 1000], "b": [500]})
    room = room_for(model_of(runs_dir, "full"), "Q8_0")
    assert (room.merged, room.sixteen_bit) == (0, 2 * 1_000_500)
    assert 1_000_500 < room.quantized < 1.2 * 1_000_500
    assert room.job == room.sixteen_bit + room.quantized


def test_the_shards_of_a_model_count_together(runs_dir: Path) -> None:
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = json.dumps({"weight_map": {"a": names[0], "b": names[1]}})
    files = {"config.json": "{}", "model.safetensors.index.json": index, names[0]: "", names[1]: ""}
    run = make_run(runs_dir, "full", files=files)
    for name in names:
        safetensors(run / "output" / name, {"a": [100, 10]})
    assert room_for(model_of(runs_dir, "full"), "Q4_K_M").sixteen_bit == 4000


def test_a_16_bit_type_is_made_without_another_16_bit_gguf(runs_dir: Path) -> None:
    run = make_run(runs_dir, "full", files={"config.json": "{}", "model.safetensors": ""})
    safetensors(run / "output" / "model.safetensors", {"a": [1000]})
    room = room_for(model_of(runs_dir, "full"), "F16")
    assert (room.sixteen_bit, room.quantized) == (0, 2000)


def test_an_adapter_is_merged_into_the_layers_that_it_adapts(runs_dir: Path) -> None:
    run = make_run(runs_dir, "adapter")
    shapes = {"q.lora_A.weight": [8, 576], "q.lora_B.weight": [1536, 8]}
    safetensors(run / "output" / "adapter_model.safetensors", shapes)
    room = room_for(model_of(runs_dir, "adapter"), "Q4_K_M")
    assert room.merged == room.sixteen_bit == 2 * 576 * 1536


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100, struct.pack("<Q", 4) + b"{{{{"])
def test_a_file_that_cannot_be_read_is_left_to_the_export(runs_dir: Path, content: bytes) -> None:
    run = make_run(runs_dir, "full", files={"config.json": "{}", "model.safetensors": ""})
    (run / "output" / "model.safetensors").write_bytes(content)
    assert room_for(model_of(runs_dir, "full"), "Q4_K_M").job == 0


def test_what_is_missing_is_told_and_where(tmp_path: Path) -> None:
    free = asyncio.run(free_bytes(LocalMachine(), str(tmp_path)))
    with pytest.raises(MachineError, match=r"the export needs .* in .*, 5\d\.\d GB more than"):
        asyncio.run(check_space(LocalMachine(), str(tmp_path), free + 55 * 10**9, "the export"))
    found = os.statvfs(tmp_path)
    here = found.f_bavail * found.f_frsize
    with pytest.raises(MachineError, match=r"this worker: the GGUF needs .*, 5\d\.\d GB more"):
        check_space_here(tmp_path, here + 55 * 10**9, "the GGUF")


def test_what_is_there_already_needs_no_room(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "model").write_bytes(b"x" * (64 << 20))
    free = asyncio.run(free_bytes(LocalMachine(), str(tmp_path)))
    needed = free + (32 << 20)
    asyncio.run(
        check_space(LocalMachine(), str(tmp_path), needed, "the export", counting=str(there))
    )
