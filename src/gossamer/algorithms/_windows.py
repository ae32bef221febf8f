"""How many steps each part of a model goes from one average to the next: most where it saves most, and in turn."""

from collections.abc import Sequence

import torch


def allotted(noise: Sequence[float], sizes: Sequence[int], harm: Sequence[float], allowed: float) -> list[int]:
    r"""The windows h_p that send least, :math:`\sum_p s_p / h_p`, while :math:`\sum_p a_p D(h_p)` may be so much.

    `noise` is a_p, the variance that a step leaves in each part; `sizes` are s_p, and `harm` is D(h) for h = 1, 2, …:
    convex, as the savings of a longer window are. So windows grow step by step, those first that save most for their
    share of what is allowed, until nothing is left of it.

    >>> allotted([1.0, 1.0], [900, 100], harm=[0.0, 1.0, 3.0, 6.0], allowed=4.0)
    [3, 2]
    """
    levels = torch.tensor(harm, dtype=torch.float64)
    steps = torch.arange(1, len(harm), dtype=torch.float64)
    prices = torch.tensor(noise, dtype=torch.float64)[:, None] * levels.diff()
    prices.nan_to_num_(torch.inf, posinf=torch.inf)
    savings = torch.tensor(sizes, dtype=torch.float64)[:, None] / (steps * (steps + 1))
    order = (prices / savings).flatten().argsort(stable=True)
    num_taken = int((prices.flatten()[order].cumsum(0) <= allowed).sum())
    parts = (order[:num_taken] // len(steps)).bincount(minlength=len(noise))
    return [1 + longer for longer in parts.tolist()]


def in_turn(windows: Sequence[int], left: Sequence[int], sizes: Sequence[int], number: int) -> int:
    """When the next window of a part ends best: after all of it or, for once, before that, where least is sent.

    So parts with windows of two steps come to send half each time, where all would send every other time. `left` are
    the steps until each part is averaged, and again after every window of it. The later of equals.

    >>> in_turn([2, 2], [2, 2], [1, 1], number=0), in_turn([2, 2], [2, 1], [1, 1], number=0)
    (1, 2)
    """
    others = [other for other in range(len(windows)) if other != number]

    def sent(step: int) -> int:
        return sum(sizes[i] for i in others if step >= left[i] and (step - left[i]) % windows[i] == 0)

    window = windows[number]
    return min(range(window, 0, -1), key=sent)


def mean_before(spreads: Sequence[float]) -> list[float]:
    """Of each window the mean over its steps of what `spreads` says of the steps before.

    >>> mean_before([0.0, 1.0, 5.0])
    [0.0, 0.5, 2.0]
    """
    return (torch.tensor(spreads, dtype=torch.float64).cumsum(0) / torch.arange(1, 1 + len(spreads))).tolist()
