"""How unequal N replicas are in one number each: four classic measures of dispersion over the first axis.

Given `values[N, ...]` (the L2 norms of a tensor on every replica, say) each function returns a `[...]` tensor, zero
where all replicas agree. Values must not be negative. Where their mean is zero they all are, so the dispersion is
zero; a value that is not a number makes the dispersion not a number.
"""

import torch
from torch import Tensor


def index_of_dispersion(values: Tensor) -> Tensor:
    r"""Variance over mean, :math:`s^2 / \bar v`, with the sample variance (n-1); it has the unit of `values`.

    >>> index_of_dispersion(torch.tensor([1.0, 3.0])).item()
    1.0
    """
    return _ratio(_sample_variance(values), values.mean(0))


def coefficient_of_variation(values: Tensor) -> Tensor:
    r"""Standard deviation over mean, :math:`s / \bar v`; without unit.

    >>> round(coefficient_of_variation(torch.tensor([1.0, 3.0])).item(), 4)
    0.7071
    """
    return _ratio(_sample_variance(values).sqrt(), values.mean(0))


def quartile_coefficient(values: Tensor) -> Tensor:
    r"""Quartile coefficient of dispersion, :math:`(Q_3 - Q_1)/(Q_3 + Q_1)`, quartiles interpolated linearly.

    >>> round(quartile_coefficient(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).item(), 4)
    0.3333
    """
    ranked = values.sort(dim=0).values  # torch.quantile refuses more than 16 million numbers
    first, third = (_at(ranked, share) for share in (0.25, 0.75))
    return _ratio(third - first, third + first).where(~values.isnan().any(0), torch.nan)


def gini(values: Tensor) -> Tensor:
    r"""Gini coefficient, :math:`\sum_i \sum_j |v_i - v_j| / (2 n^2 \bar v)`, between 0 and 1 - 1/n.

    Computed from the sorted values in n log n: the i-th smallest (from 1) enters with weight 2i - n - 1. The weights
    sum to zero, so the smallest value may be taken off all of them first: small differences then keep their digits.

    >>> round(gini(torch.tensor([0.0, 0.0, 1.0])).item(), 4)
    0.6667
    """
    n = values.shape[0]
    ranks = 2 * torch.arange(1, n + 1, dtype=values.dtype, device=values.device) - n - 1
    ranked = values.sort(dim=0).values
    weighted = torch.tensordot(ranks, ranked - ranked[0], dims=1)
    return _ratio(weighted, n * n * values.mean(0)).clamp(min=0)  # rounding may leave -1e-17


def _at(ranked: Tensor, share: float) -> Tensor:
    """The value below which lies this share of the sorted values, interpolated linearly between neighbours."""
    place = share * (len(ranked) - 1)
    low = int(place)
    return ranked[low].lerp(ranked[min(low + 1, len(ranked) - 1)], place - low)


def _sample_variance(values: Tensor) -> Tensor:
    """Zero for a single replica, which agrees with itself."""
    return values.var(0, correction=1) if values.shape[0] > 1 else torch.zeros_like(values[0])


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return (above / below).where(below != 0, torch.zeros_like(above))
