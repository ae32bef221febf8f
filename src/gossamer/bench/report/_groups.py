"""The runs of one graph, and what they show together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from gossamer.topologies import Schedule

from ..experiment import CENTRALIZED
from ..store import RunResult
from ..summary import Summary, summarize
from ._colours import Colour, centralized, changing, lasting
from ._measures import Measure
from ._numbers import finite, size

Series = list[float | None]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure per epoch: mean, lowest and highest over seeds."""

    epochs: list[int]
    mean: Series
    low: Series
    high: Series


@dataclass(frozen=True, eq=False)
class Group:
    """All seeds of one graph, with the colour that it has everywhere."""

    label: str
    runs: tuple[RunResult, ...]
    schedule: Schedule
    colour: Colour

    @property
    def is_centralized(self) -> bool:
        return self.label == CENTRALIZED

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

    def curve(self, measure: Measure, *, is_log: bool = False) -> Curve:
        """Over finished seeds only: a mean that loses a seed on the way would jump. A log axis has no zeros."""
        rows = list(zip(*(run.epochs for run in self.finished), strict=True))
        values = [[row[measure.key] for row in seeds] for seeds in rows]

        def over(pick: Callable[[list[float]], float]) -> Series:
            picked = [pick(seeds) for seeds in values]
            return [size(value) or None for value in picked] if is_log else [finite(value) for value in picked]

        return Curve(epochs=[seeds[0]["epoch"] for seeds in rows], mean=over(fmean), low=over(min), high=over(max))

    @cached_property
    def summary(self) -> Summary:
        """Its final numbers over finished seeds."""
        return summarize(self.runs)[0]

    def over_training(self, measure: Measure) -> float | None:
        """Mean over the epochs and over finished seeds."""
        return size(self.summary[f"{measure.key}_over_training"])


def group(runs: Sequence[RunResult]) -> list[Group]:
    """The runs by graph, in order of appearance, each graph with its colour."""
    by_label: dict[str, list[RunResult]] = {}
    for run in runs:
        by_label.setdefault(run.run.label, []).append(run)
    schedules = {label: members[0].run.schedule() for label, members in by_label.items()}
    graphs = [label for label in by_label if label != CENTRALIZED]
    ada = [label for label in graphs if schedules[label].period is None]
    static = sorted(set(graphs) - set(ada), key=lambda label: (-schedules[label].spectral_gap(), label))
    colours = {
        CENTRALIZED: centralized(),
        **{label: changing(place) for place, label in enumerate(ada)},
        **{label: lasting(place, len(static)) for place, label in enumerate(static)},
    }
    return [Group(label, tuple(members), schedules[label], colours[label]) for label, members in by_label.items()]
