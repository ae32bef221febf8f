"""The runs of one graph in one setting, and what they show together."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from statistics import fmean, stdev
from typing import Any

from gossamer.topologies import Schedule

from ..one_run import CENTRALIZED
from ..ranks import Peak, peaks
from ..store import RunResult
from ._colours import Colour, centralized, changing, lasting
from ._labels import RULES, Setting, labels, setting_of
from ._measures import Measure, scores
from ._numbers import finite, size

_OWN = ("graph", "algorithm", "seed", "data", "compiled")

Series = list[float | None]
_MOST_POINTS = 200
"""Of a curve: more than a plot has room for."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure over the epochs: mean, lowest and highest over seeds."""

    epochs: list[int]
    mean: Series
    low: Series
    high: Series


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over seeds."""

    mean: float
    std: float | None
    """None with fewer than two seeds, or where one is beyond all bounds."""


@dataclass(frozen=True, eq=False)
class Group:
    """All seeds of one graph in one setting, with the colour that the graph has everywhere."""

    label: str
    runs: tuple[RunResult, ...]
    schedule: Schedule
    colour: Colour

    @property
    def setting(self) -> Setting:
        return setting_of(self.runs[0].run)

    @cached_property
    def family(self) -> Hashable:
        """What groups must share to be compared as graphs: all settings but graph, algorithm and seed."""
        settings = asdict(self.runs[0].run).items()
        return tuple(value for name, value in settings if name not in _OWN)

    @property
    def is_centralized(self) -> bool:
        return self.runs[0].run.algorithm == CENTRALIZED

    @property
    def changes(self) -> bool:
        """Whether its graph never repeats: Ada's, or random pairs."""
        return self.schedule.period is None

    @cached_property
    def finished(self) -> list[RunResult]:
        return [run for run in self.runs if run.status == "finished"]

    @cached_property
    def diverged(self) -> list[RunResult]:
        return [run for run in self.runs if run.status != "finished"]

    @cached_property
    def gap(self) -> float:
        """The spectral gap of its graph (of the stage it ends with, where it changes)."""
        return self.schedule.spectral_gap()

    @cached_property
    def staleness(self) -> dict[int, int]:
        """How many gradients of all finished seeds were so stale; empty where gradients never are."""
        together: Counter[int] = Counter()
        for run in self.finished:
            together.update(run.staleness)
        return dict(sorted(together.items()))

    @property
    def scores(self) -> list[Measure]:
        """What the task measured at the end beyond what all tasks do."""
        return scores(self.finished[0].final) if self.finished else []

    def has(self, measure: Measure) -> bool:
        """Whether its runs were measured so."""
        return bool(self.finished) and all(measure.key in run.final for run in self.finished)

    def curve(self, measure: Measure) -> Curve:
        """Over finished seeds only: a mean that loses a seed on the way would jump. A log axis has no zeros."""
        by_epoch = [{row["epoch"]: row for row in run.epochs if measure.key in row} for run in self.finished]
        shared = sorted(set.intersection(*(set(rows) for rows in by_epoch))) if by_epoch else []
        rows = [[seed[epoch] for seed in by_epoch] for epoch in thinned(shared)]
        values = [[row[measure.key] for row in seeds] for seeds in rows]

        def over(pick: Callable[[list[float]], float]) -> Series:
            picked = [pick(seeds) for seeds in values]
            return [size(value) or None for value in picked] if measure.is_log else [finite(value) for value in picked]

        return Curve(epochs=[seeds[0]["epoch"] for seeds in rows], mean=over(fmean), low=over(min), high=over(max))

    def ends(self, measure: Measure) -> list[float]:
        """The final figure of every finished seed."""
        return [run.final[measure.key] for run in self.finished] if self.has(measure) else []

    def final(self, measure: Measure) -> Spread | None:
        """The final figure over finished seeds; None where there is none."""
        ends = self.ends(measure)
        has_spread = len(ends) > 1 and all(map(isfinite, ends))
        return Spread(mean=fmean(ends), std=stdev(ends) if has_spread else None) if ends else None

    @cached_property
    def peaks(self) -> dict[str, Peak]:
        """When its replicas are furthest apart, by the key of a measure; empty where they never differ."""
        return {peak.metric: peak for peak in peaks(self.finished)}

    def over_training(self, measure: Measure) -> float | None:
        """Mean over the epochs and over finished seeds."""
        means = [over_training(run, measure) for run in self.finished]
        return size(fmean(means)) if means else None


def over_training(run: RunResult, measure: Measure) -> float:
    """Mean over the rows of a run, which are at even distances."""
    return fmean(row[measure.key] for row in run.epochs)


def thinned(points: list[Any], most: int = _MOST_POINTS) -> list[Any]:
    """At most so many points at even distances, with the first and the last.

    >>> thinned([0, 1, 2, 3, 4, 5, 6], most=3)
    [0, 3, 6]
    """
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def group(runs: Sequence[RunResult]) -> list[Group]:
    """The runs by setting and label, in order of appearance; a label has one colour in all settings."""
    members: dict[tuple[Setting, str], list[RunResult]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        members.setdefault((setting_of(run.run), label), []).append(run)
    schedules = {place: group[0].run.schedule() for place, group in members.items()}
    colours = _colours(
        {label: (members[setting, label][0], schedule) for (setting, label), schedule in schedules.items()}
    )
    return [
        Group(label, tuple(group), schedules[setting, label], colours[label])
        for (setting, label), group in members.items()
    ]


def _colours(examples: dict[str, tuple[RunResult, Schedule]]) -> dict[str, Colour]:
    """A colour a label: those that never change from dense to sparse, by the last setting that they occur in."""
    baselines = [label for label, (run, _) in examples.items() if run.run.algorithm == CENTRALIZED]
    graphs = [label for label in examples if label not in baselines]
    ada = [label for label in graphs if examples[label][1].period is None]
    static = sorted(set(graphs) - set(ada), key=lambda label: (-examples[label][1].spectral_gap(), label))
    return {
        **{label: centralized(place) for place, label in enumerate(baselines)},
        **{label: changing(place) for place, label in enumerate(ada)},
        **{label: lasting(place, len(static)) for place, label in enumerate(static)},
    }


def by_setting(groups: Sequence[Group]) -> dict[Setting, list[Group]]:
    """The groups of every setting: tasks in order of appearance, of each the sizes and rules from small to large."""
    settings: dict[Setting, list[Group]] = {}
    for member in groups:
        settings.setdefault(member.setting, []).append(member)
    tasks, rules = list(dict.fromkeys(setting.task for setting in settings)), list(RULES)
    in_order = sorted(settings, key=lambda one: (tasks.index(one.task), one.workers, rules.index(one.rule)))
    return {setting: settings[setting] for setting in in_order}
