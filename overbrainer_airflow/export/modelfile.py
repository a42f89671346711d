"""The Ollama Modelfile beside a GGUF."""

from pathlib import Path

import yaml

MODELFILE = "Modelfile"


def sequence_len(config: Path) -> int | None:
    """Return the top-level ``sequence_len`` (tokens) of an Axolotl config, or None.

    A config that is missing or no YAML has none: the GGUF is served all the same.
    """
    try:
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
    # ValueError: no UTF-8, or a date such as 2026-13-45.
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    value = content.get("sequence_len") if isinstance(content, dict) else None
    # bool is an int to Python; overbrainer reads an unsigned number of 32 bits and nothing else.
    return value if type(value) is int and 0 < value < 1 << 32 else None


def modelfile_text(file_name: str, num_ctx: int | None) -> str:
    """Return a Modelfile for the GGUF ``file_name`` beside it.

    The chat template comes from the GGUF; ``num_ctx`` (tokens) from the training, when known,
    because Ollama would otherwise choose a context by the memory it finds.
    """
    text = f"FROM ./{file_name}\n"
    if num_ctx is not None:
        text += f"PARAMETER num_ctx {num_ctx}\n"
    return text
