"""The graphs, drawn."""

from collections.abc import Hashable, Sequence
from html import escape

from gossamer.topologies import Mixing, draw_schedule_svg, draw_svg

from ._groups import Group
from ._results_table import swatch

_MOST_STAGES, _FEWEST_STAGES = 6, 2
"""Of a schedule; with several sizes on a page fewer each, lest drawings become most of it."""


def drawings(settings: Sequence[Sequence[Group]]) -> list[str]:
    """Small multiples of all graphs, for every setting; a graph that several settings share is drawn once."""
    made: dict[Hashable, str] = {}
    num_sizes = len({group.setting.workers for groups in settings for group in groups})
    most_stages = max(_MOST_STAGES // max(num_sizes, 1), _FEWEST_STAGES)
    return [_drawings(groups, most_stages, made) for groups in settings]


def _drawings(groups: Sequence[Group], most_stages: int, made: dict[Hashable, str]) -> str:
    drawn = []
    seen = set()
    for group in groups:
        if not group.is_centralized and group.schedule.name not in seen:
            seen.add(group.schedule.name)  # groups may differ in other things than their graph
            run = group.runs[0].run
            key = (group.label, group.schedule.name, run.workers, run.epochs, run.steps_per_epoch)
            if key not in made:
                made[key] = _drawing(group, most_stages)
            drawn.append(made[key])
    return "\n".join(drawn) or "<p>An all-reduce averages over everybody: there is no graph to draw.</p>"


def _drawing(group: Group, most_stages: int) -> str:
    """One graph with its degree and spectral gap; a schedule as a strip of its stages over time."""
    is_strip = group.schedule.period != 1
    kind = "graph strip scroll" if is_strip else "graph"
    return (
        f'<figure class="{kind}" style="--node: var({group.colour.variable}); --edge: var({group.colour.variable})">\n'
        f"<figcaption>{swatch(group)}<b>{escape(group.label)}</b> <span>{_facts(group)}</span></figcaption>\n"
        f"{_stages(group, most_stages) if is_strip else draw_svg(group.schedule(0), size=240)}</figure>"
    )


def _stages(group: Group, most: int) -> str:
    if not group.changes:
        return draw_schedule_svg(group.schedule, max_stages=most)
    run = group.runs[0].run

    def caption(step: int, mixing: Mixing) -> str:
        return f"epoch {step // run.steps_per_epoch + 1} · degree {mixing.degree}"

    return draw_schedule_svg(group.schedule, steps=run.num_steps, max_stages=most, caption=caption)


def _facts(group: Group) -> str:
    run = group.runs[0].run
    first, last = group.schedule(0).degree, group.schedule(run.num_steps - 1).degree
    degree = f"degree {first}" if first == last else f"degree {first} → {last}"
    return f"{degree} · spectral gap {group.gap:.3g}{' at the end' if group.changes else ''}"
