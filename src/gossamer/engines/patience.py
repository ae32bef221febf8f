"""How long to wait for a neighbour before it counts as lost."""

import time

_LEAST_S = 300.0
"""Nobody is given up sooner: a neighbour may load data, compile, or evaluate while the others wait. A process that has
died is noticed at once, when its connection breaks; only one that hangs is waited for."""
_TIMES = 20


class Patience:
    """The seconds that were given, or else many times the longest that anything has taken here so far: a step, from one
    exchange to the next, or a wait, in which the bytes, the bandwidth and the slowest neighbour show.

    >>> Patience(5.0).seconds, Patience().seconds
    (5.0, 300.0)
    """

    def __init__(self, given_s: float | None = None) -> None:
        if given_s is not None and not given_s > 0:
            raise ValueError(f"timeout_s={given_s}: give the seconds to wait for a neighbour, more than 0")
        self._given_s = given_s
        self._longest_s = 0.0
        self._last: float | None = None

    @property
    def seconds(self) -> float:
        return max(_LEAST_S, _TIMES * self._longest_s) if self._given_s is None else self._given_s

    def waited(self, seconds: float) -> None:
        """A wait that came to its end has taken so long."""
        self._longest_s = max(self._longest_s, seconds)

    def stepped(self) -> None:
        """An exchange begins: what has passed since the last one is a step."""
        now = time.monotonic()
        self.waited(now - (now if self._last is None else self._last))
        self._last = now
