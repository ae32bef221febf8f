"""Who is still there: workers that are out of step come together, and do not wait for those who are gone."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from torch.distributed import DistError, PrefixStore, Store  # type: ignore[attr-defined]

from .blame import NeighborLost

_LOOK_EVERY_S = 0.01
_BEATS = 30
"""Signs of life in the time after which one who gives none counts as silent."""
_LEAVE_WITHIN_S = 30.0
"""The rank that may host the store goes last, but does not wait for somebody who dies right then."""


class Roll:
    """Where every worker is and who is gone, in a store that all of them reach.

    Nobody is given up for being slow. A worker is gone when it has said so, or when a partner has lost it. When a whole
    host dies, some of its workers may have no partner that is left to notice. So each gives signs of life,
    and one that gives none for `silent_s` while others wait for it, and has a partner that is gone, is gone too.
    """

    def __init__(
        self, store: Store, rank: int, size: int, partners: Sequence[Sequence[int]], *, silent_s: float = 30.0
    ) -> None:
        self.rank, self.size = rank, size
        self._partners = partners
        self._silent_s = silent_s
        self._beat_every_s = silent_s / _BEATS
        self._beats: dict[int, tuple[int, float]] = {}
        """The last sign of life of each, and when it was new."""
        self.members = tuple(range(size))
        """Who was at the last meeting."""
        self._store = PrefixStore("roll", store.clone())  # type: ignore[attr-defined] # of its own: a store answers one caller at a time
        self.meeting = 0
        """The number of meetings so far."""
        self._store.set(f"at/{rank}", json.dumps([0, "", True]))
        self._store.add(f"is-gone/{rank}", 0)
        self._store.add(f"beat/{rank}", 1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(store.clone(),), name="gossamer-roll", daemon=True)  # type: ignore[attr-defined]
        if size > 1:
            self._thread.start()

    def reach(self, step: int) -> None:
        """Steps do not matter here: everybody makes as many as it can."""

    def meet(self, at: str, answer: Callable[[], None] | None = None, timeout_s: float | None = None) -> None:
        """Wait for all who are not gone, however long that takes. All find the same `members` then."""
        self.agree(at, True)

    def agree(self, at: str, has_worked: bool) -> bool:
        """The same, and whether something has worked for all who are there."""
        if self.size == 1:
            return has_worked
        try:
            self.members, all_have_worked = self._meet(at, has_worked)
        except DistError as error:
            raise store_is_gone() from error
        if self.rank not in self.members:
            why = self.why_gone(self.rank)
            raise NeighborLost(self.rank, f"the others go on without this rank, {self.rank}: {why}")
        return all_have_worked

    def _meet(self, at: str, has_worked: bool) -> tuple[tuple[int, ...], bool]:
        self.meeting += 1
        self._store.set(f"at/{self.rank}", json.dumps([self.meeting, at, has_worked]))
        looked = time.monotonic()
        while True:
            here = self._here(at)
            if here is not None:
                break
            time.sleep(_LOOK_EVERY_S)
            if time.monotonic() - looked > self._beat_every_s:
                self._lose_silent()
                looked = time.monotonic()
        # Somebody may be lost just now, and only some have seen it: the first to get here says who takes part.
        decided = self._store.compare_set(f"members/{self.meeting}", "", json.dumps(here))
        members, all_have_worked = json.loads(decided)
        self._store.add(f"seen/{self.meeting}", 1)
        since = time.monotonic()
        while self.rank == 0 and self._store.add(f"seen/{self.meeting}", 0) < len(members):
            if time.monotonic() - since > _LEAVE_WITHIN_S or set(self.gone()) & set(members):
                break
            time.sleep(_LOOK_EVERY_S)
        return tuple(members), all_have_worked

    def _here(self, at: str) -> tuple[list[int], bool] | None:
        """Who is at this meeting, and whether it has worked for all; None while one who is not gone has yet to come."""
        gone = self.gone()
        places = [json.loads(place) for place in self._store.multi_get([f"at/{rank}" for rank in range(self.size)])]
        for rank, (meeting, its_at, _) in enumerate(places):
            if meeting == self.meeting and its_at != at:
                raise ValueError(
                    f"rank {self.rank} is at {at} and rank {rank} at {its_at}: call what needs all ranks on all of "
                    "them, in the same order"
                )
        here = [rank for rank, (meeting, *_) in enumerate(places) if meeting >= self.meeting and rank not in gone]
        return (here, all(places[rank][2] for rank in here)) if len(here) + len(gone) == self.size else None

    def _lose_silent(self) -> None:
        gone = set(self.gone())
        beats = self._store.multi_get([f"beat/{rank}" for rank in range(self.size)])
        now = time.monotonic()
        for rank, beat in enumerate(map(int, beats)):
            last, since = self._beats.get(rank, (0, now))
            if beat != last:
                self._beats[rank] = beat, now
            elif now - since > self._silent_s and rank not in gone and gone & set(self._partners[rank]):
                self.lose(rank, f"it has given no sign of life for {self._silent_s:g} s, like a partner of it before")

    def _beat(self, store: Store) -> None:
        own = PrefixStore("roll", store)
        with suppress(DistError):  # the store went down with the rank that hosts it: the next meeting will say so
            while not self._closed.wait(self._beat_every_s):
                own.add(f"beat/{self.rank}", 1)

    def gone(self) -> list[int]:
        marks = self._store.multi_get([f"is-gone/{rank}" for rank in range(self.size)])
        return [rank for rank, mark in enumerate(marks) if int(mark)]

    def lose(self, rank: int, why: str) -> None:
        """A partner is gone; unless it is the partners who have given up this worker."""
        with suppress(DistError):  # the store went down with the rank that hosts it: nobody can read it
            if not self._store.add(f"is-gone/{self.rank}", 0) and not self._store.add(f"is-gone/{rank}", 0):
                self._store.set(f"why/{rank}", f"rank {self.rank} has lost it: {why}")
                self._store.add(f"is-gone/{rank}", 1)

    def why_gone(self, rank: int) -> str | None:
        """None of one who is still there, or came to its end like everybody."""
        try:
            return self._store.get(f"why/{rank}").decode() if self._store.add(f"is-gone/{rank}", 0) else None
        except DistError:  # nobody can tell
            return None

    def fail(self, culprit: int, why: str) -> None:
        """This worker ends: nobody need wait for it."""
        self.close()
        with suppress(DistError):
            self._store.set(f"why/{self.rank}", why)
            self._store.add(f"is-gone/{self.rank}", 1)

    def claim(self, what: str) -> int:
        """Numbers from 0 on, each to one worker only."""
        try:
            return self._store.add(f"claimed/{what}", 1) - 1
        except DistError as error:
            raise store_is_gone() from error

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()


def store_is_gone() -> NeighborLost:
    return NeighborLost(0, "the store of the process group is gone, most likely with rank 0")
