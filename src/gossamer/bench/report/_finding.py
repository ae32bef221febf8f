"""What the numbers say, in a sentence or two, and no more than they say."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ._groups import Group
from ._measures import AVERAGED, CONSENSUS
from ._numbers import counted, listed, plus_minus, points, scientific

_MOST_NAMED = 3
"""Differences spelled out at most: a lede is not a table."""

_SAME_GAP = 1e-9
_UNSTEADY = 0.2
"""Seeds further apart than this in accuracy: some trained and some did not, which a mean and its spread would hide."""


class _Ending(NamedTuple):
    """The final accuracy of a graph's averaged model over seeds."""

    group: Group
    mean: float
    variance: float | None
    """None with fewer than two seeds."""

    @property
    def level(self) -> str:
        return f"{_with_spread(self.mean, self.variance)}\u00a0%"


class _Difference(NamedTuple):
    """How much higher one graph ends than the other; the variances of independent means add."""

    label: str
    value: float
    variance: float | None

    @property
    def is_within_spread(self) -> bool:
        return self.variance is not None and self.value**2 <= self.variance

    @property
    def words(self) -> str:
        if self.value == 0:
            return "level with"
        return f"{_with_spread(self.value, self.variance)} points {'below' if self.value < 0 else 'above'}"


def _with_spread(value: float, variance: float | None) -> str:
    return plus_minus(points(value), None if variance is None else points(math.sqrt(variance)))


def finding(groups: Sequence[Group]) -> str:
    """Accuracy against the baseline, then how far replicas drift apart, then what diverged."""
    if not groups:
        return "No run is over yet."
    if not any(group.finished for group in groups):
        return "Every run diverged: there is nothing to compare."
    said = [_on_accuracy(groups), _on_unsteadiness(groups), _on_consensus(groups), _on_divergence(groups)]
    return " ".join(filter(None, said))


def _on_accuracy(groups: Sequence[Group]) -> str:
    endings = [_ending(group) for group in groups if group.finished]
    num_workers = groups[0].runs[0].run.workers
    where = "On one replica" if num_workers == 1 else f"On {num_workers} replicas"
    # Against the centralized baseline, or else against the graph that mixes best.
    base = max(endings, key=lambda ending: (ending.group.is_centralized, ending.group.gap))
    others = [_difference(e, base) for e in endings if e is not base and not _is_unsteady(e.group)]
    if not others:
        return f"{where}, {base.group.label} ends at {base.level} ({counted(len(base.group.finished), 'seed')})."
    within = [other.label for other in others if other.is_within_spread]
    if len(within) == len(others):
        there = f"within the spread over seeds of {base.group.label} ({base.level})"
        return f"{where}, {listed(within)} {_is(within)} {there}."
    outside = sorted((o for o in others if not o.is_within_spread), key=lambda other: -abs(other.value))
    first, *rest = outside
    said = [f"{first.label} ends {first.words} {base.group.label} ({base.level})"]
    said += [f"{other.label} {other.words.removesuffix(' with')}" for other in rest[: _MOST_NAMED - 1]]
    if left := len(rest) - len(said) + 1:
        said.append(f"{counted(left, 'other')} less far off")
    sentence = f"{where}, {listed(said)}"
    if within:
        sentence += f"; {listed(within)} {_is(within)} within the spread over seeds"
    if all(other.variance is None for other in others):
        sentence += "; with one seed there is no spread to judge this by"
    return f"{sentence}."


def _on_unsteadiness(groups: Sequence[Group]) -> str:
    said = []
    for group in filter(_is_unsteady, groups):
        low, high = (f"{points(pick(_ends(group)))}\u00a0%" for pick in (min, max))
        said.append(f"{group.label} does not train reliably: its seeds end between {low} and {high}.")
    return " ".join(said)


def _is_unsteady(group: Group) -> bool:
    return bool(group.finished) and max(_ends(group)) - min(_ends(group)) > _UNSTEADY


def _ends(group: Group) -> list[float]:
    return [run.final[AVERAGED.key] for run in group.finished]


def _on_consensus(groups: Sequence[Group]) -> str:
    drifts = sorted(
        ((drift, group) for group in groups if not group.is_centralized and (drift := group.over_training(CONSENSUS))),
        key=lambda pair: pair[0],
    )
    if len(drifts) < 2:
        return ""
    (least, closest), (most, furthest) = drifts[0], drifts[-1]
    gaps = [group.gap for _, group in drifts if not group.changes]
    is_ordered = all(closer >= further - _SAME_GAP for closer, further in pairwise(gaps))
    has_law = len(gaps) > 2 and is_ordered and gaps[0] - gaps[-1] > _SAME_GAP
    law = "The better a graph mixes, the closer its replicas stay: consensus" if has_law else "Consensus"
    return (
        f"{law} distance over the training is {scientific(least)} on {closest.label} and {scientific(most)} on "
        f"{furthest.label}."
    )


def _on_divergence(groups: Sequence[Group]) -> str:
    said = [
        f"{group.label} ({len(group.diverged)} of {counted(len(group.runs), 'run')})"
        for group in groups
        if group.diverged
    ]
    return f"Diverged: {listed(said)}." if said else ""


def _ending(group: Group) -> _Ending:
    spread = group.summary[f"{AVERAGED.key}_std"]
    return _Ending(group, group.summary[AVERAGED.key], None if spread is None else spread**2)


def _difference(ending: _Ending, base: _Ending) -> _Difference:
    variance = None
    if ending.variance is not None and base.variance is not None:
        variance = ending.variance + base.variance
    return _Difference(ending.group.label, ending.mean - base.mean, variance)


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
