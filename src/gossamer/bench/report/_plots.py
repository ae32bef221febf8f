"""What all plots share: views, traces that the page can hide by graph, axes, and texts that are safe.

A plot is a plain dictionary in the words of Plotly, and the page draws it. Colours are names of CSS variables
(`--ink`), which the page resolves in the theme that it shows.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._groups import Group, Series
from ._measures import Measure
from ._numbers import finite

Json = dict[str, Any]
View = tuple[list[Json], Json]
"""Traces and layout."""
Views = dict[tuple[str, ...], View]
"""By what its switches must say for it to be shown."""

SHARE: Json = {"tickformat": "~%", "hoverformat": ".2%"}
LOG: Json = {"type": "log", "exponentformat": "power", "hoverformat": ".2e", "tickfont": {"size": 10}}
"""Plotly writes powers of ten a quarter larger than other numbers, hence the small font."""
HEAT = [[i / 4, f"--heat-{i}"] for i in range(5)]
"""The colours of heat maps, from little to much."""
HEAT_BAR: Json = {
    "orientation": "h",
    "x": 1,
    "xanchor": "right",
    "y": 1,
    "yanchor": "bottom",
    "len": 0.5,
    "thickness": 10,
    "outlinewidth": 0,
    "tickangle": 0,
}
"""Their key: a bar above the plot, on the right."""

_FEW_EPOCHS = 8
"""Up to here each epoch gets a dot: one epoch alone would be a line without length."""
_LONGEST_NAME = 22
"""Characters of a name beside an axis."""
_MOST_NAMES = 9
"""Names of points inside a plot."""
_MOST_POWERS = 6
"""Powers of ten beside an axis."""
_FEW_POWERS, _LESS_THAN_ONE = 2.0, 0.7
"""Powers of ten that an axis spans up to which 2 and 5 are marked too, and up to which Plotly finds round numbers."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with one or more views that switches on the page choose from."""

    height: int
    views: Views = field(default_factory=dict)
    trace: Json = field(default_factory=dict)
    """What all traces of all views have in common, said once."""
    layout: Json = field(default_factory=dict)
    """What the layouts of all views have in common."""

    def json(self, choices: Sequence[Sequence[str]]) -> Json:
        """What the page's script reads: the view for every combination of choices, null where it would be empty."""
        views = [self._view(combination) for combination in _combinations(choices)]
        return {"trace": self.trace, "layout": {"height": self.height, **self.layout}, "views": views}

    def _view(self, combination: tuple[str, ...]) -> Json | None:
        data, layout = self.views.get(combination, ([], {}))
        return {"data": data, "layout": layout} if data else None


def _combinations(choices: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """All of them, the last choice fastest.

    >>> _combinations([["a", "b"], ["x", "y"]])
    [('a', 'x'), ('a', 'y'), ('b', 'x'), ('b', 'y')]
    """
    made: list[tuple[str, ...]] = [()]
    for names in choices:
        made = [(*before, name) for before in made for name in names]
    return made


def trace(group: Group, **settings: Any) -> Json:
    """Something that belongs to a graph: `legendgroup` is how the page hides a graph in all plots at once."""
    return {"type": "scatter", "name": plot_text(group.label), "legendgroup": group.label, **settings}


def line(group: Group, x: Sequence[float | None], y: Series, **settings: Any) -> Json:
    """A curve of a graph. The baseline is dashed, as grey alone may pass for a grid line."""
    return trace(
        group,
        x=x,
        y=y,
        mode="lines+markers" if len(x) <= _FEW_EPOCHS else "lines",
        line={"color": group.colour.variable, "width": 2.2, "dash": dash(group)},
        marker={"size": 6},
        **settings,
    )


def dash(group: Group) -> str:
    return "6px,3px" if group.is_centralized else "solid"


def per_epoch(groups: Sequence[Group], y_axis: Json) -> Json:
    """The layout of whatever goes over epochs."""
    num_epochs = max((member.run.epochs for group in groups for member in group.runs), default=0)
    x_axis = {"title": {"text": "epoch"}, "unifiedhovertitle": {"text": "epoch %{x}"}, **whole_epochs(num_epochs)}
    return {"xaxis": x_axis, "yaxis": y_axis, "hovermode": "x unified"}


def whole_epochs(number: int) -> Json:
    """Marks at every epoch where there are few: half epochs mean nothing."""
    return {"dtick": 1} if number <= _FEW_EPOCHS else {}


def axis(measure: Measure, values: Iterable[float | None]) -> Json:
    """The axis for values of a measure."""
    if measure.kind == "share":
        return SHARE
    return log_axis(values) if measure.is_log else {}


def log_axis(values: Iterable[float | None]) -> Json:
    """A logarithmic axis with no more marks than its length can bear."""
    logs = [math.log10(value) for value in values if value and math.isfinite(value)]
    span = max(logs) - min(logs) if logs else 0.0
    if span < _LESS_THAN_ONE:
        return LOG | {"nticks": 6}
    if span < _FEW_POWERS:
        return LOG | {"dtick": "D2"}
    return LOG | {"dtick": math.ceil(span / _MOST_POWERS)}


def all_y(traces: Iterable[Json]) -> list[float | None]:
    """Every height in a plot."""
    return [value for member in traces for value in member["y"]]


def hover(measure: Measure, axis_name: str = "y") -> str:
    """How a value of a measure is written beside the pointer."""
    form = {"share": ".2%", "distance": ".2e", "loss": ".4~g", "score": ".4~g"}[measure.kind]
    return f"%{{{axis_name}:{form}}}"


def error_bars(group: Group, spreads: Sequence[float | None]) -> Json:
    """Standard deviations over seeds, where there are any."""
    if not any(spreads):
        return {}
    return {
        "type": "data",
        "array": [finite(spread or 0.0) for spread in spreads],
        "color": group.colour.variable,
        "thickness": 1.2,
        "width": 4,
    }


def padded(values: Sequence[float], share: float) -> list[float]:
    """The range of an axis that shows all values, with a share of it free at each end."""
    margin = share * (max(values) - min(values)) or 0.01
    return [min(values) - margin, max(values) + margin]


def name_ticks(names: Sequence[str], every: int = 1) -> Json:
    """An axis of names, or of some of them; long ones are cut in the middle, as their ends tell them apart."""
    return {
        "tickvals": list(range(0, len(names), every)),
        "ticktext": [plot_text(shortened(name)) for name in names[::every]],
        "automargin": True,
    }


def beside(groups: Sequence[Group]) -> bool:
    """Whether names fit beside points: few, and short. The legend has them anyway."""
    return len(groups) <= _MOST_NAMES and max((len(group.label) for group in groups), default=0) <= _LONGEST_NAME


def shortened(name: str) -> str:
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def plot_text(words: str) -> str:
    """Plotly reads its texts as HTML."""
    return html.escape(words)
