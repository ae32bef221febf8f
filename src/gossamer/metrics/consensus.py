"""How far the replicas' parameters are apart."""

from torch import Tensor


def consensus_distance(replicas: Tensor) -> Tensor:
    r"""Mean squared distance to the average replica, relative to that average: of `[N, ...]`, one number.

    .. math:: \frac{1}{n} \sum_i \lVert x_i - \bar x \rVert^2 \;/\; \lVert \bar x \rVert^2

    Equal norms do not mean equal parameters; this sees the difference that norms do not.

    >>> import torch
    >>> consensus_distance(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).item()
    1.0
    """
    mean = replicas.mean(0)
    return relative_consensus((replicas - mean).flatten(1).square().sum(1).mean(0), mean.square().sum())


def relative_consensus(spread: Tensor, square_norm: Tensor) -> Tensor:
    """The same from its parts: the mean over replicas of the squared distances, and the mean's squared norm.

    Zero where all replicas agree, even on zero; infinite where they disagree about a mean of zero.
    """
    return (spread / square_norm).where(spread > 0, spread)
