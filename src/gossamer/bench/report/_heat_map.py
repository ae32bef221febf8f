"""Dispersion by tensor and time: where in the model replicas differ, and when."""

import base64
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._groups import Group, Series
from ._measures import CONSENSUS, DISPERSIONS, VARIATION, Measure
from ._numbers import ROUNDING, finite
from ._plots import HEAT, HEAT_BAR, Figure, Json, Views, name_ticks, plot_text, whole_epochs

MEASURES = (VARIATION, *(measure for measure in DISPERSIONS if measure is not VARIATION), CONSENSUS)
MOST_COLUMNS, FEWEST_COLUMNS = 60, 8
_ROOM = 700
"""Pixels that the rows share, as long as none gets too low to be seen or needlessly high."""
_ROW_HEIGHTS = (3, 28)
_LABEL_HEIGHT = 13
_HEIGHT_WITH_GAPS = 8
_MOST_TICKS = 5
_TOP, _BOTTOM = 54, 56
_BLANK = -32768
_SMALLEST, _LARGEST = -32.0, 32.0
"""Powers of ten that fit into two bytes in thousandths."""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.intp]]


class _Grid(NamedTuple):
    """The mean epoch of every column, and the row and column of every value of every finished run."""

    epochs: Series
    cells: list[tuple[Places, Places]]


def heat_map(groups: Sequence[Group], *, most_columns: int = MOST_COLUMNS) -> Figure:
    """A view for each graph and measure, on one colour scale a measure for all graphs so that they compare.

    Colours are logarithmic, as replicas come closer by orders of magnitude; zeros stay blank. Probes are averaged
    into at most so many columns.
    """
    shown = [group for group in groups if group.peaks]
    names = list(dict.fromkeys(name for group in shown for name in group.finished[0].tensors["tensor"]))
    grids = {group: _grid(group, names, most_columns) for group in shown}
    views: Views = {}
    for measure in MEASURES:
        logs = {group: _logs(group, measure, len(names), grids[group]) for group in shown if measure.key in group.peaks}
        scale = _scale(list(logs.values()))
        for group, table in logs.items():
            data = {"x": grids[group].epochs, "packed": _packed(table)}
            views[group.label, measure.label] = ([data], {"coloraxis": scale})
    return _figure(views, names, max((group.runs[0].run.epochs for group in shown), default=1))


def num_cells(groups: Sequence[Group]) -> int:
    """Cells of all views in one column: what the size of the page goes by."""
    return sum(len(set(group.finished[0].tensors["tensor"])) * len(group.peaks) for group in groups if group.peaks)


def _figure(views: Views, names: list[str], epochs: int) -> Figure:
    lowest, highest = _ROW_HEIGHTS
    row_height = min(max(_ROOM // max(len(names), 1), lowest), highest)
    gap = 1 if row_height >= _HEIGHT_WITH_GAPS else 0
    trace: Json = {
        "type": "heatmap",
        "y": [plot_text(name) for name in names],
        "coloraxis": "coloraxis",
        "hovertemplate": "%{y}<br>epoch %{x:.3~g}: %{customdata:.2e}<extra></extra>",
        "hoverongaps": False,
        "xgap": gap,
        "ygap": gap,
    }
    labels = name_ticks(names, every=math.ceil(_LABEL_HEIGHT / row_height))
    layout: Json = {
        "xaxis": {"title": {"text": "epoch", "standoff": 34}, "showgrid": False, **whole_epochs(epochs)},
        "yaxis": {**labels, "type": "category", "autorange": "reversed", "showgrid": False},
        "margin": {"t": _TOP, "b": _BOTTOM},
    }
    return Figure(height=_TOP + _BOTTOM + row_height * len(names), views=views, trace=trace, layout=layout)


def _grid(group: Group, names: list[str], most_columns: int) -> _Grid:
    """All probes in order, as evenly as can be, in so many columns at most; a row a tensor."""
    steps = np.unique(np.concatenate([result.tensors["step"] for result in group.finished]))
    column_of = np.arange(len(steps)) * min(len(steps), most_columns) // len(steps)
    centres = np.bincount(column_of, weights=steps + 1.0) / np.bincount(column_of)
    row_of = {name: row for row, name in enumerate(names)}
    cells = [
        (
            np.array([row_of[name] for name in result.tensors["tensor"]]),
            column_of[np.searchsorted(steps, result.tensors["step"])],
        )
        for result in group.finished
    ]
    return _Grid([finite(step / group.runs[0].run.steps_per_epoch) for step in centres], cells)


def _logs(group: Group, measure: Measure, num_rows: int, grid: _Grid) -> Floats:
    """Powers of ten `[tensors, columns]` of a measure, mean over probes and seeds; not a number where it is zero."""
    sums, counts = np.zeros((2, num_rows, len(grid.epochs)))
    for result, (rows, columns) in zip(group.finished, grid.cells, strict=True):
        values = np.array(result.tensors[measure.key], dtype=float)
        known = np.isfinite(values)
        np.add.at(sums, (rows[known], columns[known]), values[known])
        np.add.at(counts, (rows[known], columns[known]), 1)
    means = sums / counts.clip(min=1)
    logs: Floats = np.full_like(means, np.nan)
    np.log10(means, where=means >= ROUNDING, out=logs)
    return logs


def _packed(table: Floats) -> str:
    """Thousandths of powers of ten as two bytes each, row by row: a third of the size that numbers have in JSON."""
    whole = np.where(np.isfinite(table), np.clip(table, _SMALLEST, _LARGEST) * 1000, _BLANK)
    return base64.b64encode(np.round(whole).astype("<i2").tobytes()).decode("ascii")


def _scale(tables: list[Floats]) -> Json:
    """One colour scale for all of them."""
    known = np.concatenate([table[np.isfinite(table)] for table in tables]) if tables else np.array([])
    lowest, highest = (round(float(end), 3) for end in ((known.min(), known.max()) if known.size else (-1, 0)))
    every = math.ceil(max(highest - lowest, 1) / _MOST_TICKS)
    powers = range(math.ceil(lowest), math.floor(highest) + 1, every)
    return {
        "cmin": lowest,
        "cmax": highest,
        "colorscale": HEAT,
        "colorbar": {
            **HEAT_BAR,
            "tickvals": list(powers),
            "ticktext": [f"10<sup>{power}</sup>".replace("-", "−") for power in powers],
        },
    }
