"""How many steps each part of a model goes from one average to the next: most where it saves most, and in turn."""

from collections.abc import Sequence
from math import gcd

import torch


def allotted(noise: Sequence[float], sizes: Sequence[int], harm: Sequence[float], allowed: float) -> list[int]:
    r"""Windows h_p that send little, :math:`\sum_p s_p / h_p`, while :math:`\sum_p a_p D(h_p)` is what may be, or less.

    `noise` is a_p, the variance that a step leaves in each part; `sizes` are s_p, and `harm` is D(h) for h = 1, 2, …:
    convex, as the savings of a longer window are. So windows grow step by step, those first that save most for their
    share of what is allowed; a step that does not fit is left out, with all further ones of its part.

    >>> allotted([1.0, 1.0], [900, 100], harm=[0.0, 1.0, 3.0, 6.0], allowed=4.0)
    [3, 2]
    """
    levels = torch.tensor(harm, dtype=torch.float64)
    steps = torch.arange(1, len(harm), dtype=torch.float64)
    prices = torch.tensor(noise, dtype=torch.float64)[:, None] * levels.diff()
    prices.nan_to_num_(torch.inf, posinf=torch.inf)
    savings = torch.tensor(sizes, dtype=torch.float64)[:, None] / (steps * (steps + 1))
    order = (prices / savings).flatten().argsort(stable=True)
    windows, left = [1] * len(noise), allowed
    for step, price in zip(order.tolist(), prices.flatten()[order].tolist(), strict=True):
        part, before = divmod(step, len(steps))
        if windows[part] == before + 1 and price <= left:
            windows[part] += 1
            left -= price
    return windows


def in_turn(window: int, size: int, others: Sequence[tuple[int, int, int]]) -> int:
    """When the next window of a part ends best: after all of it or, for once, before that, where others send less.

    So parts with windows of two steps come to send half each time, where all would send every other time. `others` are
    the parts that have their place: the steps until each is averaged, its window, and its size. What counts is how much
    of them is due when this part is, from then on: a place is given up for one where that is less by the part's own
    size. For windows that have no factor in common all places are alike.

    >>> in_turn(2, 1, []), in_turn(2, 1, [(2, 2, 1)]), in_turn(2, 1, [(2, 2, 1), (1, 2, 1)]), in_turn(2, 1, [(2, 3, 1)])
    (2, 1, 2, 2)
    """

    def beside(step: int) -> float:
        met = ((gcd(window, every), left, every, size) for left, every, size in others)
        return sum(size * common / every for common, left, every, size in met if (step - left) % common == 0)

    best = min(range(window, 0, -1), key=beside)
    return best if beside(window) - beside(best) >= size else window


def mean_before(spreads: Sequence[float]) -> list[float]:
    """Of each window the mean over its steps of what `spreads` says of the steps before.

    >>> mean_before([0.0, 1.0, 5.0])
    [0.0, 0.5, 2.0]
    """
    return (torch.tensor(spreads, dtype=torch.float64).cumsum(0) / torch.arange(1, 1 + len(spreads))).tolist()
