"""What the numbers say, in a sentence or two, and no more than they say."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from ._groups import Group, training_mean
from ._measures import AVERAGED, CONSENSUS
from ._numbers import counted, listed, percent, points, scientific


class _Ending(NamedTuple):
    """The final accuracy of a graph's averaged model: mean and standard deviation over seeds."""

    group: Group
    mean: float
    spread: float | None
    """None with fewer than two seeds."""


class _Difference(NamedTuple):
    label: str
    value: float
    spread: float | None

    @property
    def is_within_spread(self) -> bool:
        return self.spread is not None and abs(self.value) <= self.spread

    @property
    def size(self) -> str:
        return points(self.value) if self.spread is None else f"{points(self.value)} ± {points(self.spread)}"


def finding(groups: Sequence[Group]) -> str:
    """The finding: accuracy against the baseline, then how far replicas drift apart, then what diverged."""
    return " ".join(filter(None, [_on_accuracy(groups), _on_consensus(groups), _on_divergence(groups)]))


def _on_accuracy(groups: Sequence[Group]) -> str:
    endings = [_ending(group) for group in groups if group.finished]
    if not endings:
        return "" if groups else "No run is over yet."
    workers = groups[0].runs[0].run.workers
    where = "On one replica" if workers == 1 else f"On {workers} replicas"
    # Against the centralized baseline, or else against the graph that mixes best.
    base = max(endings, key=lambda ending: (ending.group.is_centralized, ending.group.gap))
    others = [_difference(ending, base) for ending in endings if ending is not base]
    if not others:
        return f"{where}, {base.group.label} ends at {_level(base)} % accuracy{_seeds_behind(base)}."
    return f"{where}, {_against(base, others)}"


def _against(base: _Ending, others: list[_Difference]) -> str:
    name = base.group.label
    within = [other.label for other in others if other.is_within_spread]
    outside = sorted((other for other in others if not other.is_within_spread), key=lambda other: other.value)
    if not outside:
        subject = f"all of {listed(within)}" if len(within) > 1 else within[0]
        return f"{subject} {_verb(within)} within the spread over seeds of {name} ({_level(base)} %)."
    lowest, *rest = outside
    said = [f"{lowest.label} ends {_distance(lowest)} {name} ({_level(base)} %)"]
    said += [f"{other.label} {_distance(other).removesuffix(' of')}" for other in rest]
    sentence = listed(said, most=3)
    if within:
        sentence += f"; {listed(within)} {_verb(within)} within the spread over seeds"
    if any(other.spread is None for other in others):
        sentence += ", with too few seeds to know the spread"
    return f"{sentence}."


def _distance(difference: _Difference) -> str:
    if difference.value == 0:
        return "level with"
    return f"{difference.size} points {'below' if difference.value < 0 else 'above'}"


def _on_consensus(groups: Sequence[Group]) -> str:
    drift = {}
    for group in groups:
        means = [mean for run in group.finished if (mean := training_mean(run, CONSENSUS)) is not None]
        if means and not group.is_centralized and fmean(means) > 0:
            drift[group.label] = (fmean(means), group)
    if len(drift) < 2:
        return ""
    ordered = sorted(drift.values(), key=lambda pair: pair[0])
    (least, closest), (most, furthest) = ordered[0], ordered[-1]
    gaps = [group.gap for _, group in ordered if not group.changes]
    is_ordered_by_gap = len(gaps) > 2 and all(a > b for a, b in zip(gaps, gaps[1:], strict=False))
    law = "The better a graph mixes, the closer its replicas stay: over" if is_ordered_by_gap else "Over"
    return (
        f"{law} the training they are {_times(most / least)} further apart on {furthest.label} than on "
        f"{closest.label} (consensus distance {scientific(most)} against {scientific(least)})."
        if is_ordered_by_gap
        else f"{law} the training, replicas are {_times(most / least)} further apart on {furthest.label} than on "
        f"{closest.label} (consensus distance {scientific(most)} against {scientific(least)})."
    )


def _on_divergence(groups: Sequence[Group]) -> str:
    lost = [group for group in groups if not group.finished]
    if groups and len(lost) == len(groups):
        return "Every run diverged: there is nothing to compare."
    said = [f"{group.label} diverged" for group in lost]
    said += [
        f"{len(group.diverged)} of {counted(len(group.runs), 'run')} on {group.label} diverged"
        for group in groups
        if group.finished and group.diverged
    ]
    return f"{listed(said)}.".capitalize() if said else ""


def _ending(group: Group) -> _Ending:
    values = [run.final[AVERAGED.key] for run in group.finished]
    return _Ending(group, fmean(values), stdev(values) if len(values) > 1 else None)


def _difference(ending: _Ending, base: _Ending) -> _Difference:
    known = ending.spread is not None and base.spread is not None
    spread = math.hypot(ending.spread, base.spread) if known else None  # type: ignore[arg-type]
    return _Difference(ending.group.label, ending.mean - base.mean, spread)
