"""Two workers that talk out of step with all others: short words that are listened for, and parcels."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store, Work  # type: ignore[attr-defined]

from .parcel import Parcel

_WORDS, _PARCELS = 0, 1
"""Tags: words do not wait behind parcels."""
_FOREVER = timedelta(days=365)
"""A word may be long in coming: gloo would close the connection after a timeout."""
_LEAVE = -1.0
"""The last word."""

_FAREWELL_S = 10.0

Word = list[float]


class LinkBroken(ConnectionError):
    """The other has died, hangs, or its host cannot be reached."""


class Link:
    """A process group of two, and a thread that listens for words of the other.

    Each pair has connections of its own, so whatever happens to one (a worker dies, a wait times out) leaves the others
    alone. Nobody polls: the listener sleeps in gloo until a word comes or the connection breaks. A word wakes it, it
    calls `on_word`, and listens again when that returns; parcels are exchanged there or in any other thread.
    """

    def __init__(
        self, store: Store, *, rank: int, other: int, num_numbers: int, timeout_s: Callable[[], float]
    ) -> None:
        """Wait for the other to do the same. A word has `num_numbers` numbers."""
        self.other = other
        self._timeout_s = timeout_s
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # not in the stubs, like send and recv
        options._timeout = timedelta(seconds=timeout_s())
        options._threads = 1  # they are for collectives, of which there are none
        options._devices = [ProcessGroupGloo.create_default_device()]
        self._here, self._there = int(rank > other), int(rank < other)
        self._group: Any = ProcessGroupGloo(store, self._here, 2, options)
        self._num_numbers = num_numbers
        self._telling = threading.Lock()
        """After the last word there must be no other: the other would not listen to it any more."""
        self._has_left = False
        self._listener: threading.Thread | None = None

    def listen(
        self, on_word: Callable[["Link", Word], Any], on_end: Callable[["Link", BaseException | None], Any]
    ) -> None:
        """Until the other leaves (`on_end` with None) or is lost (with `LinkBroken`), or `on_word` fails."""
        self._listener = threading.Thread(
            target=self._listen, args=(on_word, on_end), name=f"gossamer-link-{self.other}", daemon=True
        )
        self._listener.start()

    def tell(self, *word: float) -> None:
        numbers = torch.zeros(self._num_numbers, dtype=torch.float64)
        numbers[: len(word)] = torch.tensor(word, dtype=torch.float64)
        with _or_broken():
            with self._telling:
                if self._has_left:
                    raise LinkBroken(f"rank {self.other} has left")
                self._has_left = word[0] == _LEAVE
                sending = self._open.send([numbers], self._there, _WORDS)
            sending.wait(self._timeout)

    def swap(self, incoming: Parcel, outgoing: Parcel) -> None:
        """Exchange parcels; the other does the same."""
        with _or_broken():
            self._wait(self._receive(incoming.tensors) + self._send(outgoing.tensors))

    def send(self, parcel: Parcel) -> None:
        with _or_broken():
            self._wait(self._send(parcel.tensors))

    def receive(self, parcel: Parcel) -> None:
        with _or_broken():
            self._wait(self._receive(parcel.tensors))

    def leave(self) -> None:
        """Say the last word, once; the other then says its own."""
        with suppress(LinkBroken):  # this was said before, or the other has gone without a word
            self.tell(_LEAVE)

    def join(self) -> None:
        """Wait until the other has left too, or a while: a thread that ends with its process ends in gloo's code."""
        if self._listener is not None and self._listener is not threading.current_thread():
            self._listener.join(_FAREWELL_S)

    def _listen(
        self, on_word: Callable[["Link", Word], Any], on_end: Callable[["Link", BaseException | None], Any]
    ) -> None:
        numbers = torch.zeros(self._num_numbers, dtype=torch.float64)
        try:
            while True:
                with _or_broken():
                    self._open.recv([numbers], self._there, _WORDS).wait(_FOREVER)
                word = numbers.tolist()
                if word[0] == _LEAVE:
                    self.leave()
                    break
                on_word(self, word)
        except BaseException as error:
            on_end(self, error)
            self._group = None  # breaks the connection: the other may be waiting, in the middle of something
        else:
            on_end(self, None)

    @property
    def _open(self) -> Any:
        if self._group is None:
            raise LinkBroken(f"the link with rank {self.other} is broken")
        return self._group

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s())

    def _send(self, tensors: Sequence[Tensor]) -> list[Work]:
        return [self._open.send([tensor], self._there, _PARCELS + i) for i, tensor in enumerate(tensors)]

    def _receive(self, tensors: Sequence[Tensor]) -> list[Work]:
        return [self._open.recv([tensor], self._there, _PARCELS + i) for i, tensor in enumerate(tensors)]

    def _wait(self, works: list[Work]) -> None:
        for work in works:
            work.wait(self._timeout)


def farewell(links: Iterable[Link]) -> None:
    """Leave all, then wait for their last words."""
    for link in links:
        link.leave()
    for link in links:
        link.join()


@contextmanager
def _or_broken() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LinkBroken(str(error)) from error
