"""Workers of one host show each other their models in shared memory: nothing is sent, neighbours come and read."""

import fcntl
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Self
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from . import futex
from .futex import Counter

_FOLDER = Path("/dev/shm")
_ALIGNED = 64
PLACES = 1024
"""How many exchanges can be on a board at once."""
_HEADER = _ALIGNED + 2 * 8 * PLACES
_FLOCK = Struct("hh4xqqi4x")
"""How the system wants to be told of a lock."""
_LOOK_EVERY_S = 1.0
"""How often somebody who waits looks whether the other is still alive."""


def aligned(nbytes: int) -> int:
    """What so many bytes take on a board."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def host() -> str:
    """The same for two workers just if they see the same shared memory, and no network lies between them."""
    if not futex.IS_AVAILABLE or not _FOLDER.is_dir():
        return f"process {os.getpid()}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {_FOLDER.stat().st_dev} {os.stat('/proc/self/ns/net').st_ino}"


class Board:
    """What one worker shows: its values at the latest exchanges, and how many it has put up and read.

    The file is locked as long as its owner lives: whoever can take the lock knows that it is gone.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        self._file = os.open(path, os.O_RDWR)
        self.close = weakref.finalize(self, os.close, self._file)
        memory = torch.from_file(str(path), shared=True, size=_HEADER + capacity, dtype=torch.uint8)
        header = memory[:_HEADER].numpy()
        words = header[:_ALIGNED].view(np.int32)
        self.shown = Counter(words[:1])
        """The number of the latest exchange whose values are up."""
        self.read = Counter(words[1:2])
        """All values of others up to this exchange have been read by this worker."""
        self.handed_out = Counter(words[2:3])
        """What this worker has summed up for others of its node, up to this exchange, is up too."""
        self.places, self._summed = header[_ALIGNED:].view(np.int64).reshape(2, PLACES)
        """Where the values of an exchange begin, by its number modulo the length; and the number of the last exchange
        there whose owner's part has been summed up, negative while somebody is at it."""
        self.room = memory[_HEADER:]

    @classmethod
    def create(cls, path: Path, capacity: int) -> Self:
        """One's own; OSError where the shared memory has no room for it."""
        try:
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, _HEADER + capacity)  # else a full memory would kill at a write
            board = cls(path, capacity)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        fcntl.flock(board._file, fcntl.LOCK_EX)
        return board

    def values(self, exchange: int, like: Tensor, dtype: torch.dtype) -> Tensor:
        """What is shown of an exchange."""
        start = int(self.places[exchange % PLACES])
        return self.room[start : start + like.numel() * dtype.itemsize].view(dtype)

    def is_summed(self, exchange: int) -> bool:
        return bool(self._summed[exchange % PLACES] == exchange)

    def claim(self, exchange: int) -> bool:
        """Whether the part of an exchange that lies here is one's own to sum up: nobody has, and nobody is at it."""
        place = exchange % PLACES
        if not _lock(self._file, fcntl.F_WRLCK, place):
            return False
        before = self._summed[place]
        if abs(before) != exchange:
            self._summed[place] = -exchange
            return True
        _lock(self._file, fcntl.F_UNLCK, place)
        if before < 0:
            raise ConnectionError(f"whoever summed up exchange {exchange} has closed its boards before it was done")
        return False

    def summed(self, exchange: int) -> None:
        """What was claimed is done."""
        self._summed[exchange % PLACES] = exchange
        _lock(self._file, fcntl.F_UNLCK, exchange % PLACES)

    @property
    def is_left(self) -> bool:
        """Whether its owner is gone."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True


def _lock(file: int, kind: int, byte: int) -> bool:
    """Lock a byte of an open file, or let it go; False where another has it. Ends with the process that has it."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True)
class _Shown:
    exchange: int
    start: int
    stop: int
    listeners: tuple[int, ...]

    def overlaps(self, start: int, stop: int) -> bool:
        return self.start < stop and start < self.stop


class Boards:
    """The boards of the workers on this host; `mine` is written, the others are read."""

    def __init__(self, mine: int, boards: dict[int, Board]) -> None:
        self.mine = mine
        self._boards = boards
        self._own = boards[mine]
        self._up: deque[_Shown] = deque()
        self._next = 0
        self._latest = 0
        self._reading: set[int] = set()

    @classmethod
    def meet(cls, store: Store, rank: int, size: int, capacity: int) -> "Boards | None":
        """With the others on this host, of `size` workers that all call this; None where that is not to be had.

        The files lose their names as soon as all have opened them: whatever happens then, none is left behind.
        """

        def tell(kind: str, word: str, ranks: Iterable[int]) -> dict[int, str]:
            store.set(f"{kind}/{rank}", word)
            ranks = list(ranks)
            return dict(zip(ranks, map(bytes.decode, store.multi_get([f"{kind}/{r}" for r in ranks])), strict=True))

        hosts = tell("host", host(), range(size))
        here = [r for r in range(size) if hosts[r] == hosts[rank]]
        if len(here) == 1:
            return None
        own, path = None, _FOLDER / f"gossamer-{uuid4().hex}"
        with suppress(OSError):
            own = Board.create(path, capacity)
        boards: dict[int, Board] = {}
        with suppress(OSError):
            for other, name in tell("board", str(path), here).items():
                boards[other] = own if own is not None and other == rank else Board(Path(name), capacity)
        votes = tell("vote", "yes" if len(boards) == len(here) else "no", here)
        path.unlink(missing_ok=True)
        return cls(rank, boards) if set(votes.values()) == {"yes"} else None

    def has(self, ranks: Iterable[int]) -> bool:
        return self._boards.keys() >= set(ranks)

    @property
    def capacity(self) -> int:
        return self._own.capacity

    def make_room(self, nbytes: int, timeout_s: float) -> int:
        """Where so many bytes can be put up. Where no room is left, what was up longest has to be read first."""
        start = self._next if self._next + nbytes <= self.capacity else 0
        # Values lie in the order in which they were put up: if the oldest are not in the way, none are. Those that lie
        # behind where the last pass ended are older than those in front.
        while self._up and (self._up[0].overlaps(start, start + nbytes) or self._up[0].start >= self._next > start):
            oldest = self._up[0]
            for listener in oldest.listeners:
                self._await(self._boards[listener].read, oldest.exchange, listener, timeout_s)
            self._up.popleft()
        return start

    def show(self, exchange: int, values: Tensor, dtype: torch.dtype, start: int, listeners: tuple[int, ...]) -> None:
        """Put values up, where room was made."""
        self._next = start + aligned(values.numel() * dtype.itemsize)
        self._up.append(_Shown(exchange, start, self._next, listeners))
        self._own.places[exchange % PLACES] = start
        self._own.values(exchange, values, dtype).copy_(values.view(-1))
        self._reading.add(exchange)
        self._latest = exchange
        self._own.shown.advance(exchange)

    def look(self, exchange: int, rank: int, like: Tensor, dtype: torch.dtype, timeout_s: float) -> Tensor:
        """The values that another has put up, or will; valid until `done`."""
        board = self._boards[rank]
        self._await(board.shown, exchange, rank, timeout_s)
        return board.values(exchange, like, dtype)

    def hand_out(self, exchange: int) -> None:
        """One's own part of the values that are up is now a sum, for all to read."""
        self._own.handed_out.advance(exchange)

    def wait_for_sum(self, exchange: int, rank: int, timeout_s: float) -> None:
        """Until another has done so."""
        self._await(self._boards[rank].handed_out, exchange, rank, timeout_s)

    def board(self, rank: int) -> Board:
        return self._boards[rank]

    def done(self, exchange: int) -> None:
        """All of this exchange has been read."""
        self._reading.remove(exchange)
        self._own.read.advance(min(self._reading, default=self._latest + 1) - 1)

    def _await(self, counter: Counter, exchange: int, rank: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not counter.reaches(exchange, within_s=min(_LOOK_EVERY_S, max(deadline - time.monotonic(), 0.0))):
            if self._boards[rank].is_left:
                raise ConnectionError(f"rank {rank} has closed its board")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"timed out: rank {rank} has not come to exchange {exchange} in {timeout_s:g} s")

    def close(self) -> None:
        for board in self._boards.values():
            board.close()
