"""How much room an export needs, told by the headers of the model's own files."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overbrainer_airflow.export.quantize import SIXTEEN_BIT, bits_per_weight
from overbrainer_airflow.export.runs import RunModel

_LONGEST_HEADER = 100 << 20
_SIXTEEN_BIT_BYTES = 2


@dataclass(frozen=True)
class Room:
    """Bytes that an export takes at its peak, each part estimated from the number of weights.

    Of an adapter only the layers that it adapts are known: it is a lower bound.

    Attributes:
        merged: the adapter merged into its base model, 0 for a model that is whole.
        sixteen_bit: the GGUF that the conversion writes, 0 when that is the result.
        quantized: the result.
    """

    merged: int
    sixteen_bit: int
    quantized: int

    @property
    def job(self) -> int:
        """Bytes that the job writes beside the model."""
        return self.merged + self.sixteen_bit + self.quantized


def room_for(run: RunModel, quantize: str) -> Room:
    """Estimate the room that an export of ``run`` needs.

    Raises:
        OSError: a file of the model cannot be read.
    """
    model = run.run_dir / run.model
    folder = model / "merged" if run.kind == "merged" else model
    weights = sum(_weights(path, adapter=run.kind == "adapter") for path in _files(folder))
    sixteen_bit = weights * _SIXTEEN_BIT_BYTES
    return Room(
        merged=sixteen_bit if run.kind == "adapter" else 0,
        sixteen_bit=0 if quantize in SIXTEEN_BIT else sixteen_bit,
        quantized=math.ceil(weights * bits_per_weight(quantize) / 8),
    )


def _files(folder: Path) -> list[Path]:
    safetensors = sorted(folder.glob("*.safetensors"))
    return safetensors or sorted(folder.glob("pytorch_model*.bin"))


def _weights(path: Path, *, adapter: bool) -> int:
    if path.suffix != ".safetensors":
        return path.stat().st_size // _SIXTEEN_BIT_BYTES
    shapes = _shapes(path)
    if not adapter:
        return sum(math.prod(shape) for shape in shapes.values())
    adapted = 0
    for name, shape in shapes.items():
        other = shapes.get(name.replace("lora_A", "lora_B"))
        if "lora_A" in name and other:
            adapted += shape[-1] * other[0]
    return adapted


def _shapes(path: Path) -> dict[str, list[int]]:
    """Return the tensors' shapes of a safetensors file, nothing for one that is none.

    The format: 8 bytes of the header's length, little-endian, and the header as JSON.
    """
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _LONGEST_HEADER:
            return {}
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except ValueError:
            return {}
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
