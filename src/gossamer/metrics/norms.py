"""Norms of many tensors that lie in one flat buffer."""

from collections.abc import Sequence

import torch
from torch import Tensor


def square_norms(flat: Tensor, spans: Sequence[slice]) -> Tensor:
    """Squared L2 norm of every span of the last axis: `[..., P]` to `[..., T]`.

    >>> square_norms(torch.tensor([3.0, 4.0, 2.0]), [slice(0, 2), slice(2, 3)])
    tensor([25.,  4.])
    """
    return torch.stack([flat[..., span].square().sum(-1) for span in spans], -1)
