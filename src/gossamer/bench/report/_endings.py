"""Plots of where runs ended: how accurate, how dispersed on the way, and at what cost."""

import math
from collections.abc import Sequence
from statistics import fmean

from ..store import RunResult
from ._groups import Group, over_training
from ._measures import AVERAGED, SENT, Measure
from ._numbers import byte_unit, finite, num_bytes, size
from ._plots import (
    Json,
    View,
    all_y,
    axis,
    beside,
    dash,
    error_bars,
    hover,
    line,
    log_axis,
    name_ticks,
    padded,
    plot_text,
    trace,
)

_NAME = "%{fullData.name}"


def final(groups: Sequence[Group], measure: Measure) -> View:
    """Where every run ended: a dot a seed, a stroke at their mean. Last differences need an axis of their own."""
    traces: list[Json] = []
    ends: list[float] = []
    for place, group in enumerate(groups):
        values = group.ends(measure)
        if not values:
            continue
        ends += values
        colour = group.colour.variable
        dots = {"size": 9, "color": colour, "opacity": 0.55}
        stroke = {"symbol": "line-ns", "size": 11, "line": {"width": 3, "color": colour}}
        for shown, marker in ((values, dots), ([fmean(values)], stroke)):
            traces.append(
                trace(
                    group,
                    x=[finite(value) for value in shown],
                    y=[place] * len(shown),
                    mode="markers",
                    marker=marker,
                    hovertemplate=f"{hover(measure, 'x')}<extra>%{{fullData.name}}</extra>",
                )
            )
    labels = name_ticks([group.label for group in groups])
    y_axis = {**labels, "range": [len(groups) - 0.5, -0.5], "showgrid": False, "zeroline": False}
    x_axis = {"title": {"text": "after the last epoch"}, "nticks": 6, "showgrid": True, **axis(measure, ends)}
    if ends and measure.kind == "share":
        x_axis["range"] = padded(ends, 0.08)
    return traces, {"xaxis": x_axis, "yaxis": y_axis}


def dispersed(groups: Sequence[Group], measure: Measure) -> list[tuple[Group, RunResult, float]]:
    """Finished decentralized runs with their mean dispersion over the training, where there is any."""
    return [
        (group, run, dispersion)
        for group in groups
        if not group.is_centralized
        for run in group.finished
        if (dispersion := size(over_training(run, measure)))
    ]


def scatter(groups: Sequence[Group], measure: Measure) -> View:
    """A point for each decentralized run; the centralized mean, which has no dispersion, as a level."""
    points = dispersed(groups, measure)
    traces = [
        trace(
            group,
            x=[dispersion],
            y=[finite(run.final[AVERAGED.key])],
            mode="markers",
            marker={"size": 12, "color": group.colour.variable, "line": {"width": 1.5, "color": "--paper"}},
            name=plot_text(f"{group.label}, seed {run.run.seed}"),
            hovertemplate="%{y:.2%} at %{x:.2e}<extra>%{fullData.name}</extra>",
        )
        for group, run, dispersion in points
    ]
    along = [dispersion for _, _, dispersion in points]
    levels = [_level(group, along) for group in groups if group.is_centralized and group.finished] if along else []
    x_axis = {"title": {"text": f"{measure.label}, mean over the training"}, **log_axis(along)}
    return [*levels, *traces], {"xaxis": x_axis, "yaxis": {"title": {"text": "final accuracy"}, **axis(AVERAGED, [])}}


def _level(group: Group, along: list[float]) -> Json:
    """The mean final accuracy of a graph, as a line across the plot."""
    level = finite(fmean(group.ends(AVERAGED)))
    return trace(
        group,
        x=[min(along) * 0.97, max(along) * 1.03],
        y=[level, level],
        mode="lines+text",
        line={"color": group.colour.variable, "width": 1.5, "dash": dash(group)},
        text=["", f"{plot_text(group.label)}<br> "],  # the empty line keeps it off the dashes
        textposition="top left",
        cliponaxis=False,
        textfont={"color": group.colour.variable},
        hovertemplate=f"%{{y:.2%}}<extra>{plot_text(group.label)}</extra>",
    )


def cost(groups: Sequence[Group], measure: Measure) -> View:
    """Where each graph ended against all that a worker sent for it, with the spread over seeds."""
    known = [
        (group, sent.mean, ending)
        for group in groups
        if (ending := group.final(measure)) is not None and (sent := group.final(SENT)) is not None and sent.mean > 0
    ]
    names = _names_of_points([(finite(sent), finite(ending.mean), group.label) for group, sent, ending in known])
    traces = [
        trace(
            group,
            x=[finite(sent)],
            y=[finite(ending.mean)],
            mode="markers+text",
            marker={"size": 11, "color": group.colour.variable, "symbol": _symbol(group)},
            error_y=error_bars(group, [ending.std]),
            text=[plot_text(name) if beside(groups) else ""],
            textposition="middle right",
            textfont={"size": 11, "color": group.colour.variable},
            cliponaxis=False,
            hovertemplate=f"{hover(measure)} for {num_bytes(sent)}<extra>{_NAME}</extra>",
        )
        for (group, sent, ending), name in zip(known, names, strict=True)
    ]
    return traces, _bytes_layout([member["x"][0] for member in traces], axis(measure, all_y(traces)))


def _names_of_points(points: Sequence[tuple[float | None, float | None, str]]) -> list[str]:
    """What stands beside each point; of points in the same place, the first names all.

    >>> _names_of_points([(1.0, 0.9, "all-reduce"), (1.0, 0.9, "complete"), (2.0, 0.8, "ring")])
    ['  all-reduce, complete', '', '  ring']
    """
    places: dict[tuple[float | None, float | None], list[str]] = {}
    for x, y, label in points:
        places.setdefault((x, y), []).append(label)
    return [
        f"  {', '.join(places[x, y])}" if places[x, y][0] == label else ""  # spaces keep it off the point
        for x, y, label in points
    ]


def cost_on_the_way(groups: Sequence[Group], measure: Measure, y_range: Json) -> View:
    """A measure over all that a worker has sent by then."""
    traces = []
    for group in groups:
        sent, curve = group.curve(SENT), group.curve(measure)
        at = dict(zip(sent.epochs, sent.mean, strict=True))
        known = [(at[epoch], value) for epoch, value in zip(curve.epochs, curve.mean, strict=True) if at.get(epoch)]
        if known:
            scale, unit = byte_unit(max(cost or 0.0 for cost, _ in known))
            traces.append(
                line(
                    group,
                    [cost for cost, _ in known],
                    [value for _, value in known],
                    customdata=[finite((cost or 0.0) / scale) for cost, _ in known],
                    hovertemplate=f"{hover(measure)} after %{{customdata:.3~g}} {unit}<extra>{_NAME}</extra>",
                )
            )
    along = [value for member in traces for value in member["x"]]
    return traces, _bytes_layout(along, axis(measure, all_y(traces)) | y_range)


def _symbol(group: Group) -> str:
    return "diamond" if group.is_centralized else "circle"


def _bytes_layout(along: Sequence[float | None], y_axis: Json) -> Json:
    """A logarithmic axis of bytes whose marks carry units: graphs differ by factors."""
    known = [value for value in along if value]
    marks = _byte_marks(min(known), max(known)) if known else [1.0]
    ticks = {"tickvals": marks, "ticktext": [num_bytes(mark) for mark in marks]}
    ends = [math.log10(marks[0]) - 0.02, math.log10(marks[-1]) + 0.02]
    return {"xaxis": {"type": "log", "title": {"text": "sent per worker"}, "range": ends, **ticks}, "yaxis": y_axis}


def _byte_marks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten in reach, or only these where that would be too many.

    >>> _byte_marks(1.5e6, 8e6), _byte_marks(1e3, 1e9)[:3]
    ([1000000.0, 2000000.0, 5000000.0, 10000000.0], [1000.0, 10000.0, 100000.0])
    """
    powers = [10.0**power for power in range(19)]
    every = [digit * power for power in powers for digit in (1, 2, 5)] if high / low < 300 else powers
    below = max((mark for mark in every if mark <= low), default=every[0])
    above = min((mark for mark in every if mark >= high), default=every[-1])
    return [mark for mark in every if below <= mark <= above]
