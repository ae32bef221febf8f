"""Who was dealt which classes, where workers see unlike data: a column a worker, a row a class."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low

import numpy as np

from ..store import RunResult
from ._groups import Group, thinned
from ._plots import HEAT, HEAT_BAR, Figure, Json, View, Views

_MOST_IN_ORDER = 128
"""Up to so many workers stand in the order of their ranks; more are put in order of their largest class, as columns of
a few pixels in any order are noise."""
_MOST_WORKERS, _MOST_ROWS = 1200, 50
"""Beyond, workers at even distances stand for all, and neighbouring classes share a row."""
_FEW_WORKERS = 20
"""Up to so many have their number under their column."""
_ROOM, _ROW_HEIGHTS = 480, (9, 26)
_TOP, _BOTTOM = 54, 56

Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class _Dealt:
    """The shards of one run."""

    classes: list[int]
    counts: Counts
    """Samples of each worker and class, `[workers, classes]`."""


def shards(groups: Sequence[Group]) -> Figure | None:
    """A view for each alpha and seed, all on one colour scale; None where no run says what its workers were dealt."""
    dealt = _by_draw(groups)
    views: Views = {
        (name, f"seed {seed}"): _view(of_seed) for name, seeds in dealt.items() for seed, of_seed in seeds.items()
    }
    if not views:
        return None
    tables = [data[0]["z"] for data, _ in views.values()]
    rows = max(map(len, tables))
    lowest, highest = _ROW_HEIGHTS
    row_height = min(max(_ROOM // rows, lowest), highest)
    layout: Json = {
        "yaxis": {"title": {"text": "class"}, "type": "category", "autorange": "reversed", "showgrid": False},
        "coloraxis": {
            "cmin": 0,
            "cmax": max(max(row) for table in tables for row in table),
            "colorscale": HEAT,
            "colorbar": {**HEAT_BAR, "nticks": 6},
        },
        "margin": {"t": _TOP, "b": _BOTTOM},
    }
    trace: Json = {
        "type": "heatmap",
        "coloraxis": "coloraxis",
        "hovertemplate": "worker %{x}, class %{y}: %{z} samples<extra></extra>",
    }
    return Figure(height=_TOP + _BOTTOM + row_height * rows, views=views, trace=trace, layout=layout)


def on_shards(groups: Sequence[Group]) -> str:
    """How unlike the workers are, in words for each alpha; empty where no run says what they were dealt."""
    said = [
        _sentence(name, list(seeds.values()), is_first=place == 0)
        for place, (name, seeds) in enumerate(_by_draw(groups).items())
    ]
    return " ".join(said)


def _by_draw(groups: Sequence[Group]) -> dict[str, dict[int, _Dealt]]:
    """The shards by alpha and seed. They follow from these and the data alone: all graphs and methods share them."""
    runs = [run for group in groups for run in group.runs if run.shards]
    runs.sort(key=lambda run: (run.run.alpha or 0.0, run.run.data_digest, run.run.seed))
    has_several_data = len({run.run.data_digest for run in runs}) > 1
    found: dict[str, dict[int, _Dealt]] = {}
    for run in runs:
        name = f"α = {run.run.alpha:g}" + (f", data {run.run.data_digest}" if has_several_data else "")
        seeds = found.setdefault(name, {})
        if run.run.seed not in seeds:
            seeds[run.run.seed] = _dealt(run)
    return found


def _dealt(result: RunResult) -> _Dealt:
    classes, places = np.unique(result.shards["class"], return_inverse=True)
    counts = np.zeros((result.run.workers, len(classes)), np.int64)
    counts[result.shards["worker"], places] = result.shards["samples"]
    return _Dealt(classes.tolist(), counts)


def _view(dealt: _Dealt) -> View:
    workers, num_classes = dealt.counts.shape
    in_a_row = math.ceil(num_classes / _MOST_ROWS)
    starts = range(0, num_classes, in_a_row)
    names = [_named(dealt.classes[start : start + in_a_row]) for start in starts]
    rows = np.add.reduceat(dealt.counts, starts, axis=1).T
    if workers <= _MOST_IN_ORDER:
        data = {"x": list(range(workers)), "y": names, "z": rows.tolist(), "xgap": 1, "ygap": 1}
        ticks = {"dtick": 1} if workers <= _FEW_WORKERS else {}
        return [data], {"xaxis": {"title": {"text": "worker", "standoff": 34}, "showgrid": False, **ticks}}
    shown = thinned(np.lexsort((-dealt.counts.max(axis=1), dealt.counts.argmax(axis=1))).tolist(), most=_MOST_WORKERS)
    data = {"x": [str(worker) for worker in shown], "y": names, "z": rows[:, shown].tolist()}
    which = f"{workers} workers" if len(shown) == workers else f"{len(shown)} of {workers} workers"
    title = {"text": f"{which}, in the order of their largest class", "standoff": 34}
    bare = {"showticklabels": False, "ticks": "", "showgrid": False}
    return [data], {"xaxis": {"title": title, "type": "category", **bare}}


def _named(classes: list[int]) -> str:
    return str(classes[0]) if len(classes) == 1 else f"{classes[0]}–{classes[-1]}"


def _sentence(name: str, seeds: list[_Dealt], *, is_first: bool) -> str:
    needed = [number for each in seeds for number in _num_needed(each.counts)]
    largest = [100 * share for each in seeds for share in each.counts.max(axis=1) / each.counts.sum(axis=1)]
    half, least, most = median_low(needed), min(needed), max(needed)
    classes = "a single one" if half == 1 else f"{half} or fewer"
    extremes = "" if least == most else f" ({least} at the least, {most} at the most)"
    middle, low, high = (f"{share:.0f}" for share in (median(largest), min(largest), max(largest)))
    if not is_first:
        return f"With {name} it is {classes}{extremes}, and {middle}\u00a0%, from {low} to {high}\u00a0%."
    return (
        f"With {name}, half of the workers have nine tenths of their samples from {classes} of the "
        f"{max(len(each.classes) for each in seeds)} classes{extremes}; the largest class of a worker makes up "
        f"{middle}\u00a0% of its samples in the median, from {low} to {high}\u00a0%."
    )


def _num_needed(counts: Counts) -> Iterator[int]:
    """How many classes make up nine tenths of the samples of each worker."""
    for sums in np.sort(counts, axis=1)[:, ::-1].cumsum(axis=1):
        yield int((10 * sums >= 9 * sums[-1]).argmax()) + 1
