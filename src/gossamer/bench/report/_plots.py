"""What all plots share: views, traces that the page can hide by graph, and texts that are safe.

A plot is a plain dictionary in the words of Plotly, and the page draws it. Colours are names of CSS variables
(`--ink`), which the page resolves in the theme that it shows.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ._groups import Group, Series

Json = dict[str, Any]
View = tuple[list[Json], Json]
"""Traces and layout."""

SHARE: Json = {"tickformat": "~%", "hoverformat": ".2%"}
LOG: Json = {"type": "log", "exponentformat": "power", "hoverformat": ".2e", "tickfont": {"size": 10}}
"""Plotly writes powers of ten a quarter larger than other numbers, hence the small font."""

_FEW_EPOCHS = 8
"""Up to here each epoch gets a dot: one epoch alone would be a line without length."""
_LONGEST_NAME = 22
"""Characters of a name beside an axis."""


_NOTHING: View = (
    [],
    {
        "height": 120,
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "annotations": [
            {"text": "nothing to show", "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
        ],
    },
)
"""Where replicas never differ, or no run has finished."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with one or more views, by name, that a switch on the page chooses from."""

    height: int
    views: dict[str, View] = field(default_factory=dict)

    def json(self) -> Json:
        """What the page's script reads."""
        views = [(data, layout) if data else _NOTHING for data, layout in self.views.values()] or [_NOTHING]
        return {"views": [{"data": data, "layout": {"height": self.height, **layout}} for data, layout in views]}


def trace(group: Group, **settings: Any) -> Json:
    """Something that belongs to a graph: `legendgroup` is how the page hides a graph in all plots at once."""
    return {"type": "scatter", "name": plot_text(group.label), "legendgroup": group.label, **settings}


def line(group: Group, x: Sequence[float | None], y: Series, **settings: Any) -> Json:
    """A curve of a graph. The baseline is dashed, as grey alone may pass for a grid line."""
    dash = "6px,3px" if group.is_centralized else "solid"
    return trace(
        group,
        x=x,
        y=y,
        mode="lines+markers" if len(x) <= _FEW_EPOCHS else "lines",
        line={"color": group.colour.variable, "width": 2.2, "dash": dash},
        marker={"size": 6},
        **settings,
    )


def per_epoch(groups: Sequence[Group], y_axis: Json) -> Json:
    """The layout of whatever goes over epochs."""
    num_epochs = max((member.run.epochs for group in groups for member in group.runs), default=0)
    whole = {"dtick": 1} if num_epochs <= _FEW_EPOCHS else {}
    x_axis = {"title": {"text": "epoch"}, "unifiedhovertitle": {"text": "epoch %{x}"}, **whole}
    return {"xaxis": x_axis, "yaxis": y_axis, "hovermode": "x unified"}


def padded(values: Sequence[float], share: float) -> list[float]:
    """The range of an axis that shows all values, with a share of it free at each end."""
    margin = share * (max(values) - min(values)) or 0.01
    return [min(values) - margin, max(values) + margin]


def name_ticks(names: Sequence[str]) -> Json:
    """An axis of names; long ones are cut in the middle, as their ends tell them apart."""
    half = _LONGEST_NAME // 2
    short = [name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}" for name in names]
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [plot_text(name) for name in short],
        "automargin": True,
    }


def plot_text(words: str) -> str:
    """Plotly reads its texts as HTML."""
    return html.escape(words)
