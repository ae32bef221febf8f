"""The white-box ranking: do the graphs whose replicas stay closest also train best?

For every tensor and probe the graphs are ranked by how far apart their replicas are (1 = least dispersed); the mean of
these ranks over tensors, probes and seeds is compared with the ranking by final accuracy (1 = best). A correlation of
+1 says that the two orders agree: the less dispersed, the more accurate. Early, middle and late training are also
looked at apart.

Graphs are compared only with each other under equal settings: same task, workers, learning-rate rule and the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import rankdata

from .one_run import CENTRALIZED, Run
from .rank_correlation import Correlation, correlate
from .store import RunResult

METRICS = (
    "consensus_distance",
    "gini",
    "coefficient_of_variation",
    "quartile_coefficient",
    "index_of_dispersion",
)
"""What replicas may differ in, by tensor; a result may lack some."""
PHASES = {"early": (0.0, 1 / 3), "middle": (1 / 3, 2 / 3), "late": (2 / 3, 1.0), "all": (0.0, 1.0)}
"""Parts of the training, as shares of its steps: after the first, up to and with the second."""
_ROUNDING = 1e-15
"""Dispersion below this is the rounding of a sum over equal replicas: zero, so that equal graphs tie."""
_SAME = 1e-9
_OWN = ("graph", "seed", "data")
"""The settings in which runs that are ranked together may differ."""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The graphs ranked by one metric in one phase, and how that agrees with the ranking by accuracy."""

    metric: str
    phase: str
    ranks: dict[str, float]
    """The mean rank of each graph; 1 = least dispersed in every tensor, at every probe, with every seed."""
    correlation: Correlation


@dataclass(frozen=True, kw_only=True)
class Peak:
    """When in the training the replicas of a graph are furthest apart, as a share of its steps, over seeds."""

    metric: str
    graph: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The white-box ranking of one set of runs that differ in graph and seed only."""

    runs: tuple[Run, ...]
    """All of them, also those that diverged."""
    graphs: tuple[str, ...]
    """Those that are ranked, by name."""
    seeds: tuple[int, ...]
    """The seeds that count: those with which every graph that is ranked ran to the end."""
    excluded: int
    """Runs left out because they diverged, or because a graph diverged with the same seed."""
    accuracy: dict[str, float]
    """Final accuracy of each graph's averaged model, mean over seeds."""
    rankings: tuple[Ranking, ...]
    connections: dict[str, Correlation]
    """How accuracy goes with `degree` (mean over the training) and with `spectral_gap`: +1 = the more, the better."""
    peaks: tuple[Peak, ...]
    reason: str
    """Why there is no ranking, in a sentence; empty where there is one."""

    @property
    def run(self) -> Run:
        """One of the runs, for the settings that all share."""
        return self.runs[0]

    def rows(self) -> list[dict[str, Any]]:
        """A plain row for each metric and phase, and for each measure of connectedness."""
        shared = {name: getattr(self.run, name) for name in ("task", "workers", "lr_rule", "algorithm")}
        shared |= {"seeds": len(self.seeds), "excluded": self.excluded}
        rankings = [
            {**shared, "against": ranking.metric, "phase": ranking.phase, **asdict(ranking.correlation)}
            for ranking in self.rankings
        ]
        connections = [
            {**shared, "against": name, "phase": "all", **asdict(correlation)}
            for name, correlation in self.connections.items()
        ]
        return rankings + connections


def rank_analyses(results: Sequence[RunResult]) -> list[Analysis]:
    """The ranking of every set of comparable decentralized runs, in order of appearance.

    Centralized runs have equal replicas at all times, and so no rank.
    """
    comparable: dict[tuple[Any, ...], list[RunResult]] = {}
    for result in results:
        if result.run.algorithm != CENTRALIZED:
            settings = tuple(value for name, value in asdict(result.run).items() if name not in _OWN)
            comparable.setdefault(settings, []).append(result)
    return [_analysis(members) for members in comparable.values()]


def _analysis(results: list[RunResult]) -> Analysis:
    finished = [result for result in results if result.status == "finished" and result.epochs]
    graphs = tuple(dict.fromkeys(result.run.graph for result in finished))
    by_place = {(result.run.graph, result.run.seed): result for result in finished}
    all_seeds = sorted({result.run.seed for result in finished})
    seeds = tuple(seed for seed in all_seeds if all((graph, seed) in by_place for graph in graphs))
    ranked = [[by_place[graph, seed] for seed in seeds] for graph in graphs]
    reason = _why_not(graphs, seeds)
    accuracy = {graph: _mean(runs, _accuracy) for graph, runs in zip(graphs, ranked, strict=True) if runs}
    return Analysis(
        runs=tuple(result.run for result in results),
        graphs=graphs,
        seeds=seeds,
        excluded=len(results) - len(graphs) * len(seeds),
        accuracy=accuracy,
        rankings=() if reason else tuple(_rankings(graphs, ranked, accuracy)),
        connections={} if reason else _connections(graphs, ranked, accuracy),
        peaks=tuple(peaks(finished)),
        reason=reason,
    )


def _why_not(graphs: tuple[str, ...], seeds: tuple[int, ...]) -> str:
    if not graphs:
        return "No decentralized run came to its end, so there is nothing to rank."
    if len(graphs) == 1:
        return f"Only one graph ({graphs[0]}) came to its end: a ranking needs at least two."
    if not seeds:
        return "No seed came to its end on every graph, so the graphs cannot be ranked alike."
    return ""


def _rankings(graphs: tuple[str, ...], ranked: list[list[RunResult]], accuracy: dict[str, float]) -> Iterable[Ranking]:
    by_accuracy = rankdata([-accuracy[graph] for graph in graphs])
    everything = [result for runs in ranked for result in runs]
    cells = _Cells(everything)
    for metric in _metrics_of(everything):
        ranks, progress = _ranks(ranked, cells, metric)
        for phase, (after, until) in PHASES.items():
            inside = ranks[:, (progress > after + _SAME) & (progress <= until + _SAME)]
            if inside.size:
                mean = inside.mean(axis=1)
                yield Ranking(
                    metric=metric,
                    phase=phase,
                    ranks={graph: float(rank) for graph, rank in zip(graphs, mean, strict=True)},
                    correlation=correlate(mean, by_accuracy),
                )


def _ranks(ranked: list[list[RunResult]], cells: "_Cells", metric: str) -> tuple[Floats, Floats]:
    """Ranks `[graphs, cells]` of all (seed, probe, tensor), and at which share of the training each cell is.

    A cell that a graph lacks, or where its value is not a number, is left out for all of them.
    """
    ranks, progress = [], []
    for runs in zip(*ranked, strict=True):  # one seed, all graphs
        values = np.stack([cells.values(result, metric) for result in runs])
        known = np.isfinite(values).all(axis=0)
        ranks.append(rankdata(np.where(values < _ROUNDING, 0.0, values)[:, known], axis=0))
        progress.append(((cells.steps + 1) / runs[0].run.num_steps).repeat(cells.num_tensors)[known])
    return np.concatenate(ranks, axis=1), np.concatenate(progress)


class _Cells:
    """All probes and tensors of some runs, in one order, as a run's own rows may be fewer."""

    def __init__(self, results: list[RunResult]) -> None:
        self.steps = np.unique(np.concatenate([result.tensors["step"] for result in results]))
        names = dict.fromkeys(name for result in results for name in result.tensors["tensor"])
        self.num_tensors = len(names)
        place = {name: i for i, name in enumerate(names)}
        self._cells = {
            result.run: np.searchsorted(self.steps, result.tensors["step"]) * len(names)
            + np.array([place[name] for name in result.tensors["tensor"]])
            for result in results
        }

    def values(self, result: RunResult, metric: str) -> Floats:
        """The values of a run, probe by probe; not a number where it has none."""
        values = np.full(len(self.steps) * self.num_tensors, np.nan)
        values[self._cells[result.run]] = result.tensors[metric]
        return values


def _metrics_of(results: Sequence[RunResult]) -> list[str]:
    return [metric for metric in METRICS if all(result.tensors.get(metric) for result in results)]


def _connections(
    graphs: tuple[str, ...], ranked: list[list[RunResult]], accuracy: dict[str, float]
) -> dict[str, Correlation]:
    accuracies = np.array([accuracy[graph] for graph in graphs])
    degrees = np.array([_mean(runs, _degree) for runs in ranked])
    gaps = np.array([runs[0].run.schedule().spectral_gap() for runs in ranked])
    return {"degree": correlate(degrees, accuracies), "spectral_gap": correlate(gaps, accuracies)}


def peaks(finished: Sequence[RunResult]) -> Iterable[Peak]:
    """When replicas are furthest apart, for every metric and graph of some runs that came to their end."""
    for metric in _metrics_of(finished):
        for graph in dict.fromkeys(result.run.graph for result in finished):
            found = [_peak(result, metric) for result in finished if result.run.graph == graph]
            if shares := [share for share in found if share is not None]:
                yield Peak(metric=metric, graph=graph, mean=fmean(shares), low=min(shares), high=max(shares))


def _peak(result: RunResult, metric: str) -> float | None:
    """The share of the training at whose end a measure is largest; None where replicas never differ. The consensus
    distance is that of the whole model: of tensors near zero it is large from the start, whatever they do."""
    values = np.nan_to_num(np.array([probe[metric] for probe in result.probes], dtype=float))
    if values.max(initial=0.0) < _ROUNDING:
        return None
    return float((result.probes[int(values.argmax())]["step"] + 1) / result.run.num_steps)


def _accuracy(result: RunResult) -> float:
    return float(result.final["accuracy"])


def _degree(result: RunResult) -> float:
    return fmean(row["degree"] for row in result.epochs)


def _mean(results: list[RunResult], of: Callable[[RunResult], float]) -> float:
    return fmean(of(result) for result in results)
