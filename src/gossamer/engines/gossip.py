"""The mixing thread of AD-PSGD: swaps with one partner after the other, beside a worker that computes."""

import random
import threading
from collections.abc import Callable, Mapping

from .link import Link, LinkBroken, Word, farewell
from .live import LiveReplica
from .parcel import Parcel
from .wire import Wire

_SWAP, _INVITE = 1.0, 2.0

OnLost = Callable[[int, str | None], None]
"""Called with a partner that is gone, and why; None where it has said a last word."""


class Gossip:
    """Averages a replica with those of its partners, two at a time; one swap follows each gradient.

    The graph is bipartite. After a step an active worker's mixing thread picks a passive partner at random and swaps
    with it; that of a passive one picks an active partner and invites it, which then does the same. So there are as
    many swaps as gradients, wherever these are made: a slow worker is swapped with as often as a fast one, although it
    makes few gradients itself. Where swaps take longer than gradients, several that are due become one.

    In a swap both send what they have and move by half of the difference (`LiveReplica.mix`). A worker takes part in
    one swap at a time: a passive one that several have chosen serves them one after the other. Whoever waits is an
    active worker, and it waits for a passive one that waits for nobody but the active one it is serving; so all of them
    go on. A partner that dies is dropped, with the swap that was under way.
    """

    def __init__(
        self,
        live: LiveReplica,
        links: Mapping[int, Link],
        *,
        is_active: bool,
        wire: Wire,
        seed: str,
        on_sent: Callable[[int], None],
        on_lost: OnLost,
    ) -> None:
        self.live = live
        self._all_links = tuple(links.values())
        self.links = dict(links)
        self.failure: BaseException | None = None
        """What has ended a thread here other than the loss of a partner."""
        self._is_active = is_active
        self._on_sent, self._on_lost = on_sent, on_lost
        self._random = random.Random(seed)
        self._sent, self._received = Parcel(live.values, wire), Parcel(live.values, wire)
        self._swapping = threading.Lock()
        """Held for a whole swap, by the one thread of a worker that swaps."""
        self._changed = threading.Condition()
        """Of what follows."""
        self._due: dict[int | None, None] = {}
        """Swaps, in the order in which they fell due: with one who has invited this worker, or (None) with anybody."""
        self._is_paused = False
        self._is_busy = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="gossamer-mixing", daemon=True)
        for link in self._all_links:
            link.listen(self._on_word, self._on_end)
        self._thread.start()

    # ---- called by the worker ---------------------------------------------------------------------------

    def stepped(self) -> None:
        """A gradient has been taken in: a swap is due."""
        with self._changed:
            self._due[None] = None
            self._changed.notify_all()

    def pause(self) -> None:
        """Begin no swap, and wait for the one that was begun here; partners may still begin some."""
        with self._changed:
            self._is_paused = True
            self._changed.wait_for(lambda: not self._is_busy)

    def wait_for_partners(self) -> None:
        """When all have paused: wait for the last swap that a partner has begun."""
        with self._swapping:
            pass

    def resume(self) -> None:
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Leave all partners; a swap that is under way comes to its end first."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        farewell(self._all_links)

    # ---- the mixing thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (link := self._next()) is not None:
                try:
                    if self._is_active:
                        self._swap(link, is_mine=True)
                    else:
                        link.tell(_INVITE)
                except LinkBroken as error:
                    self._on_end(link, error)
        except BaseException as error:
            self.failure = error
        finally:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()

    def _next(self) -> Link | None:
        """Whom to swap with, or to invite, as soon as that is due; None at the end."""
        with self._changed:
            while True:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_closed or (self._due and not self._is_paused))
                if self._is_closed:
                    return None
                self._is_busy = True
                other = next(iter(self._due))
                del self._due[other]
                if other is None and self.links:
                    other = self._random.choice(sorted(self.links))
                if other in self.links:
                    return self.links[other]

    def _swap(self, link: Link, *, is_mine: bool) -> None:
        with self._swapping:
            if is_mine:
                link.tell(_SWAP)
            self.live.copy_to(self._sent)
            link.swap(self._received, self._sent)
            self.live.mix(self._sent, self._received)
            self._on_sent(self._sent.nbytes)

    # ---- the listening threads --------------------------------------------------------------------------

    def _on_word(self, link: Link, word: Word) -> None:
        if word[0] == _SWAP:
            self._swap(link, is_mine=False)
        else:
            with self._changed:
                self._due[link.other] = None
                self._changed.notify_all()

    def _on_end(self, link: Link, error: BaseException | None) -> None:
        with self._changed:
            known = self.links.pop(link.other, None)
        if error is not None and not isinstance(error, LinkBroken):
            self.failure = error
        elif known is not None and not self._is_closed:
            self._on_lost(link.other, None if error is None else str(error))
