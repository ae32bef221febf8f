"""How long a worker takes for a gradient in real time: what it takes, or longer on purpose."""

import time
from dataclasses import replace

from .one_run import Run


class Pace:
    """Says how long a worker has to sleep, so that its gradients take as long as the run wants.

    Where that gives a time (`--compute-s`), a gradient takes it, with the jitter of the run and times the factor of a
    slow worker: the very numbers that the clock of virtual time draws. Without, it takes what it takes, times jitter
    and factor. Nothing can be made faster than it is: what takes longer than it should is not slept upon.
    """

    def __init__(self, run: Run, worker: int) -> None:
        self._worker, self._is_given = worker, run.paced
        computation = run.cluster().computation
        if not self._is_given:
            computation = replace(computation, mean_s=1.0)
        self._times = computation.times(run.workers, run.seed)
        self.begin()

    def begin(self) -> None:
        """A gradient begins."""
        self._began = time.monotonic()

    def left_s(self) -> float:
        """The gradient has been computed: what is left of its time."""
        taken_s = time.monotonic() - self._began
        drawn = self._times.next(self._worker)
        return max((drawn if self._is_given else drawn * taken_s) - taken_s, 0.0)

    def rest(self) -> None:
        """Sleep for what is left."""
        time.sleep(self.left_s())
