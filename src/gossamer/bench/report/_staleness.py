"""How stale gradients are, as a distribution."""

from collections.abc import Sequence

from ._groups import Group
from ._numbers import finite
from ._plots import SHARE, View, trace


def staleness(groups: Sequence[Group]) -> View:
    """The share of gradients by how often the model was mixed between reading and applying, a bar a method."""
    traces = []
    for group in groups:
        total = sum(group.staleness.values())
        traces.append(
            trace(
                group,
                type="bar",
                x=list(group.staleness),
                y=[finite(number / total) for number in group.staleness.values()],
                marker={"color": group.colour.variable},
                hovertemplate="%{y:.2%} of gradients, %{x} in between<extra>%{fullData.name}</extra>",
            )
        )
    x_axis = {"title": {"text": "mixings between reading the parameters and applying the gradient"}, "dtick": 1}
    if max(stale for group in groups for stale in group.staleness) > 16:
        del x_axis["dtick"]
    return traces, {"xaxis": x_axis, "yaxis": SHARE, "barmode": "group", "bargap": 0.25}
