"""An Ollama server behind its HTTP API (Ollama's ``docs/api.md`` and ``server/routes.go``).

A client of our own on httpx: the one that Ollama publishes for Python uploads without asking
whether the server has the file, tells no progress, and sends ``OLLAMA_API_KEY`` of the environment
to whatever host it talks to.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from overbrainer_airflow.errors import OllamaError
from overbrainer_airflow.machines.protocol import Progress
from overbrainer_airflow.ollama.answers import HTTP_REASONS, Listed, Shown, explained, shown

_CONNECT_TIMEOUT = 30.0
_TRIES = 4
_WAIT = 0.5
_BLOCK = 1 << 20

# Below, `create` knows no `files`: it wants a Modelfile in a form that is gone since.
OLDEST = (0, 5, 5)


@dataclass
class OllamaServer:
    """A server; use it as an asynchronous context.

    Attributes:
        name: what messages call it, such as the connection's id and host.
        url: where it is, with the path in front of ``/api`` if there is one.
        headers: sent with each request.
        verify: whether the certificate is checked, or a file with the authorities to trust.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    _client: httpx.AsyncClient = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._client = httpx.AsyncClient(
            base_url=self.url.rstrip("/") + "/",
            headers=dict(self.headers),
            verify=_trust(self.verify),
            # A server that rewrites a large model says nothing for minutes.
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT),
            follow_redirects=False,
        )

    async def __aenter__(self) -> "OllamaServer":
        """Return the server."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def version(self) -> str:
        """Return the server's version.

        Raises:
            OllamaError: it cannot be reached, is no Ollama, or refuses.
        """
        found = await self._json("GET", "api/version")
        version = found.get("version")
        if not isinstance(version, str):
            raise OllamaError(f"{self._who}: what answers there is no Ollama: check host and port")
        return version

    async def listed(self) -> list[Listed]:
        """Return every model.

        Raises:
            OllamaError: see `version`.
        """
        found = await self._json("GET", "api/tags")
        return [
            Listed(str(model["name"]), str(model["digest"]), int(model["size"]))
            for model in found.get("models") or []
        ]

    async def show(self, model: str) -> Shown | None:
        """Return a model, or None when there is none of that name.

        Raises:
            OllamaError: see `version`.
        """
        answer = await self._request("POST", "api/show", json={"model": model}, missing=True)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return shown(self._object(answer))

    async def has(self, sha256: str) -> bool:
        """Tell whether the server has a file of this digest.

        Raises:
            OllamaError: see `version`.
        """
        answer = await self._request("HEAD", f"api/blobs/sha256:{sha256}", missing=True)
        return answer.status_code == httpx.codes.OK

    async def upload(self, path: Path, sha256: str, progress: Progress) -> None:
        """Send a file; an interrupted one starts over, Ollama has no way to go on.

        Raises:
            OllamaError: the server refuses it, or got other content.
            OSError: the file cannot be read.
        """
        size = path.stat().st_size

        async def blocks() -> AsyncIterator[bytes]:
            sent = 0
            with path.open("rb") as file:
                while block := await asyncio.to_thread(file.read, _BLOCK):
                    yield block
                    sent += len(block)
                    progress(sent, size)

        await self._request(
            "POST",
            f"api/blobs/sha256:{sha256}",
            content=blocks,
            headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
        )

    async def create(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield what the server says while it creates a model; the last thing is its success.

        Raises:
            OllamaError: it fails, or the stream ends before it says ``success``.
        """
        status = ""
        try:
            async with self._client.stream("POST", "api/create", json=dict(request)) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    self._check(answer)
                async for line in answer.aiter_lines():
                    if not line.strip():
                        continue
                    found = self._parsed(line)
                    if "error" in found:
                        raise OllamaError(f"{self._who}: {explained(str(found['error']))}")
                    status = str(found.get("status", ""))
                    yield found
        except httpx.HTTPError as error:
            raise OllamaError(
                f"{self._who}: the connection broke while the model was being created "
                f"({_reason(error)}): try again, the file need not be sent again"
            ) from error
        if status != "success":
            raise OllamaError(
                f"{self._who}: the answer ended after {status or 'nothing'!r} and before success: "
                "a proxy may have cut it, or the server was restarted: try again"
            )

    async def delete(self, model: str) -> None:
        """Remove a model; none of that name is no error.

        Raises:
            OllamaError: see `version`.
        """
        await self._request("DELETE", "api/delete", json={"model": model}, missing=True)

    @property
    def _who(self) -> str:
        return f"Ollama at {self.name}"

    async def _json(self, method: str, path: str) -> dict[str, Any]:
        return self._object(await self._request(method, path))

    def _object(self, answer: httpx.Response) -> dict[str, Any]:
        return self._parsed(answer.text)

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OllamaError(
                f"{self._who}: what answers there is no Ollama ({text.strip()[:80]!r}): check "
                "host, port and path"
            )
        return found

    async def _request(
        self, method: str, path: str, *, missing: bool = False, content: Any = None, **more: Any
    ) -> httpx.Response:
        """Send a request that may be repeated, again after a broken connection.

        ``missing``: whether 404 is an answer.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                body = content() if content is not None else None
                answer = await self._client.request(method, path, content=body, **more)
            except httpx.HTTPError as error:
                if attempt == _TRIES or not isinstance(error, httpx.TransportError):
                    raise OllamaError(
                        f"{self._who}: it cannot be reached at {self.url} ({_reason(error)}): "
                        "check that it runs, the connection's host and port, and what is between"
                    ) from error
                await asyncio.sleep(_WAIT * 2**attempt)
                continue
            if not (missing and self._is_missing(answer)):
                self._check(answer)
            return answer
        raise AssertionError("the last try returns or raises")

    @staticmethod
    def _is_missing(answer: httpx.Response) -> bool:
        """Tell Ollama's own 404 from one of a proxy or of another program."""
        if answer.status_code != httpx.codes.NOT_FOUND:
            return False
        return answer.request.method == "HEAD" or answer.text.lstrip().startswith("{")

    def _check(self, answer: httpx.Response) -> None:
        code = answer.status_code
        if code < httpx.codes.MULTIPLE_CHOICES:
            return
        why = HTTP_REASONS.get(code, "")
        if code < httpx.codes.BAD_REQUEST:
            why = f"it redirects to {answer.headers.get('location', '?')}: use that address"
        try:
            said = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            said = answer.text.strip()[:200]
        text = "; ".join(filter(None, [explained(said) if said else "", why]))
        raise OllamaError(f"{self._who}: {answer.request.url.path} answers {code}: {text}")


def _trust(verify: bool | str) -> Any:  # noqa: FBT001 - as httpx has it
    if isinstance(verify, bool):
        return verify
    return httpx.create_ssl_context(verify=verify)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
