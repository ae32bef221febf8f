"""The table of final numbers, a row a graph, setting by setting."""

from collections.abc import Callable, Hashable, Sequence
from html import escape
from typing import NamedTuple

from ._groups import Group, by_setting
from ._labels import RULES
from ._measures import ACCURACIES, CONSENSUS, GINI, PERPLEXITY, SENT, STALENESS, TIME, Measure
from ._numbers import MISSING, num_bytes, percent, scientific, size

_MOST_ROWS = 16
"""Up to here a table shows all settings at first."""

_APART = ' class="apart"'
"""Columns that are needed only while several settings are in sight."""


class _Column(NamedTuple):
    family: str
    """What several neighbours have in common; empty for a column on its own."""
    head: str
    cell: Callable[[Group], str]


def results_table(groups: Sequence[Group]) -> str:
    """Mean ± standard deviation over the seeds that ran to the end; under a row, why others did not.

    With several settings there is a body each, and a switch that leaves only the one that is chosen.
    """
    settings = by_setting(groups)
    columns = _columns(groups)
    bodies = "\n".join(
        f'<tbody data-setting="{place}">'
        + "\n".join(_row(group, columns) + _reasons(group, len(columns) + 1) for group in members)
        + "</tbody>"
        for place, members in enumerate(settings.values())
    )
    table = f'<div class="scroll"><table class="results">\n{_head(columns)}\n{bodies}\n</table></div>'
    return table if len(settings) < 2 else _rows_switch(len(groups)) + table


def _rows_switch(num_rows: int) -> str:
    shows_all = num_rows <= _MOST_ROWS
    return (
        '<div class="switch" id="rows" role="group" aria-label="rows of the table">'
        + "".join(
            f'<button type="button" value="{value}" aria-pressed="{str(pressed).lower()}">{words}</button>'
            for value, words, pressed in (("all", "all settings", shows_all), ("one", "the chosen one", not shows_all))
        )
        + "</div>"
    )


def swatch(group: Group) -> str:
    """The colour of a graph."""
    kind = "swatch dashed" if group.is_centralized else "swatch"
    return f'<i class="{kind}" style="--colour: var({group.colour.variable})"></i>'


def _columns(groups: Sequence[Group]) -> list[_Column]:
    settings = {group.setting for group in groups}
    sent: dict[Hashable, float] = {}
    for group in groups:
        if group.is_centralized and (spread := group.final(SENT)):
            sent.setdefault(group.family, spread.mean)
    apart = {
        "Task": (len({s.task for s in settings}), lambda group: escape(group.setting.task)),
        "Workers": (len({s.workers for s in settings}), lambda group: str(group.setting.workers)),
        "Rule": (len({s.rule for s in settings}), lambda group: RULES[group.setting.rule]),
    }
    scores = {measure.key: measure for group in groups for measure in group.scores}
    others = [measure for measure in (PERPLEXITY, *scores.values()) if any(group.has(measure) for group in groups)]
    return [
        *(_Column("", name, cell) for name, (number, cell) in apart.items() if number > 1),
        *(_Column("Accuracy, %", measure.label, _final(measure)) for measure in ACCURACIES),
        *(
            _Column("Test text" if measure is PERPLEXITY else "Score", measure.label, _final(measure))
            for measure in others
        ),
        _Column("Consensus distance", "in training", lambda group: scientific(group.over_training(CONSENSUS))),
        _Column("Consensus distance", "at the end", _final(CONSENSUS)),
        _Column("Dispersion", "Gini in training", lambda group: scientific(group.over_training(GINI))),
        _Column("Sent per worker", "total", _final(SENT)),
        _Column("Sent per worker", "× all-reduce", lambda group: _relative(group, sent.get(group.family))),
        *(
            _Column("By the clock", head, _final(measure))
            for head, measure in (("virtual s", TIME), ("staleness", STALENESS))
            if any(group.has(measure) for group in groups)
        ),
    ]


def _head(columns: Sequence[_Column]) -> str:
    upper, lower = ['<th rowspan="2" scope="col">Graph</th>'], []
    for place, (family, head, _) in enumerate(columns):
        if not family:
            upper.append(f'<th class="apart" rowspan="2" scope="col">{escape(head)}</th>')
            continue
        lower.append(f'<th scope="col">{escape(head)}</th>')
        if place == 0 or columns[place - 1].family != family:
            width = sum(column.family == family for column in columns)
            upper.append(f'<th colspan="{width}" scope="colgroup">{family}</th>')
    return f"<thead>\n<tr>{''.join(upper)}</tr>\n<tr>{''.join(lower)}</tr>\n</thead>"


def _row(group: Group, columns: Sequence[_Column]) -> str:
    cells = "".join(f"<td{'' if column.family else _APART}>{column.cell(group)}</td>" for column in columns)
    return f'<tr><th scope="row">{swatch(group)}{escape(group.label)}</th>{cells}</tr>'


def _final(measure: Measure) -> Callable[[Group], str]:
    """How the final figure of a measure is written."""

    def cell(group: Group) -> str:
        spread = group.final(measure)
        if spread is None:
            return MISSING
        if measure is SENT:
            return num_bytes(spread.mean)
        if measure.kind == "distance":
            return scientific(size(spread.mean))
        write = percent if measure.kind == "share" else "{:.2f}".format
        return write(spread.mean) + ("" if spread.std is None else f" <small>± {write(spread.std)}</small>")

    return cell


def _relative(group: Group, baseline: float | None) -> str:
    sent = group.final(SENT)
    return f"{sent.mean / baseline:.2f}" if sent is not None and baseline else MISSING


def _reasons(group: Group, width: int) -> str:
    return "".join(
        f'\n<tr class="diverged"><td colspan="{width}"><strong>Diverged</strong>, seed {run.run.seed}: '
        f"{escape(run.reason)}</td></tr>"
        for run in group.diverged
    )
