"""Who is at fault when an exchange fails: ranks leave notes for each other, in the store of their group."""

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn, TypeVar

from torch.distributed import Store  # type: ignore[attr-defined]

from .patience import Patience

T = TypeVar("T")

_LOST = re.compile("timed out|timeout|connection|closed|peer|broken pipe|reset", re.IGNORECASE)
"""What is said when somebody cannot be reached."""
_GRACE_S = 2.0
"""How long a failing rank listens for word from the others before it blames one of them."""


class NeighborLost(RuntimeError):
    """A worker died or fell silent; `rank` is the one to look at."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class _Note(NamedTuple):
    """What a rank that has given up leaves for those who wait for it."""

    culprit: int | None
    """None: it looks for the one at fault."""
    why: str
    """Of the culprit itself: what it has ended with."""


class Blame:
    """Finds the one at fault.

    A rank that gives up closes its connections, which its neighbours then see break. They must not blame it: so whoever
    fails leaves a note that names the culprit, and looks for notes of its peers first.
    """

    def __init__(self, store: Store, rank: int, patience: Patience) -> None:
        self._store = store
        self._rank = rank
        self._patience = patience

    def attempt(self, operation: Callable[[], T], peers: tuple[int, ...], what: Callable[[], str]) -> T:
        """The result of an operation with peers; where they cannot be reached, NeighborLost, which names `what`."""
        started = time.monotonic()
        try:
            return operation()
        except (RuntimeError, OSError) as error:
            if isinstance(error, NeighborLost) or not _LOST.search(str(error)):
                raise  # of the latter: a mistake of ours (a dtype, a device), nobody is lost
            self._give_up(peers, time.monotonic() - started, what(), error)

    def put_on(self, culprit: int, why: str) -> None:
        """This rank has ended because of `culprit`: leave word of it for those who wait for this one."""
        if self._read_note(self._rank) is None:
            self._leave_note(culprit, why)

    def _give_up(self, peers: tuple[int, ...], waited_s: float, what: str, error: Exception) -> NoReturn:
        self._leave_note(None)
        culprit, told_by = self._find_culprit([peer for peer in peers if peer != self._rank])
        if culprit == self._rank:
            self._leave_note(culprit, f"NeighborLost: rank {told_by} gave it up")
            raise NeighborLost(
                told_by, f"rank {told_by} gave this rank, {self._rank}, up: it had not heard from it in time"
            ) from error
        self._leave_note(culprit)
        how, remedy = self._how(culprit, told_by, waited_s)
        raise NeighborLost(culprit, f"{how}: {what} of rank {self._rank} cannot complete; {remedy}") from error

    def _how(self, culprit: int, told_by: int, waited_s: float) -> tuple[str, str]:
        """How the culprit was lost, in its own words if it has left any, and what to do."""
        its_own, timeout_s, look = (
            self._read_note(culprit),
            self._patience.seconds,
            f"look at the log of rank {culprit}",
        )
        if its_own is not None and its_own.culprit == culprit:
            return f"rank {culprit} has ended with {its_own.why}", look
        if told_by != self._rank:
            return f"rank {told_by} reports that rank {culprit} is lost", look
        if waited_s >= 0.9 * timeout_s:
            more = f"{look}, or give a longer timeout_s if it is only slow"
            return f"rank {culprit} has been silent for the timeout of {timeout_s:g} s", more
        return f"rank {culprit} closed its connection {waited_s:.1f} s into the wait (timeout {timeout_s:g} s)", look

    def _find_culprit(self, others: list[int]) -> tuple[int, int]:
        """(the rank at fault, who says so).

        Whoever has given up too leaves a note, so the one at fault is among those that leave none. A single one
        of them is named after the grace time; as long as there are several, some may only be late to the exchange and
        will yet fail and leave their note. Those who left a note are asked whom they blame.
        """
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            notes = {peer: self._read_note(peer) for peer in others}
            for peer, note in notes.items():
                if note is not None and note.culprit is not None:
                    return note.culprit, peer
            silent = [peer for peer, note in notes.items() if note is None]
            if len(silent) == 1 and waited_s > _GRACE_S:
                return silent[0], self._rank
            if waited_s > max(self._patience.seconds, 2 * _GRACE_S):
                return (silent or others)[0], self._rank
            time.sleep(0.02)

    def _leave_note(self, culprit: int | None, why: str = "") -> None:
        with suppress(RuntimeError):  # the store went down with the rank that hosts it: nobody can read the note
            self._store.set(f"note/{self._rank}", json.dumps([culprit, why]))

    def _read_note(self, rank: int) -> _Note | None:
        key = f"note/{rank}"
        try:
            return _Note(*json.loads(self._store.get(key))) if self._store.check([key]) else None
        except RuntimeError:
            return None
