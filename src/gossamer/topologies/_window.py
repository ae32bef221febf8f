"""Averaging over a window of a ring in few messages: what makes dense ring lattices, and Ada, affordable.

A worker that averages with k neighbours on a ring need not hear k models. Sums of 2, 4, 8 … neighbours in a row come by
doubling, one message each; sums of some of these lengths, laid end to end, are the window: about 2·log₂k models instead
of k. Where few are missing from the window, it is the sum of all, by an all-reduce, less the sum of those.
"""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a worker does with its sum of the 2^level workers from itself on."""

    take_from: int | None
    """It adds to its result that of the worker so far ahead; 0 is its own, None is nobody's."""
    double_from: int | None
    """It adds that of the worker so far ahead to its own; None in the last round."""

    @property
    def num_messages(self) -> int:
        return bool(self.take_from) + bool(self.double_from)


@cache
def window_sum(first: int, length: int) -> tuple[Round, ...]:
    """How every worker i of a ring gets Σ x[i+first] … x[i+first+length−1].

    >>> for round in window_sum(-2, 5):
    ...     print(round.take_from, round.double_from)
    -2 1
    None 2
    -1 None
    """
    rounds = []
    for level in range(length.bit_length()):
        size, is_last = 2**level, level + 1 == length.bit_length()
        takes = bool(length & size)
        rounds.append(Round(take_from=first if takes else None, double_from=None if is_last else size))
        first += size * takes
    return tuple(rounds)


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """How n workers on a ring each take the mean of themselves and `half` neighbours on both sides."""

    n: int
    half: int
    is_by_doubling: bool
    """Else each model is sent to each neighbour."""
    is_complement: bool
    """Whether the rounds sum up the workers outside of the window."""

    @property
    def rounds(self) -> tuple[Round, ...]:
        size = 2 * self.half + 1
        return window_sum(self.half + 1, self.n - size) if self.is_complement else window_sum(-self.half, size)

    @property
    def models_sent(self) -> float:
        """Models that each worker sends."""
        if not self.is_by_doubling:
            return 2 * self.half
        in_rounds = sum(round.num_messages for round in self.rounds)
        return in_rounds + (2 * (self.n - 1) / self.n if self.is_complement else 0)


@cache
def window_plan(n: int, half: int) -> WindowPlan:
    """The way that sends least.

    >>> [window_plan(1008, half).models_sent for half in (1, 2, 16, 100, 250)]
    [2, 4, 7, 11, 15]
    >>> plan = window_plan(1008, 500)
    >>> plan.is_complement, round(plan.models_sent, 3)
    (True, 6.998)
    """
    ways = [(False, False), (True, False)] + [(True, True)] * (2 * half + 1 < n)
    plans = [WindowPlan(n=n, half=half, is_by_doubling=a, is_complement=b) for a, b in ways]
    return min(plans, key=lambda plan: plan.models_sent)
