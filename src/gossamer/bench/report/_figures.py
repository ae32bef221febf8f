"""The plots of a page, for every setting."""

from collections.abc import Mapping, Sequence

from ..ranks import Analysis
from ._curves import degree, over_epochs, over_time, without_the_start
from ._endings import cost, cost_on_the_way, final, scatter
from ._groups import Group, by_setting
from ._heat_map import FEWEST_COLUMNS, MOST_COLUMNS, heat_map, num_cells
from ._labels import Setting
from ._measures import ACCURACIES, AVERAGED, CONSENSUS, DIFFERENCES, DISPERSIONS, PERPLEXITY, QUALITIES, TIME, Measure
from ._plots import Figure, Json, Views
from ._rank_section import rank_plot
from ._scale import against_rules, against_workers
from ._shards import shards
from ._staleness import staleness

_MOST_CELLS = 600_000
"""Of all heat maps together, at 2.7 bytes each."""
AT_THE_END, ON_THE_WAY = "at the end", "on the way"
BY_EPOCH, BY_TIME = "by epoch", "by virtual time"

Figures = dict[str, Figure]
"""By the id of their place in the page."""


def figures(groups: Sequence[Group], analyses: Mapping[Setting, Sequence[Analysis]]) -> list[Figures]:
    """The plots of every setting."""
    settings = by_setting(groups)
    cells = sum(num_cells(members) for members in settings.values())
    columns = max(min(MOST_COLUMNS, _MOST_CELLS // max(cells, 1)), FEWEST_COLUMNS)
    made = []
    is_timed = any(group.has(TIME) for group in groups)
    for setting, members in settings.items():
        made.append(_of_setting(members, columns, is_timed) | _across(groups, setting))
        if (ranks := rank_plot(members, analyses[setting])) is not None:
            made[-1]["ranks"] = ranks
    return made or [_of_setting([], columns, is_timed)]


def figures_json(made: Sequence[Figures]) -> Json:
    """What the page's script reads. A plot that is the same in several settings is there once.

    `choices` are what the switches of a plot offer, in any setting; `of` is the panel of each setting, null for none.
    """
    plots: Json = {}
    for name in dict.fromkeys(name for figures in made for name in figures):
        choices = choices_of(made, name)
        panels: list[Json] = []
        of: list[int | None] = []
        for figures in made:
            panel = figures[name].json(choices) if name in figures else None
            if panel is not None and panel not in panels:
                panels.append(panel)
            of.append(None if panel is None else panels.index(panel))
        plots[name] = {"choices": choices, "panels": panels, "of": of}
    return plots


def choices_of(made: Sequence[Figures], name: str) -> list[list[str]]:
    """What the switches of a plot offer, in order of appearance over all settings."""
    views = [choice for figures in made if name in figures for choice in figures[name].views]
    return [list(dict.fromkeys(names)) for names in zip(*views, strict=True)] if views else []


def _of_setting(groups: list[Group], columns: int, is_timed: bool) -> Figures:
    qualities = _qualities(groups)
    measured = [m for m in (AVERAGED, PERPLEXITY) if m in qualities]
    made = {
        "accuracy": Figure(height=420, views=_curves(groups, qualities, is_timed)),
        "final": Figure(height=420, views={(m.label,): final(groups, m) for m in qualities}),
        "consensus": Figure(height=360, views=_curves(groups, [CONSENSUS], is_timed)),
        "dispersion": Figure(height=360, views=_curves(groups, DISPERSIONS, is_timed)),
        "scatter": Figure(height=400, views={(m.label,): scatter(groups, m) for m in DIFFERENCES}),
        "tensors": heat_map(groups, most_columns=columns),
        "bytes": Figure(height=380, views=_costs(groups, measured)),
    }
    if changing := [group for group in groups if group.changes]:
        made["degree"] = Figure(height=220, views={("degree",): degree(changing)})
    if stale := [group for group in groups if group.staleness]:
        made["staleness"] = Figure(height=260, views={("staleness",): staleness(stale)})
    if (dealt := shards(groups)) is not None:
        made["shards"] = dealt
    return made


def _curves(groups: list[Group], measures: Sequence[Measure], is_timed: bool) -> Views:
    """Over epochs, and over time where any run of the page has a clock."""
    if not is_timed:
        return {(m.label,): over_epochs(groups, m) for m in measures}
    by = {BY_EPOCH: over_epochs, BY_TIME: over_time}
    return {(m.label, words): draw(groups, m) for m in measures for words, draw in by.items()}


def _qualities(groups: Sequence[Group]) -> list[Measure]:
    return [m for m in QUALITIES if m in ACCURACIES or any(group.has(m) for group in groups)]


def _costs(groups: list[Group], measured: list[Measure]) -> Views:
    views: Views = {}
    for m in measured:
        views[AT_THE_END, m.label] = cost(groups, m)
        views[ON_THE_WAY, m.label] = cost_on_the_way(groups, m, without_the_start(groups, m))
    return views


def _across(everything: Sequence[Group], setting: Setting) -> Figures:
    """Plots over all settings of the task, where there are several sizes or rules."""
    made = {}
    groups = [group for group in everything if group.setting.task == setting.task]
    qualities, settings = _qualities(groups), [group.setting for group in groups]
    if len({other.workers for other in settings if other.rule == setting.rule}) > 1:
        made["scale"] = Figure(height=380, views={(m.label,): against_workers(groups, setting, m) for m in qualities})
    if len({other.rule for other in settings if other.workers == setting.workers}) > 1:
        made["rules"] = Figure(height=380, views={(m.label,): against_rules(groups, setting, m) for m in qualities})
    return made
