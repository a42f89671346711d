"""What a GGUF says of itself, and whether all of it is there.

The layout is the one of the GGUF specification in ggml's ``docs/gguf.md``, versions 2 and 3. Only
the header is read: no tensor data and no numpy, so a file of 140 GB takes no longer than its
vocabulary.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from overbrainer_airflow.errors import GGUFError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_LONGEST_STRING = 64 << 20
_MOST_ENTRIES = 1 << 24
_MOST_DIMENSIONS = 4

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9

# ggml's tensor types: weights in a block, and the bytes that it takes.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


@dataclass(frozen=True)
class GGUFHeader:
    """A GGUF's metadata and the sum of its tensors.

    Attributes:
        metadata: values by key; an array is a tuple.
        parameters: the number of weights in all tensors.
        tensors: the number of tensors.
    """

    metadata: Mapping[str, Any]
    parameters: int
    tensors: int

    @property
    def architecture(self) -> str:
        """The model's architecture, such as ``llama``."""
        return str(self.metadata["general.architecture"])

    @property
    def context_length(self) -> int | None:
        """The longest context that the model was made for, in tokens."""
        value = self.metadata.get(f"{self.architecture}.context_length")
        return value if isinstance(value, int) else None

    @property
    def chat_template(self) -> str | None:
        """The chat template, in Jinja."""
        value = self.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    @property
    def end_tokens(self) -> tuple[str, ...]:
        """The text of the tokens that end what the model says."""
        tokens = self.metadata.get("tokenizer.ggml.tokens", ())
        numbers = [self.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
        found = [tokens[n] for n in numbers if isinstance(n, int) and 0 <= n < len(tokens)]
        return tuple(dict.fromkeys(found))


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read a GGUF's header and make sure that every tensor is inside the file.

    Raises:
        GGUFError: it is empty, not a GGUF, cut off, or of an unknown version.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size == 0:
        raise GGUFError(f"{path} is empty: deliver it again")
    with path.open("rb", buffering=1 << 20) as file:
        if file.read(4) != _MAGIC:
            raise GGUFError(f"{path} is not a GGUF: deliver it again")
        try:
            return _Reader(file, size).header()
        except (EOFError, struct.error, OverflowError, MemoryError):
            raise GGUFError(
                f"{path} is cut off amid its header, it has {size} bytes: deliver it again"
            ) from None
        except GGUFError as error:
            raise GGUFError(f"{path}: {error}: deliver it again") from None


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def header(self) -> GGUFHeader:
        version = self._one("I")
        if version not in _VERSIONS:
            raise GGUFError(f"GGUF version {version} is not known")
        tensors, entries = self._count(), self._count()
        metadata = {self._string(): self._value(self._one("I")) for _ in range(entries)}
        if not isinstance(metadata.get("general.architecture"), str):
            raise GGUFError("it does not name its architecture")
        parameters, end = 0, 0
        for _ in range(tensors):
            weights, last = self._tensor()
            parameters += weights
            end = max(end, last)
        alignment = metadata.get("general.alignment") or _ALIGNMENT
        start = math.ceil(self._file.tell() / alignment) * alignment
        if tensors and start + end > self._size:
            raise GGUFError(f"its tensors end at byte {start + end}, it has {self._size}")
        return GGUFHeader(metadata, parameters, tensors)

    def _tensor(self) -> tuple[int, int]:
        """Return a tensor's number of weights and where it ends, in bytes from the data's start."""
        name = self._string()
        dimensions = self._one("I")
        if dimensions > _MOST_DIMENSIONS:
            raise GGUFError(f"tensor {name[:100]} has {dimensions} dimensions")
        weights = math.prod(self._one("Q") for _ in range(dimensions))
        kind, offset = self._one("I"), self._one("Q")
        if kind not in _BLOCKS:
            raise GGUFError(f"tensor {name[:100]} has the unknown type {kind}")
        block, size = _BLOCKS[kind]
        return weights, offset + math.ceil(weights / block) * size

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._one(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise GGUFError(f"its metadata has the unknown type {kind}")
        inner, count = self._one("I"), self._count()
        if inner in _SCALARS:
            form = f"<{count}{_SCALARS[inner]}"
            return struct.unpack(form, self._bytes(struct.calcsize(form)))
        return tuple(self._value(inner) for _ in range(count))

    def _one(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))[0]

    def _count(self) -> int:
        count: int = self._one("Q")
        if count > _MOST_ENTRIES:
            raise GGUFError(f"its header counts {count} entries")
        return count

    def _string(self) -> str:
        length = self._one("Q")
        if length > _LONGEST_STRING:
            raise GGUFError(f"its header has a text of {length} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data
