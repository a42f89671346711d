"""A job's log, as it arrives in pieces, as lines of text."""

import codecs
import re
from collections import deque

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST = 64 * 1024


class LogLines:
    """Turns bytes into lines, whatever place they were cut at, and remembers the last ones.

    A carriage return ends a line as a newline does: it is how progress bars are drawn.
    """

    def __init__(self, remember: int = 40) -> None:
        """Remember the last ``remember`` lines."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self.last: deque[str] = deque(maxlen=remember)

    def feed(self, log: bytes) -> list[str]:
        """Return the lines that ``log`` completes; empty ones say nothing and are left out."""
        *whole, self._rest = re.split(r"[\r\n]", self._rest + self._decoder.decode(log))
        if len(self._rest) > _LONGEST:
            whole, self._rest = [*whole, self._rest], ""
        return self._kept(whole)

    def end(self) -> list[str]:
        """Return what came after the last newline."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return self._kept([rest])

    def _kept(self, lines: list[str]) -> list[str]:
        kept = [line for line in (_CONTROL.sub("", raw).rstrip() for raw in lines) if line]
        self.last.extend(kept)
        return kept
