"""Plots over epochs: how a measure goes on each graph, with the spread over seeds."""

from collections.abc import Sequence

from ..ranks import Peak
from ..store import RunResult
from ._groups import Curve, Group, Series, thinned
from ._measures import TIME, Measure
from ._numbers import finite
from ._plots import Json, View, all_y, axis, hover, line, log_axis, padded, per_epoch, plot_text, trace

_FAR_APART = 8
"""So many times longer the slowest may take before a linear axis of time would squeeze the fastest."""


def over_epochs(groups: Sequence[Group], measure: Measure) -> View:
    """For each graph a band over seeds, their mean as a line, and every diverged run dotted up to its end.

    A diamond on the line is where the replicas of the graph are furthest apart.
    """
    bands, lines, marks, broken = [], [], [], []
    for group in groups:
        curve = group.curve(measure)
        if any(value is not None for value in curve.mean):
            lines.append(line(group, curve.epochs, curve.mean))
            if peak := group.peaks.get(measure.key):
                marks.append(_mark(group, curve, peak))
            if len(group.finished) > 1:
                bands.append(_band(group, curve.epochs, curve.low, curve.high))
        broken += [_broken(group, run, measure) for run in group.diverged if run.epochs]
    y_axis = axis(measure, all_y([*bands, *lines])) | without_the_start(groups, measure)
    return [*bands, *lines, *marks, *broken], per_epoch(groups, y_axis)


def over_time(groups: Sequence[Group], measure: Measure) -> View:
    """The same against virtual time, the mean over seeds."""
    bands, lines = [], []
    for group in groups:
        times, curve = group.curve(TIME), group.curve(measure)
        at = {epoch: time for epoch, time in zip(times.epochs, times.mean, strict=True) if time is not None}
        kept = [i for i, epoch in enumerate(curve.epochs) if epoch in at and curve.mean[i] is not None]
        if not kept:
            continue
        x = [at[curve.epochs[i]] for i in kept]
        epochs = [curve.epochs[i] for i in kept]
        lines.append(
            line(
                group,
                x,
                [curve.mean[i] for i in kept],
                customdata=epochs,
                hovertemplate=f"{hover(measure)} after %{{x:.3~g}} s, epoch %{{customdata}}"
                "<extra>%{fullData.name}</extra>",
            )
        )
        if len(group.finished) > 1:
            bands.append(_band(group, x, [curve.low[i] for i in kept], [curve.high[i] for i in kept]))
    y_axis = axis(measure, all_y([*bands, *lines])) | without_the_start(groups, measure)
    return [*bands, *lines], {"xaxis": _time_axis([member["x"] for member in lines]), "yaxis": y_axis}


def _time_axis(times: Sequence[Sequence[float]]) -> Json:
    title = {"title": {"text": "virtual time, s"}}
    ends = [along[-1] for along in times]
    if not ends or max(ends) < _FAR_APART * min(ends):
        return {**title, "rangemode": "tozero"}
    return log_axis([time for along in times for time in along]) | title


def without_the_start(groups: Sequence[Group], measure: Measure) -> Json:
    """The range of an axis of shares without the steep first tenth of the training, so that later differences show."""
    if measure.kind != "share":
        return {}
    curves = [group.curve(measure) for group in groups]
    series = [values[len(values) // 10 :] for curve in curves for values in (curve.low, curve.high)]
    late = [value for values in series for value in values if value is not None]
    return {"range": padded(late, 0.03)} if late else {}


def degree(groups: Sequence[Group]) -> View:
    """How many neighbours a worker has in each epoch, as the longest run saw it."""
    traces = []
    for group in groups:
        rows = thinned(max((run.epochs for run in group.runs), key=len))
        steps = line(group, [row["epoch"] for row in rows], [row["degree"] for row in rows])
        traces.append(steps | {"mode": "lines+markers", "line": steps["line"] | {"shape": "hvh"}})
    return traces, per_epoch(groups, {"title": {"text": "degree"}, "rangemode": "tozero"})


def _band(group: Group, epochs: Sequence[float], low: Series, high: Series) -> Json:
    """One outline: along the highest seeds, and back along the lowest."""
    known = [(x, a, b) for x, a, b in zip(epochs, low, high, strict=True) if a is not None and b is not None]
    return trace(
        group,
        x=[x for x, _, _ in known] + [x for x, _, _ in reversed(known)],
        y=[b for _, _, b in known] + [a for _, a, _ in reversed(known)],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=group.colour.band,
        hoverinfo="skip",
    )


def _mark(group: Group, curve: Curve, peak: Peak) -> Json:
    """On the point of the curve that is nearest: a row is a mean over the probes since the row before."""
    epoch = peak.mean * group.runs[0].run.epochs
    place = min(range(len(curve.epochs)), key=lambda i: (curve.epochs[i] < epoch - 1e-6, abs(curve.epochs[i] - epoch)))
    return trace(
        group,
        x=[curve.epochs[place]],
        y=[curve.mean[place]],
        mode="markers",
        marker={
            "symbol": "diamond",
            "size": 10,
            "color": "--paper",
            "line": {"width": 2, "color": group.colour.variable},
        },
        hoverinfo="skip",
    )


def _broken(group: Group, run: RunResult, measure: Measure) -> Json:
    rows = thinned([row for row in run.epochs if measure.key in row])
    return trace(
        group,
        x=[row["epoch"] for row in rows],
        y=[finite(row[measure.key]) for row in rows],
        mode="lines+markers",
        line={"color": group.colour.variable, "width": 1.2, "dash": "dot"},
        marker={"symbol": "x", "size": [0] * (len(rows) - 1) + [10]},
        name=plot_text(f"{group.label}, seed {run.run.seed} (diverged)"),
    )
