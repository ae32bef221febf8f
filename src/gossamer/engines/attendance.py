"""Who is still training: workers that are done go on answering the others until all are."""

import threading
import time
from collections.abc import Callable

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 0.005
"""Once somebody has left, the others tell how far they are, so that it knows when it is needed."""


class Attendance:
    """Counts the steps of every worker, through a store that all of them reach.

    A step needs all workers of a mixing, so one with fewer batches than its neighbours must not just go. It leaves:
    from then on it answers each step that any worker still makes, until all have left. As long as nobody leaves, a look
    at one number in the store five times a second is all this costs; a thread does it.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = PrefixStore("attendance", store.clone())  # type: ignore[attr-defined] # of its own: a store answers one caller at a time
        self._reached = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="gossamer-attendance", daemon=True)
        if size > 1:
            self._thread.start()

    def reach(self, step: int) -> None:
        """This worker takes part in the exchanges of its first `step` steps."""
        self._reached = step

    def answer_until_all_left(self, answer: Callable[[], None], timeout_s: float) -> None:
        """Leave after the steps reached; call `answer` once for each step that others make beyond them.

        Raises TimeoutError with the ranks that are missing, where nothing has moved for `timeout_s`.
        """
        self.close()
        if self.size == 1:
            return
        self._store.set(f"left/{self.rank}", str(self._reached))
        self._store.add("leavers", 1)
        answered = self._reached
        seen, since = (0, 0), time.monotonic()
        while True:
            everybody_left = self._num_left() == self.size
            steps = self._steps("left") | ({} if everybody_left else self._steps("reached"))
            furthest = max(steps.values())
            if answered < furthest:
                answer()
                answered += 1
                since = time.monotonic()
                continue
            if everybody_left:
                break
            if seen != (len(steps), furthest):
                seen, since = (len(steps), furthest), time.monotonic()
            if time.monotonic() - since > timeout_s:
                missing = sorted(set(range(self.size)) - self._steps("left").keys())
                raise TimeoutError(f"ranks {missing} are still training, but have not moved for {timeout_s:g} s")
            time.sleep(_TELL_EVERY_S)
        self._store.add("finished", 1)
        while self.rank == 0 and self._store.add("finished", 0) < self.size:  # it may be the one that hosts the store
            if time.monotonic() - since > timeout_s:
                return
            time.sleep(_TELL_EVERY_S)

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _num_left(self) -> int:
        return self._store.add("leavers", 0)

    def _steps(self, kind: str) -> dict[int, int]:
        """What ranks have told, by rank."""
        keys = {rank: f"{kind}/{rank}" for rank in range(self.size)}
        return {rank: int(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}

    def _tell(self) -> None:
        told, interval = -1, _LOOK_EVERY_S
        try:
            while not self._closed.wait(interval):
                if interval == _LOOK_EVERY_S and self._num_left() == 0:
                    continue
                interval = _TELL_EVERY_S
                if self._reached != told:
                    told = self._reached
                    self._store.set(f"reached/{self.rank}", str(told))
        except RuntimeError:  # the store went down with the rank that hosts it: the next exchange will say so
            return
