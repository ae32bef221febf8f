"""Latency and bandwidth between workers, measured over their process group: messages there and back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gossamer.clock import Link

from ._profile import Pair

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

_BYTES = 2 * 2**20
_WARM_UP = 2
_SMALL, _LARGE = 20, 4
"""How often a message of one byte and one of `_BYTES` goes there and back."""
_MOST_PAIRS = 120
"""All of 16 workers; of more, so many at even distances."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Medians of what was measured, by class; None where there is no such pair."""

    inside: Link | None
    between: Link | None
    pairs: tuple[Pair, ...]


def measure_links(group: ProcessGroup, local_size: int, device: torch.device) -> Links:
    """One pair after the other; then all workers of a node at once with those of the next, who share its link.

    All ranks must call this at the same time; all get the same answer.
    """
    rank, n = group.rank(), group.size()
    chosen = _spread(list(combinations(range(n), 2)))
    found = np.zeros((len(chosen), 2))
    for place, (one, other) in enumerate(chosen):
        group.barrier().wait()
        if rank in (one, other):
            partner = other if rank == one else one
            found[place] = _there_and_back(group, device, partner, begins=rank == one)
    found = _of_both_ends(group, found)
    pairs = tuple(
        Pair(ends=ends, latency_s=latency_s, bytes_per_s=rate)
        for ends, (latency_s, rate) in zip(chosen, found.tolist(), strict=True)
    )
    inside = [pair for pair in pairs if pair.ends[0] // local_size == pair.ends[1] // local_size]
    across = [pair for pair in pairs if pair not in inside]
    shared = _shared(group, local_size, device) if across and local_size > 1 else None
    return Links(inside=_typical(inside, None), between=_typical(across, shared), pairs=pairs)


def _spread(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(pairs) <= _MOST_PAIRS:
        return pairs
    return [pairs[place] for place in np.linspace(0, len(pairs) - 1, _MOST_PAIRS).astype(int)]


def _typical(pairs: list[Pair], shared_bytes_per_s: float | None) -> Link | None:
    """The median link. Where all workers of a node together get more than one of them, one stream is the limit."""
    if not pairs:
        return None
    latency_s, alone = median(p.latency_s for p in pairs), median(p.bytes_per_s for p in pairs)
    if shared_bytes_per_s is None or shared_bytes_per_s <= alone:
        return Link(latency_s=latency_s, bytes_per_s=shared_bytes_per_s or alone)
    return Link(latency_s=latency_s, bytes_per_s=shared_bytes_per_s, stream_bytes_per_s=alone)


def _shared(group: ProcessGroup, local_size: int, device: torch.device) -> float:
    """Bytes a second that leave a node when all its workers send."""
    rank, nodes = group.rank(), group.size() // local_size
    node = rank // local_size
    partner = rank + local_size if node % 2 == 0 else rank - local_size
    group.barrier().wait()
    mine = np.zeros((1, 2))
    if partner < group.size():  # of an odd number of nodes, the last has nobody
        mine[0] = _there_and_back(group, device, partner, begins=node % 2 == 0)
    rates = gathered(group, mine)[:, 0, 1].reshape(nodes, local_size).sum(axis=1)
    return float(np.median(rates[: nodes - nodes % 2]))


def _there_and_back(group: ProcessGroup, device: torch.device, partner: int, *, begins: bool) -> tuple[float, float]:
    """Latency and bytes a second of one way."""
    import torch

    small = torch.zeros(1, dtype=torch.uint8, device=device)
    large = torch.zeros(_BYTES, dtype=torch.uint8, device=device)
    latency_s = median(_round_trip_s(group, small, partner, begins) for _ in range(_SMALL)) / 2
    way_s = median(_round_trip_s(group, large, partner, begins) for _ in range(_LARGE)) / 2
    return latency_s, _BYTES / max(way_s - latency_s, way_s / 2)  # a latency that was held up must not hide the bytes


def _round_trip_s(group: ProcessGroup, message: torch.Tensor, partner: int, begins: bool) -> float:
    """One sends while the other receives, then the reverse: no backend can be stuck in that."""
    import torch

    start = time.perf_counter()
    for sends in (begins, not begins):
        work = group.send([message], partner, 0) if sends else group.recv([message], partner, 0)
        work.wait()
        if message.is_cuda:
            torch.cuda.synchronize()
    return time.perf_counter() - start


def _of_both_ends(group: ProcessGroup, mine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both ends of a pair have measured; on all ranks the mean of the two."""
    everybody = gathered(group, mine)
    return np.asarray(everybody.sum(axis=0) / np.maximum((everybody > 0).sum(axis=0), 1))


def gathered(group: ProcessGroup, mine: NDArray[np.float64]) -> NDArray[np.float64]:
    """`[ranks, ...]`, on all ranks."""
    import torch

    own = torch.from_numpy(np.ascontiguousarray(mine))
    everybody = [torch.empty_like(own) for _ in range(group.size())]
    group.allgather([everybody], [own]).wait()
    return np.stack([each.numpy() for each in everybody])
