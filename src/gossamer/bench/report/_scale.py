"""Plots across settings: accuracy against the number of workers, and against the learning-rate rule."""

import math
from collections.abc import Sequence

from ._groups import Group
from ._labels import RULES, Setting
from ._measures import Measure
from ._numbers import finite
from ._plots import Json, View, all_y, axis, dash, error_bars, hover, trace

_ASIDE = 0.012
"""How far lines stand beside each other, in shares of the axis, lest bars of equal graphs cover each other."""


def against_workers(groups: Sequence[Group], setting: Setting, measure: Measure) -> View:
    """One line a graph over the sizes that were trained under the rule of the setting."""
    shown = [group for group in groups if (group.setting.task, group.setting.rule) == (setting.task, setting.rule)]
    sizes = sorted({group.setting.workers for group in shown})
    traces = _lines(shown, measure, {group: math.log(group.setting.workers) for group in shown})
    for member in traces:
        member["x"] = [finite(math.exp(x)) for x in member["x"]]
    x_axis = {
        "type": "log",
        "title": {"text": "workers"},
        "tickvals": sizes,
        "ticktext": [str(size) for size in sizes],
    }
    return traces, {"xaxis": x_axis, "yaxis": axis(measure, all_y(traces))}


def against_rules(groups: Sequence[Group], setting: Setting, measure: Measure) -> View:
    """One line a graph over the rules that were tried with as many workers as in the setting."""
    shown = [
        group for group in groups if (group.setting.task, group.setting.workers) == (setting.task, setting.workers)
    ]
    rules = sorted({group.setting.rule for group in shown}, key=list(RULES).index)
    traces = _lines(shown, measure, {group: float(rules.index(group.setting.rule)) for group in shown})
    x_axis = {
        "title": {"text": "learning-rate rule"},
        "tickvals": list(range(len(rules))),
        "ticktext": [RULES[rule] for rule in rules],
        "range": [-0.3, len(rules) - 0.7],
        "zeroline": False,
    }
    return traces, {"xaxis": x_axis, "yaxis": axis(measure, all_y(traces))}


def _lines(groups: Sequence[Group], measure: Measure, place: dict[Group, float]) -> list[Json]:
    traces = []
    labels = list(dict.fromkeys(group.label for group in groups))
    width = max(place.values(), default=0.0) - min(place.values(), default=0.0)
    for i, label in enumerate(labels):
        members = sorted((group for group in groups if group.label == label), key=place.__getitem__)
        known = [(group, spread) for group in members if (spread := group.final(measure)) is not None]
        if known:
            first, beside = known[0][0], _ASIDE * width * (i - (len(labels) - 1) / 2)
            traces.append(
                trace(
                    first,
                    x=[finite(place[group] + beside) for group, _ in known],
                    y=[finite(spread.mean) for _, spread in known],
                    error_y=error_bars(first, [spread.std for _, spread in known]),
                    mode="lines+markers",
                    line={"color": first.colour.variable, "width": 2.2, "dash": dash(first)},
                    marker={"size": 8},
                    hovertemplate=f"{hover(measure)}<extra>%{{fullData.name}}</extra>",
                )
            )
    return traces
