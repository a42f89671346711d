"""Sizes and progress as a person reads them."""

import logging
import time
from collections.abc import Callable

from overbrainer_airflow.machines.protocol import Progress

log = logging.getLogger(__name__)

_INTERVAL = 10.0


def human_size(size: float) -> str:
    """Return a number of bytes with a decimal unit: ``271 MB``, ``14.5 GB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB" if size < 1000 else f"{size / 1000:.2f} TB"


def human_duration(seconds: float) -> str:
    """Return a duration: ``3.2 s``, ``4 min 10 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def progress_lines(what: str, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Return a callback that logs ``what`` with percentage and speed every ten seconds."""
    started = last = clock()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if now - last < _INTERVAL or not 0 < done < total:
            return
        last = now
        speed = done / (now - started)
        log.info(
            "%s: %d %% of %s, %s/s, %s left",
            what,
            100 * done // total,
            human_size(total),
            human_size(speed),
            human_duration((total - done) / speed),
        )

    return report
