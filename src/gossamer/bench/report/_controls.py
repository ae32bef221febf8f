"""What one clicks on: switches between the views of plots, and legends that hide a graph everywhere."""

from collections.abc import Sequence
from html import escape

from ._figures import Figures, choices_of
from ._groups import Group
from ._results_table import swatch

_LONGEST_SWITCH = 40
"""Letters of all its choices together up to which a switch is a row of buttons; beyond, a list to pull down."""


def switch(made: Sequence[Figures], *plots: str, axis: int = 0) -> str:
    """What makes one of the choices that the views of some plots depend on; nothing where there is no choice."""
    choices = choices_of(made, plots[0])
    if axis >= len(choices) or len(choices[axis]) < 2:
        return ""
    names = choices[axis]
    target = f'data-plots="{" ".join(plots)}" data-axis="{axis}"'
    if sum(map(len, names)) > _LONGEST_SWITCH:
        options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(names))
        return f'<select class="switch" {target} aria-label="what is shown" autocomplete="off">{options}</select>'
    buttons = "".join(
        f'<button type="button" value="{i}" aria-pressed="{"false" if i else "true"}">{escape(name)}</button>'
        for i, name in enumerate(names)
    )
    return f'<div class="switch" {target} role="group" aria-label="what is shown">{buttons}</div>'


def legend(groups: Sequence[Group], *plots: str) -> str:
    """The key of some plots; the page leaves out graphs that are in none of them. A click hides a graph everywhere."""
    first = {group.label: group for group in reversed(groups)}
    keys = (
        f'<button type="button" data-graph="{escape(label)}" aria-pressed="true">'
        f"{swatch(first[label])}{escape(label)}</button>"
        for label in dict.fromkeys(group.label for group in groups)
    )
    target = f'data-plots="{" ".join(plots)}"'
    return f'<div class="legend" {target} role="group" aria-label="graphs shown">{"".join(keys)}</div>'
