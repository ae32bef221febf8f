"""What the numbers of one setting say, in a few sentences, and no more than they say."""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from statistics import fmean

from gossamer.tasks import TASKS

from ._differences import Difference, Ending, ends, is_unsteady
from ._groups import Group
from ._measures import AVERAGED, CONSENSUS, MEAN_REPLICA
from ._numbers import counted, listed, points, scientific

_MOST_NAMED = 3
"""Differences spelled out at most: a lede is not a table."""
_SAME_GAP = 1e-9
_LEARNED = 1 / 6
"""Of what a well-trained model reaches: below this share, guessing would do about as well (ten classes)."""
_TOO_FAR_APART = 0.05
"""By so much the mean replica must beat the mean of all replicas before it is worth a word."""


def finding(groups: Sequence[Group], where: str = "") -> str:
    """Accuracy against the baseline, then how far replicas drift apart, then what diverged; `where` is said first."""
    if not groups:
        return "No run is over yet."
    if not any(group.finished for group in groups):
        return f"{f'{where}, every' if where else 'Every'} run diverged: there is nothing to compare."
    where = where or on_workers(groups[0].setting.workers)
    families = _families(groups)
    said = [_on_accuracy(family, f"{where}, " * (place == 0)) for place, family in enumerate(families[:_MOST_NAMED])]
    if left := len(families) - len(said):
        said.append(f"{counted(left, 'more setting')} in the table.")
    said += [
        _on_collapse(groups),
        _on_unsteadiness(groups),
        _on_averaging(groups),
        _on_consensus(groups),
        _on_divergence(groups),
    ]
    return " ".join(filter(None, said))


def on_workers(workers: int) -> str:
    return "On one replica" if workers == 1 else f"On {workers} replicas"


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups that may be compared: what differs is the graph or the algorithm alone."""
    families: dict[Hashable, list[Group]] = {}
    for group in groups:
        families.setdefault(group.family, []).append(group)
    return list(families.values())


def _on_accuracy(groups: Sequence[Group], where: str) -> str:
    endings = [ending for group in groups if not is_collapsed(group) and (ending := Ending.of(group)) is not None]
    if not endings:
        return ""
    # Against the centralized baseline, or else against the graph that mixes best.
    base = max(endings, key=lambda ending: (ending.group.is_centralized, ending.group.gap))
    others = [ending.minus(base) for ending in endings if ending is not base and not is_unsteady(ending.group)]
    if not others:
        return f"{where}{base.group.label} ends at {base.level} ({counted(len(base.group.finished), 'seed')})."
    within = [other.label for other in others if other.is_within_spread]
    if len(within) == len(others):
        there = f"within the spread over seeds of {base.group.label} ({base.level})"
        return f"{where}{listed(within)} {_is(within)} {there}."
    outside = sorted((o for o in others if not o.is_within_spread), key=lambda other: -abs(other.value))
    sentence = f"{where}{listed(_against(base, outside))}"
    if within:
        sentence += f"; {listed(within)} {_is(within)} within the spread over seeds"
    if all(other.std is None for other in others):
        sentence += "; with one seed there is no spread to judge this by"
    return f"{sentence}."


def _against(base: Ending, outside: list[Difference]) -> list[str]:
    first, *rest = outside
    said = [f"{first.label} ends {first.words} {base.group.label} ({base.level})"]
    said += [f"{other.label} {other.words.removesuffix(' with')}" for other in rest[: _MOST_NAMED - 1]]
    if left := len(rest) - len(said) + 1:
        said.append(f"{counted(left, 'other')} less far off")
    return said


def is_collapsed(group: Group) -> bool:
    """Whether no seed learned much: each ends far below what a trained model reaches."""
    task = TASKS.get(group.setting.task)
    return task is not None and bool(group.finished) and max(ends(group)) < _LEARNED * task.good


def _on_collapse(groups: Sequence[Group]) -> str:
    collapsed = [group for group in groups if is_collapsed(group)]
    if not collapsed:
        return ""
    reached = f"where a trained model reaches {points(TASKS[collapsed[0].setting.task].good)}\u00a0%"
    if len(collapsed) == sum(bool(group.finished) for group in groups):
        best = max(max(ends(group)) for group in collapsed)
        return f"Nothing learns: no run ends above {points(best)}\u00a0%, {reached}."
    low = fmean(end for group in collapsed for end in ends(group))
    labels = [group.label for group in collapsed]
    verb = "does not learn: it ends" if len(labels) == 1 else "do not learn: they end"
    return f"{listed(labels)} {verb} at {points(low)}\u00a0%, {reached}."


def _on_unsteadiness(groups: Sequence[Group]) -> str:
    said = []
    for group in filter(is_unsteady, groups):
        low, high = (f"{points(pick(ends(group)))}\u00a0%" for pick in (min, max))
        said.append(f"{group.label} does not train reliably: its seeds end between {low} and {high}.")
    return " ".join(said)


def _on_averaging(groups: Sequence[Group]) -> str:
    """Where replicas alone are better than their average: they have drifted into different valleys."""
    said = []
    for group in groups:
        averaged, alone = group.final(AVERAGED), group.final(MEAN_REPLICA)
        if averaged and alone and alone.mean - averaged.mean > _TOO_FAR_APART:
            said.append(
                f"{group.label} ({points(averaged.mean)}\u00a0% averaged, {points(alone.mean)}\u00a0% the mean replica)"
            )
    return f"Replicas are too far apart to be averaged on {listed(said)}." if said else ""


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


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
