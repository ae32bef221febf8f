"""How far everybody is: where workers come together, those who are there first answer the others until all are."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol

from torch.distributed import DistError, PrefixStore, Store  # type: ignore[attr-defined]

from .blame import NeighborLost

_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 0.005
"""While somebody waits, the others tell how far they are, so that it knows when it is needed."""


class Meetings(Protocol):
    """How workers come together."""

    def reach(self, step: int) -> None:
        """This worker takes part in the exchanges of the first `step` steps from the start."""
        ...

    def meet(self, at: str, answer: Callable[[], None], timeout_s: float) -> int | None:
        """Wait for all workers; `answer` takes part in a step of the others. Who has come furthest, if anybody has."""
        ...

    def fail(self, culprit: int, why: str) -> None:
        """This worker has ended: nobody need wait for it, but look at the culprit."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Word:
    """What a worker leaves in the store."""

    step: int
    """It takes part in the exchanges of so many steps."""
    at: str = ""
    """Where it waits for the others."""
    lost: int | None = None
    """It has ended, and this is the rank to look at."""
    why: str = ""


class Attendance:
    """Knows how far every worker is, through a store that all of them reach.

    A step needs all workers of a mixing. One that makes fewer than its neighbours (it has fewer batches, or its scaler
    has skipped a step) must not leave them alone: where all come together, it answers each step that others still
    make, until all are there and have taken part in as many. As long as nobody waits, a look at one number in the
    store five times a second is all this costs; a thread does it.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = PrefixStore("attendance", store.clone())  # type: ignore[attr-defined] # of its own: a store answers one caller at a time
        self._step = 0
        self._meeting = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="gossamer-attendance", daemon=True)
        self._leave_word(f"now/{rank}", _Word(step=0))
        if size > 1:
            self._thread.start()

    def reach(self, step: int) -> None:
        """This worker takes part in the exchanges of the first `step` steps from the start."""
        self._step = step

    def meet(self, at: str, answer: Callable[[], None], timeout_s: float) -> int | None:
        """Wait for all workers; call `answer` once for each step that others make beyond those reached here.

        Returns the rank that has come furthest by itself, or None where all have come as far. Raises NeighborLost where
        somebody has ended or nothing has moved for `timeout_s`, and ValueError where others have come for something
        else than `at`.
        """
        if self.size == 1:
            return None
        try:
            return self._meet(at, answer, timeout_s)
        except DistError as error:
            raise NeighborLost(0, "the store of the process group is gone, most likely with rank 0") from error

    def _meet(self, at: str, answer: Callable[[], None], timeout_s: float) -> int | None:
        self._meeting += 1
        here = f"meeting/{self._meeting}"
        self._leave_word(f"now/{self.rank}", _Word(step=self._step))
        self._leave_word(f"{here}/{self.rank}", _Word(step=self._step, at=at))
        self._store.add(here, 1)
        seen: object = None
        since = time.monotonic()
        while True:
            words = self._words("now")
            num_here = self._store.add(here, 0)  # asked after that: until all are here, nobody is beyond this meeting
            is_complete = num_here == self.size
            if is_complete:
                words = self._words(here)
            self._check_alive(words)
            if self._step < max(word.step for word in words):
                self._step += 1
                answer()
                continue
            if is_complete:
                break
            if seen != (num_here, words):
                seen, since = (num_here, words), time.monotonic()
            if time.monotonic() - since > timeout_s:
                self._name_missing(here, words, timeout_s)
            time.sleep(_TELL_EVERY_S)
        self._check_purpose(at, words)
        since = time.monotonic()
        self._store.add(f"{here}/seen", 1)
        while self.rank == 0 and self._store.add(f"{here}/seen", 0) < self.size:  # it may host the store: it goes last
            if time.monotonic() - since > timeout_s:
                break
            time.sleep(_TELL_EVERY_S)
        steps = [word.step for word in words]
        return steps.index(max(steps)) if min(steps) < max(steps) else None

    def fail(self, culprit: int, why: str) -> None:
        """This worker has ended: nobody need wait for it, but look at the culprit."""
        self.close()
        with suppress(DistError):  # the store went down with the rank that hosts it: nobody can read the word
            self._leave_word(f"now/{self.rank}", _Word(step=self._step, lost=culprit, why=why))

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _name_missing(self, here: str, words: list[_Word], timeout_s: float) -> None:
        missing = [rank for rank in range(self.size) if not self._store.check([f"{here}/{rank}"])]
        last = min(missing, key=lambda rank: words[rank].step)  # others may only be waiting for it
        raise NeighborLost(
            last,
            f"rank {last} is still training, but has made no step for the timeout of {timeout_s:g} s: look at its log",
        )

    def _check_alive(self, words: list[_Word]) -> None:
        for rank, word in enumerate(words):
            if word.lost is not None:
                culprit = rank if word.lost == self.rank else word.lost
                raise NeighborLost(culprit, f"rank {rank} has ended with {word.why}")

    def _check_purpose(self, at: str, words: list[_Word]) -> None:
        for rank, word in enumerate(words):
            if word.at != at:
                raise ValueError(
                    f"rank {self.rank} is at {at} and rank {rank} at {word.at}: call what needs all ranks on all of "
                    "them, in the same order"
                )

    def _leave_word(self, key: str, word: _Word) -> None:
        self._store.set(key, json.dumps(asdict(word)))

    def _words(self, kind: str) -> list[_Word]:
        """What ranks have left, by rank."""
        return [_Word(**json.loads(text)) for text in self._store.multi_get([f"{kind}/{r}" for r in range(self.size)])]

    def _tell(self) -> None:
        told, interval = -1, _LOOK_EVERY_S
        try:
            while not self._closed.wait(interval):
                is_awaited = self._store.add(f"meeting/{self._meeting + 1}", 0) > 0
                interval = _TELL_EVERY_S if is_awaited else _LOOK_EVERY_S
                if is_awaited and self._step != told:
                    told = self._step
                    self._leave_word(f"now/{self.rank}", _Word(step=told))
        except DistError:  # the store went down with the rank that hosts it: the next exchange will say so
            return
