"""How far apart two graphs, sizes or rules end in accuracy, with the spread over seeds that it is judged by."""

import math
from typing import NamedTuple, Self

from ._groups import Group, Spread
from ._measures import AVERAGED
from ._numbers import plus_minus, points

_UNSTEADY = 0.2
"""Seeds further apart than this in accuracy: some trained and some did not, which a mean and its spread would hide."""


def ends(group: Group) -> list[float]:
    """The final accuracy of the averaged model of every finished seed."""
    return group.ends(AVERAGED)


def is_unsteady(group: Group) -> bool:
    return bool(group.finished) and max(ends(group)) - min(ends(group)) > _UNSTEADY


class Ending(NamedTuple):
    """The final accuracy of a graph's averaged model over seeds."""

    group: Group
    spread: Spread

    @classmethod
    def of(cls, group: Group) -> Self | None:
        spread = group.final(AVERAGED)
        return None if spread is None else cls(group, spread)

    @property
    def level(self) -> str:
        return f"{with_spread(self.spread.mean, self.spread.std)}\u00a0%"

    def minus(self, base: "Ending", label: str | None = None) -> "Difference":
        """How much higher this ends than the other; the variances of independent means add."""
        stds = (self.spread.std, base.spread.std)
        std = None if stds[0] is None or stds[1] is None else math.hypot(stds[0], stds[1])
        return Difference(label or self.group.label, self.spread.mean - base.spread.mean, std)


class Difference(NamedTuple):
    """Of two final accuracies."""

    label: str
    value: float
    std: float | None
    """None where one of the two has fewer than two seeds."""

    @property
    def is_within_spread(self) -> bool:
        return self.std is not None and abs(self.value) <= self.std

    @property
    def points(self) -> str:
        return f"{with_spread(self.value, self.std)} points"

    @property
    def words(self) -> str:
        if self.value == 0:
            return "level with"
        return f"{self.points} {'below' if self.value < 0 else 'above'}"


def with_spread(value: float, std: float | None) -> str:
    return plus_minus(points(value), None if std is None else points(std))
