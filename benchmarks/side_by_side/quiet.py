"""Whether others use the cores: what of them was busy, less what the workers have used themselves."""

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM, _STOLEN = 0, 1, 2, 7
_LOOK_S = 1.0


def busy_s() -> float:
    """Seconds for which the cores of this machine were in use so far, by whomever; interrupts do not count."""
    ticks = _STAT.read_text().split("\n", 1)[0].split()[1:]
    return _TICK_S * sum(int(ticks[kind]) for kind in (_USER, _NICE, _SYSTEM, _STOLEN))


def share_of_others(busy: float, own: float, wall: float) -> float:
    """Of all cores, where they were busy and the workers on them for so many seconds.

    >>> share_of_others(busy=6.0, own=5.0, wall=10.0) == 0.1 / (os.cpu_count() or 1)
    True
    """
    return max(busy - own, 0.0) / (wall * (os.cpu_count() or 1))


def wait_for_quiet(most: float, within_s: float) -> None:
    """Sleep until the cores are used by no more than this share, but no longer than so many seconds."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        before, begun = busy_s(), time.monotonic()
        time.sleep(_LOOK_S)
        if share_of_others(busy_s() - before, 0.0, time.monotonic() - begun) <= most:
            return
