"""Dispersion by tensor and epoch: where in the model replicas differ, and when."""

import math
from collections.abc import Sequence

import numpy as np

from ._groups import Group, Series
from ._measures import VARIATION
from ._numbers import size
from ._plots import Figure, Json, name_ticks, plot_text

_ROOM = 700
"""Pixels that the rows share, as long as none gets too low for its name or needlessly high."""
_ROW_HEIGHTS = (14, 28)
_MOST_TICKS = 5
_TOP, _BOTTOM = 54, 56
_COLOURS = [[i / 4, f"--heat-{i}"] for i in range(5)]


def heat_map(groups: Sequence[Group]) -> Figure:
    """A view for each graph, on one colour scale for all of them so that they compare.

    Colours are logarithmic, as replicas come closer by orders of magnitude; zeros stay blank.
    """
    tables = {group.label: table for group in groups if any(map(any, (table := _by_tensor(group)).values()))}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    logs = [math.log10(value) for table in tables.values() for row in table.values() for value in row if value]
    scale = _colour_scale(logs)
    lowest, highest = _ROW_HEIGHTS
    row_height = min(max(_ROOM // max(len(names), 1), lowest), highest)
    figure = Figure(height=_TOP + _BOTTOM + row_height * len(names))
    for label, table in tables.items():
        rows = list(table.values())
        heat = {
            "type": "heatmap",
            "x": list(range(1, len(rows[0]) + 1)),
            "y": [plot_text(name) for name in table],
            "z": [[round(math.log10(value), 3) if value else None for value in row] for row in rows],
            "customdata": rows,
            "coloraxis": "coloraxis",
            "hovertemplate": "%{y}<br>epoch %{x}: %{customdata:.2e}<extra></extra>",
            "hoverongaps": False,
            "xgap": 1,
            "ygap": 1,
        }
        y_axis = {**name_ticks(names), "type": "category", "autorange": "reversed", "showgrid": False}
        x_axis = {"title": {"text": "epoch", "standoff": 34}, "showgrid": False, "tickformat": "d"}
        figure.views[label] = (
            [heat],
            {"xaxis": x_axis, "yaxis": y_axis, "coloraxis": scale, "margin": {"t": _TOP, "b": _BOTTOM}},
        )
    return figure


def _by_tensor(group: Group) -> dict[str, Series]:
    """The coefficient of variation of every tensor in every epoch: mean over the epoch's probes and over seeds."""
    if not group.finished:
        return {}
    run = group.finished[0].run
    names = list(dict.fromkeys(group.finished[0].tensors["tensor"]))
    place = {name: i for i, name in enumerate(names)}
    sums, counts = np.zeros((len(names), run.epochs)), np.zeros((len(names), run.epochs))
    for result in group.finished:
        cells = (
            np.array([place[name] for name in result.tensors["tensor"]]),
            np.array(result.tensors["step"]) // run.steps_per_epoch,
        )
        np.add.at(sums, cells, result.tensors[VARIATION.key])
        np.add.at(counts, cells, 1)
    means = (sums / counts.clip(min=1)).tolist()
    return {name: [size(value) for value in row] for name, row in zip(names, means, strict=True)}


def _colour_scale(logs: list[float]) -> Json:
    lowest, highest = (min(logs), max(logs)) if logs else (-1.0, 0.0)
    every = math.ceil(max(highest - lowest, 1) / _MOST_TICKS)
    powers = range(math.ceil(lowest), math.floor(highest) + 1, every)
    return {
        "colorscale": _COLOURS,
        "cmin": lowest,
        "cmax": highest,
        "colorbar": {
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "yanchor": "bottom",
            "len": 0.5,
            "thickness": 10,
            "outlinewidth": 0,
            "tickangle": 0,
            "tickvals": list(powers),
            "ticktext": [f"10<sup>{power}</sup>".replace("-", "−") for power in powers],
        },
    }
