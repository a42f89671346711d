"""A job's log, as it arrives in pieces, as lines of text."""

import re
from collections import deque

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST = 64 * 1024


class LogLines:
    """Turns bytes into lines, whatever place they were cut at, and remembers the last ones.

    A progress bar redraws its line after a carriage return: of such a line its last state is
    shown. Bytes that are no UTF-8 become replacement characters.
    """

    def __init__(self, remember: int = 40) -> None:
        """Remember the last ``remember`` lines."""
        self._rest = b""
        self.last: deque[str] = deque(maxlen=remember)

    @property
    def pending(self) -> int:
        """Bytes that were fed and belong to a line that is not complete yet."""
        return len(self._rest)

    def feed(self, log: bytes) -> list[str]:
        """Return the lines that ``log`` completes; empty ones say nothing and are left out."""
        *whole, self._rest = (self._rest + log).split(b"\n")
        if len(self._rest) > _LONGEST:
            whole, self._rest = [*whole, self._rest], b""
        return self._shown(whole)

    def end(self) -> list[str]:
        """Return what came after the last newline."""
        rest, self._rest = self._rest, b""
        return self._shown([rest])

    def _shown(self, lines: list[bytes]) -> list[str]:
        shown = [text for text in map(_text, lines) if text]
        self.last.extend(shown)
        return shown


def _text(line: bytes) -> str:
    drawn = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    return _CONTROL.sub("", drawn.decode("utf-8", "replace")).rstrip()
