"""The table of final numbers, a row a graph."""

from collections.abc import Sequence
from html import escape

from ..summary import Summary
from ._groups import Group
from ._measures import ACCURACIES, CONSENSUS, GINI, SENT, Measure
from ._numbers import MISSING, num_bytes, percent, scientific, size

_HEAD = f"""<thead>
<tr><th rowspan="2" scope="col">Graph</th><th colspan="3" scope="colgroup">Accuracy, %</th>
<th colspan="2" scope="colgroup">Consensus distance</th><th scope="colgroup">Dispersion</th>
<th colspan="2" scope="colgroup">Sent per worker</th></tr>
<tr>{"".join(f'<th scope="col">{measure.label}</th>' for measure in ACCURACIES)}
<th scope="col">in training</th><th scope="col">at the end</th><th scope="col">Gini in training</th>
<th scope="col">total</th><th scope="col">× all-reduce</th></tr>
</thead>"""
_NUM_COLUMNS = 9


def results_table(groups: Sequence[Group]) -> str:
    """Mean ± standard deviation over the seeds that ran to the end; under a row, why others did not."""
    baseline = next((group.summary[SENT.key] for group in groups if group.is_centralized), None)
    body = "\n".join(_row(group, baseline) + _reasons(group) for group in groups)
    return f'<div class="scroll"><table class="results">\n{_HEAD}\n<tbody>\n{body}\n</tbody></table></div>'


def swatch(group: Group) -> str:
    """The colour of a graph."""
    kind = "swatch dashed" if group.is_centralized else "swatch"
    return f'<i class="{kind}" style="--colour: var({group.colour.variable})"></i>'


def _row(group: Group, baseline: float | None) -> str:
    row = group.summary
    sent = row[SENT.key]
    relative = f"{sent / baseline:.2f}" if sent is not None and baseline else MISSING
    cells = [
        *(_with_spread(row, measure) for measure in ACCURACIES),
        scientific(group.over_training(CONSENSUS)),
        scientific(size(row[CONSENSUS.key])),
        scientific(group.over_training(GINI)),
        num_bytes(sent),
        relative,
    ]
    return (
        f'<tr><th scope="row">{swatch(group)}{escape(group.label)}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
    )


def _with_spread(row: Summary, measure: Measure) -> str:
    spread = row[f"{measure.key}_std"]
    return percent(row[measure.key]) + ("" if spread is None else f" <small>± {percent(spread)}</small>")


def _reasons(group: Group) -> str:
    return "".join(
        f'\n<tr class="diverged"><td colspan="{_NUM_COLUMNS}"><strong>Diverged</strong>, seed {run.run.seed}: '
        f"{escape(run.reason)}</td></tr>"
        for run in group.diverged
    )
