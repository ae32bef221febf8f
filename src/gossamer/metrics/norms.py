"""Norms of many tensors that lie in one flat buffer, one tensor after the other."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Look(NamedTuple):
    """What the white box needs of L replicas held here, in float64; T tensors."""

    norms: Tensor
    """L2 norm of every tensor on every replica, `[L, T]`."""
    square_distances: Tensor
    """Squared distance of every tensor on every replica to its mean over all replicas, `[L, T]`."""
    square_norms: Tensor
    """Squared norm of those means, `[T]`."""


def look(flat: Tensor, mean: Tensor, spans: Sequence[slice]) -> Look:
    """Measure replicas `[L, P]` against their mean `[P]`: the plain way, for a CPU. `compiled_look` is the fast one.

    >>> taken = look(torch.tensor([[3.0, 4.0, 2.0]]), torch.tensor([3.0, 3.0, 2.0]), [slice(0, 2), slice(2, 3)])
    >>> taken.norms.tolist(), taken.square_distances.tolist(), taken.square_norms.round().tolist()
    ([[5.0, 2.0]], [[1.0, 0.0]], [18.0, 4.0])
    """
    wide, mean = flat.double(), mean.double()
    rows = span_norms(torch.cat([wide, wide - mean, mean.unsqueeze(0)]), spans)  # T calls instead of three times T
    return Look(rows[: len(flat)], rows[len(flat) : -1].square(), rows[-1].square())


def span_norms(flat: Tensor, spans: Sequence[slice]) -> Tensor:
    """L2 norm of every span of the last axis: `[..., P]` to `[..., T]`.

    >>> span_norms(torch.tensor([3.0, 4.0, 2.0]), [slice(0, 2), slice(2, 3)])
    tensor([5., 2.])
    """
    pieces = (flat.narrow(-1, span.start, span.stop - span.start) for span in spans)  # cheaper than flat[..., span]
    return torch.stack([torch.linalg.vector_norm(piece, dim=-1) for piece in pieces], -1)


def mean_of_near(replicas: Tensor) -> Tensor:
    """The mean `[P]` of replicas `[N, P]` in float64, exact where all agree: the mean of the differences to the first.

    A plain mean of equal numbers can be off by a rounding, which would pass for a distance between equal replicas.

    >>> tenths = torch.full((3, 1), 0.1, dtype=torch.float64)
    >>> tenths.mean(0).item() == 0.1, mean_of_near(tenths).item() == 0.1
    (False, True)
    """
    first = replicas[0].double()
    return first + (replicas.double() - first).mean(0)
