"""The worker's link to the agent on a machine: requests out, answers back, several on the way."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from overbrainer_airflow.errors import MachineError, TransferError
from overbrainer_airflow.machines.pipes import ProgramGoneError
from overbrainer_airflow.machines.protocol import COMMAND_TIMEOUT, Machine, Pipe, Sink
from overbrainer_airflow.machines.runtime import python_word
from overbrainer_airflow.machines.shell import quote

_AGENT = "overbrainer_airflow.machines.agent"
_MODULES = ("digests", "parts", "locks", "serve")

# Makes modules of the sources that it is given, in their order, and runs the last one.
_BOOTSTRAP = """
import sys, types
for name, source in SOURCES:
    sys.modules[name] = module = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""


# Several times within what `agent.serve` takes for a worker that is gone.
_ASKS_EVERY = 60.0


class NoAgentError(MachineError):
    """The machine has no Python that the agent runs on."""


@dataclass
class Link:
    """A running agent.

    Attributes:
        machine: what messages call its machine.
        pipe: the way to it.
    """

    machine: str
    pipe: Pipe
    _waiting: deque[tuple["asyncio.Future[dict[str, Any]]", Sink | None]] = field(
        default_factory=deque
    )
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: Exception | None = None

    async def ask(
        self,
        do: str,
        *,
        data: AsyncIterable[bytes] | None = None,
        sink: Sink | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Have the agent do something and return its answer.

        Args:
            do: the request's name.
            data: bytes that go with the request.
            sink: takes the bytes that come with the answer.
            fields: what the request says.

        Raises:
            TransferError: the agent cannot do it; the message says why.
            MachineError: the machine cannot be reached any more.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            async with self._sending:
                if self._lost is not None:
                    raise self._lost
                self._waiting.append((answer, sink))
                self._asked.set()
                await self._send(json.dumps({"do": do, **fields}).encode() + b"\n")
                if data is not None:
                    await self._send_all(data)
            found = await answer
        finally:
            answer.cancel()
        if "error" in found:
            raise TransferError(f"machine {self.machine}: {found['error']}")
        return found

    async def _send_all(self, data: AsyncIterable[bytes]) -> None:
        try:
            async for block in data:
                await self._send(block)
        except BaseException as error:
            # The rest of what was announced must never be read as a request.
            broken = MachineError(f"machine {self.machine}: the transfer was broken off")
            self._lost = self._lost or (error if isinstance(error, MachineError) else broken)
            raise

    async def _send(self, data: bytes) -> None:
        try:
            await self.pipe.send(data)
        except MachineError as error:
            raise MachineError(f"machine {self.machine}: {error}") from error

    async def listen(self) -> None:
        """Hand out answers in the order of their requests, for as long as the link is used."""
        while True:
            self._asked.clear()
            while self._waiting:
                answer, sink = self._waiting[0]
                try:
                    found = await self._answer(sink)
                except Exception as error:
                    self._fail(error)
                    return
                self._waiting.popleft()
                if not answer.done():
                    answer.set_result(found)
            await self._asked.wait()

    async def ask_now_and_then(self) -> None:
        """Show the agent that its worker is there, however long this hashes or waits."""
        while self._lost is None:
            await asyncio.sleep(_ASKS_EVERY)
            with contextlib.suppress(MachineError):
                await self.ask("ping")

    async def _answer(self, sink: Sink | None) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(await self.pipe.line())
            if sink is not None and "bytes" in found:
                await self.pipe.receive(found["bytes"], sink)
                found = json.loads(await self.pipe.line())
        except MachineError as error:
            raise MachineError(f"machine {self.machine}: {error}") from error
        except ValueError as error:
            raise MachineError(f"machine {self.machine}: unexpected output: {error}") from error
        return found

    def _fail(self, error: Exception) -> None:
        self._lost = error
        while self._waiting:
            answer, _ = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)


@asynccontextmanager
async def linked(machine: Machine, *, apart: bool = False) -> AsyncIterator[Link]:
    """Yield a link to an agent on the machine, which ends with the link.

    Args:
        machine: where the agent runs.
        apart: whether it gets a connection of its own.

    Raises:
        NoAgentError: the machine has no Python for it.
        MachineError: the machine cannot be reached.
    """
    python = python_word(machine.settings)
    script = (
        f"command -v {python} >/dev/null 2>&1 || {{ echo 'no Python'; exit; }}\n"
        f"exec {python} -I -S -X utf8 -u -c {quote(agent_source())}"
    )
    async with machine.pipe(script, apart=apart) as pipe:
        try:
            hello = await asyncio.wait_for(pipe.line(), COMMAND_TIMEOUT)
            json.loads(hello)["python"]
        except (ProgramGoneError, ValueError) as error:
            raise NoAgentError(
                f"machine {machine.name}: its Python does not run the transfer agent: {error}"
            ) from error
        except (MachineError, asyncio.TimeoutError) as error:
            raise MachineError(f"machine {machine.name}: no transfer begins: {error}") from error
        link = Link(machine.name, pipe)
        tasks = [asyncio.create_task(link.listen()), asyncio.create_task(link.ask_now_and_then())]
        try:
            yield link
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def agent_source() -> str:
    """Return a program that is the agent."""
    folder = resources.files(_AGENT)
    sources = [
        (f"{_AGENT}.{name}", (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES
    ]
    return f"SOURCES = {sources!r}\n{_BOOTSTRAP}"
