"""The quantize types an export can make, and the GGUF file names that carry them."""

import difflib
from pathlib import Path

from overbrainer_airflow.errors import InvalidInputError

QUANTIZE_TYPES = (
    "Q4_K_M",
    "Q4_K_S",
    "Q5_K_M",
    "Q5_K_S",
    "Q6_K",
    "Q8_0",
    "Q3_K_M",
    "Q2_K",
    "F16",
    "BF16",
)
SIXTEEN_BIT = ("F16", "BF16")
"""Types that the conversion writes itself."""

# Of whole files, tables and scales included; small models with a large vocabulary take more.
_BITS = {
    "Q2_K": 3.4,
    "Q3_K_M": 4.0,
    "Q4_K_S": 4.7,
    "Q4_K_M": 4.9,
    "Q5_K_S": 5.6,
    "Q5_K_M": 5.8,
    "Q6_K": 6.6,
    "Q8_0": 8.6,
}

DEFAULT_QUANTIZE = "Q4_K_M"

#: Directory of a run that holds its delivered GGUF files, and of a job that holds its own.
GGUF_DIR = "output/gguf"


def check_quantize(name: object) -> str:
    """Return the quantize type that ``name`` means, in llama.cpp's spelling.

    Raises:
        InvalidInputError: no such type; the message lists them and the closest one.
    """
    spelled = str(name).strip().upper().replace("-", "_")
    if spelled in QUANTIZE_TYPES:
        return spelled
    near = difflib.get_close_matches(spelled, QUANTIZE_TYPES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidInputError(
        f"quantize type {name!r} is unknown: use one of {', '.join(QUANTIZE_TYPES)}{hint}"
    )


def bits_per_weight(quantize: str) -> float:
    """Return about how many bits a GGUF of a type takes for each weight of the model."""
    return _BITS.get(quantize, 16.0)


def gguf_name(name: str, quantize: str) -> str:
    """Return the file name of the export ``name`` in type ``quantize``."""
    return f"{name}-{quantize}.gguf"


def quantize_of(file_name: str) -> str | None:
    """Return the type in a ``<name>-<TYPE>.gguf`` file name, or None when it has none."""
    stem, dot, suffix = file_name.rpartition(".")
    if not dot or suffix != "gguf":
        return None
    return next((kind for kind in QUANTIZE_TYPES if stem.endswith(f"-{kind}")), None)


def latest_gguf(run_dir: Path, name: str) -> str | None:
    """Return the newest delivered ``<name>-<TYPE>.gguf`` of a run, by modification time."""
    found = [
        (path.stat().st_mtime_ns, path.name)
        for path in (run_dir / GGUF_DIR).glob("*.gguf")
        if path.is_file() and any(path.name == gguf_name(name, kind) for kind in QUANTIZE_TYPES)
    ]
    return max(found)[1] if found else None
