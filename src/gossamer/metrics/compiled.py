"""The white box's look inside the replicas as a handful of kernels, for a GPU.

The plain `look` starts a kernel a tensor and copies all parameters to float64 on the way. Here the flat buffer is cut
into pieces of equal width, none of which crosses the border of a tensor, so that a compiler makes one kernel of
"read, widen, square, sum each piece": every parameter is read once for the mean and once for the rest, float64 stays
in registers, and no sum depends on the order in which threads finish. On an H200 (torch 2.11, 1008 replicas of 269,722
parameters in 59 tensors, mean of 20) a look took 1.5 ms in pieces of 256, 1.9 ms in pieces of 1024 and 9.6 ms the plain
way, with the same numbers to 1e-15 and the same bits each time; to copy the parameters took 0.5 ms.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from .norms import Look, mean_of_near

Level = tuple[Tensor, Tensor, int]
"""Pieces of the last axis: where each starts `[K]`, how long it is `[K]`, and the longest that one may be."""


def cut(spans: Sequence[slice], device: torch.device | str = "cpu", *, width: int = 256) -> list[Level]:
    """Cut spans into pieces, the sums of those into pieces again, and so on until every span is one number."""
    levels: list[Level] = []
    while not levels or len(levels[-1][0]) > len(spans):
        pieces: list[tuple[int, int]] = []
        sums = []
        for span in spans:
            starts = range(span.start, span.stop, width) or [span.start]  # an empty tensor is a piece of length 0
            sums.append(slice(len(pieces), len(pieces) + len(starts)))
            pieces += [(start, min(width, span.stop - start)) for start in starts]
        first, length = torch.tensor(pieces, device=device).T.contiguous()
        levels.append((first, length, width))
        spans = sums
    return levels


def span_sums(values: Tensor, levels: Sequence[Level]) -> Tensor:
    """The sum of every span of the last axis, for spans that were `cut`: `[..., P]` to `[..., T]`.

    >>> span_sums(torch.arange(6.0), cut([slice(0, 5), slice(5, 6)], width=2))
    tensor([10.,  5.])
    """
    for starts, lengths, width in levels:
        within = torch.arange(width, device=values.device)
        at = (starts[:, None] + within).clamp(max=values.shape[-1] - 1)
        values = values[..., at].where(within < lengths[:, None], 0).sum(-1)
    return values


def look_at_all(flat: Tensor, levels: Sequence[Level]) -> Look:
    """As `look`, of all replicas `[N, P]` there are, whose mean is taken here."""
    mean = mean_of_near(flat)
    wide = flat.double()
    return Look(
        span_sums(wide.square(), levels).sqrt(),
        span_sums((wide - mean).square(), levels),
        span_sums(mean.square(), levels),
    )


def compiled_look(flat: Tensor, levels: Sequence[Level]) -> Look:
    """`look_at_all` as it is meant to run: without the compiler it makes copies of everything, piece by piece."""
    return _compile()(flat, levels)


@cache
def _compile() -> Callable[[Tensor, Sequence[Level]], Look]:
    """Once, when first asked for: the compiler takes a second to import."""
    return torch.compile(look_at_all, dynamic=False, fullgraph=True)
