"""The table of final numbers, a row a graph, setting by setting; cells carry what a reader may sort by."""

from collections.abc import Callable, Hashable, Sequence
from html import escape
from math import isinf
from typing import NamedTuple

from ._groups import Group, by_setting
from ._labels import RULES
from ._measures import ACCURACIES, CONSENSUS, GINI, PERPLEXITY, SENT, STALENESS, TIME, Measure
from ._numbers import MISSING, finite, num_bytes, percent, scientific, size

_MOST_ROWS = 16
"""Up to here a table shows all settings at first."""

_APART = ' class="apart"'
"""Columns that are needed only while several settings are in sight."""

_LARGEST_IS_BEST = ("Accuracy, %", "Score")
"""Families of columns; in all others the smallest number is the best."""


class _Cell(NamedTuple):
    text: str
    number: float | None = None
    """What rows are sorted by."""


class _Column(NamedTuple):
    family: str
    """What several neighbours have in common; empty for a column on its own."""
    head: str
    cell: Callable[[Group], _Cell]


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
        "Task": (len({s.task for s in settings}), lambda group: _Cell(escape(group.setting.task))),
        "Workers": (len({s.workers for s in settings}), lambda group: _Cell(str(group.setting.workers))),
        "Rule": (len({s.rule for s in settings}), lambda group: _Cell(RULES[group.setting.rule])),
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
        _Column("Consensus distance", "in training", _over_training(CONSENSUS)),
        _Column("Consensus distance", "at the end", _final(CONSENSUS)),
        _Column("Dispersion", "Gini in training", _over_training(GINI)),
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
        best = "descending" if family in _LARGEST_IS_BEST else "ascending"
        lower.append(f'<th data-best="{best}" scope="col">{escape(head)}</th>')
        if place == 0 or columns[place - 1].family != family:
            width = sum(column.family == family for column in columns)
            upper.append(f'<th colspan="{width}" scope="colgroup">{family}</th>')
    return f"<thead>\n<tr>{''.join(upper)}</tr>\n<tr>{''.join(lower)}</tr>\n</thead>"


def _row(group: Group, columns: Sequence[_Column]) -> str:
    cells = "".join(_td(column.cell(group), "" if column.family else _APART) for column in columns)
    return f'<tr><th scope="row">{swatch(group)}{escape(group.label)}</th>{cells}</tr>'


def _td(cell: _Cell, attributes: str) -> str:
    number = finite(cell.number)
    value = "" if number is None else f' data-value="{number:g}"'
    return f"<td{attributes}{value}>{cell.text}</td>"


def _final(measure: Measure) -> Callable[[Group], _Cell]:
    """The final figure of a measure, as it is written."""

    def cell(group: Group) -> _Cell:
        spread = group.final(measure)
        if spread is None:
            return _Cell(MISSING)
        if isinf(spread.mean):
            return _Cell("∞")
        if measure is SENT:
            return _Cell(num_bytes(spread.mean), spread.mean)
        if measure.kind == "distance":
            return _distance(size(spread.mean))
        write = percent if measure.kind == "share" else "{:.2f}".format
        std = "" if spread.std is None else f" <small>± {write(spread.std)}</small>"
        return _Cell(write(spread.mean) + std, spread.mean)

    return cell


def _over_training(measure: Measure) -> Callable[[Group], _Cell]:
    return lambda group: _distance(group.over_training(measure))


def _distance(value: float | None) -> _Cell:
    return _Cell(scientific(value), value)


def _relative(group: Group, baseline: float | None) -> _Cell:
    sent = group.final(SENT)
    if sent is None or not baseline:
        return _Cell(MISSING)
    share = sent.mean / baseline
    return _Cell(f"{share:.2f}", share)


def _reasons(group: Group, width: int) -> str:
    return "".join(
        f'\n<tr class="diverged"><td colspan="{width}"><strong>Diverged</strong>, seed {run.run.seed}: '
        f"{escape(run.reason)}</td></tr>"
        for run in group.diverged
    )
