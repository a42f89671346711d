"""What an Ollama server says, as values; what its errors mean (Ollama's ``server/routes.go``)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LAYER = re.compile(r"^FROM .*[/\\]sha256-([0-9a-f]{64})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A model, as the server shows it.

    Attributes:
        layer: SHA-256 of its weights on the server, in hex; empty when it does not say.
        parameters: lines by name, each as text.
        architecture: of its GGUF.
        parameter_count: of its GGUF; None when the server does not say.
        system: its system message.
        template: its template, the GGUF's own when it has no other.
    """

    layer: str
    parameters: Mapping[str, list[str]]
    architecture: str
    parameter_count: int | None
    system: str
    template: str


@dataclass(frozen=True)
class Listed:
    """A model in the server's list.

    Attributes:
        name: with its tag.
        digest: SHA-256 of its manifest, in hex.
        size: of all its layers, in bytes.
    """

    name: str
    digest: str
    size: int


def shown(answer: Mapping[str, Any]) -> Shown:
    """Return what ``/api/show`` answered."""
    info = answer.get("model_info") or {}
    count = info.get("general.parameter_count")
    layer = _LAYER.search(str(answer.get("modelfile", "")))
    return Shown(
        layer=layer.group(1) if layer else "",
        parameters=_parameters(str(answer.get("parameters") or "")),
        architecture=str(info.get("general.architecture", "")),
        parameter_count=int(count) if isinstance(count, int | float) else None,
        system=str(answer.get("system") or ""),
        template=str(answer.get("template") or ""),
    )


def _parameters(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            found.setdefault(name, []).append(value.strip().strip('"'))
    return found


HTTP_REASONS = {
    401: "it wants another login: check the connection's password (sent as a bearer token)",
    403: (
        "it refuses this Host: an Ollama bound to loopback answers only to local names, set "
        "OLLAMA_HOST of the server or the Host header of the proxy in front of it"
    ),
    404: "that address has no Ollama API: check the connection's path, or the proxy in front",
    413: "a proxy in front limits the size of uploads: raise it (nginx: client_max_body_size 0)",
    502: "a proxy in front does not reach Ollama",
    504: "a proxy in front waited too little: raise its time limit (nginx: proxy_read_timeout)",
}


def explained(error: str) -> str:
    """Return what Ollama says, with the next step where it does not say one."""
    for pattern, hint in _HINTS.items():
        if pattern in error:
            return f"{error}: {hint}"
    return error


_HINTS = {
    "llama-quantize binary not found": "the server's installation is not complete",
    "llama-quantize failed": (
        "it cannot load the model, most often an architecture that this version does not know: "
        "update Ollama; the reason is in the server's log"
    ),
    "no space left": (
        "the server needs three times the model's size while it creates it; what a failed try "
        "left is removed when the server is restarted an hour later"
    ),
    "neither 'from' or 'files'": "the server is older than 0.5.5: update it",
    "digest mismatch": "the file changed on its way or meanwhile: try again",
}
