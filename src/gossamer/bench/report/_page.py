"""Puts the page together: template, style, script, figures. Nothing in it is fetched from anywhere."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs
from scipy.stats import spearmanr

from gossamer._files import write_text

from ..experiment import Experiment, task_of
from ..store import RunResult
from ._colours import style_sheet
from ._configuration import configuration
from ._drawings import drawings
from ._figures import dispersed, figures
from ._finding import finding
from ._groups import Group, group
from ._measures import AVERAGED, CONSENSUS, DEFINED, Measure
from ._numbers import counted, listed
from ._plots import Figure
from ._results_table import results_table, swatch

_FEWEST_TO_CORRELATE = 5
_LONGEST_SWITCH = 40
"""Letters of all its choices together up to which a switch is a row of buttons; beyond, a list to pull down."""


def write_report(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Write the report of an experiment: one file that opens offline, in light and dark."""
    write_text(path, page(experiment, runs))


def page(experiment: Experiment, runs: Sequence[RunResult]) -> str:
    """The report as HTML."""
    groups = group(runs)
    plots = figures(groups)
    colours = [member.colour for member in groups]
    return Template(_file("page.html")).substitute(
        title=escape(_title(experiment)),
        finding=escape(finding(groups)),
        facts=_facts(experiment),
        style=_file("style.css"),
        light=style_sheet(colours, "light"),
        dark=style_sheet(colours, "dark"),
        table=results_table(groups),
        how_drawn=escape(_how_drawn(experiment)),
        legend=_legend(groups),
        zeros=escape(_zeros(groups)),
        correlation=escape(_correlation(groups)),
        graphs=drawings(groups),
        degree=_degree(plots),
        accuracy_switch=_switch(plots, "accuracy", "final"),
        dispersion_switch=_switch(plots, "dispersion"),
        tensors_switch=_switch(plots, "tensors"),
        definitions="".join(_definition(measure) for measure in DEFINED),
        configuration=configuration(experiment, runs),
        plotly=get_plotlyjs(),
        figures=_json({name: figure.json() for name, figure in plots.items()}),
        script=_file("page.js"),
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """JSON inside a script element: no `<` can end the element, and no NaN can break the parser."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _title(experiment: Experiment) -> str:
    return f"{experiment.task[0].upper()}{experiment.task[1:]} on {counted(max(experiment.sizes), 'replica')}"


def _facts(experiment: Experiment) -> str:
    run = experiment.runs()[0]
    facts = {
        "Task": task_of(run).summary,
        "Algorithm": experiment.algorithm,
        "Workers": f"{run.workers}, batches of {run.batch_size}",
        "Training": f"{counted(run.epochs, 'epoch')}, {counted(experiment.seeds, 'seed')}",
        "Engine": f"{run.engine} on {run.device}",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())


def _how_drawn(experiment: Experiment) -> str:
    seeds = f"Line: mean over {experiment.seeds} seeds. Band: lowest to highest."
    cut = "The view starts after the first steep epochs: double-click shows everything, dragging zooms in."
    is_cut = experiment.runs()[0].epochs >= 10
    return " ".join([seeds if experiment.seeds > 1 else "One seed, so no band.", *([cut] if is_cut else [])])


def _legend(groups: Sequence[Group]) -> str:
    """The key of all plots. A click hides a graph everywhere."""
    keys = (
        f'<button type="button" data-graph="{escape(member.label)}" aria-pressed="true">'
        f"{swatch(member)}{escape(member.label)}</button>"
        for member in groups
    )
    return f'<div class="legend" role="group" aria-label="graphs shown">{"".join(keys)}</div>'


def _switch(plots: dict[str, Figure], *names: str) -> str:
    """What chooses the view of one or more plots; nothing where there is no choice."""
    views = list(plots[names[0]].views)
    if len(views) < 2:
        return ""
    target = f'data-plots="{" ".join(names)}"'
    if sum(map(len, views)) > _LONGEST_SWITCH:
        choices = "".join(f'<option value="{i}">{escape(view)}</option>' for i, view in enumerate(views))
        return f'<select class="switch" {target} aria-label="what is shown">{choices}</select>'
    choices = "".join(
        f'<button type="button" value="{i}" aria-pressed="{"false" if i else "true"}">{escape(view)}</button>'
        for i, view in enumerate(views)
    )
    return f'<div class="switch" {target} role="group" aria-label="what is shown">{choices}</div>'


def _zeros(groups: Sequence[Group]) -> str:
    equal = [member.label for member in groups if member.over_training(CONSENSUS) == 0]
    if not equal:
        return ""
    return f"Not shown: {listed(equal)}, where replicas are equal at all times and a logarithmic axis has no zero."


def _correlation(groups: Sequence[Group]) -> str:
    points = [(dispersion, run.final[AVERAGED.key]) for _, run, dispersion in dispersed(groups)]
    n = len(points)
    if n < _FEWEST_TO_CORRELATE:
        return f"Too few decentralized runs for a rank correlation: {n}."
    dispersions, accuracies = zip(*points, strict=True)
    if len(set(dispersions)) == 1 or len(set(accuracies)) == 1:
        return f"All {n} decentralized runs are equal in one of the two, so there is no correlation."
    rho = float(spearmanr(dispersions, accuracies).statistic)
    return f"Spearman’s rank correlation over {n} decentralized runs: ρ = {rho:+.2f}.".replace("-", "−")


def _degree(plots: dict[str, Figure]) -> str:
    if "degree" not in plots:
        return ""
    return '<h3>Degree over time</h3><div class="plot" id="degree"></div>'


def _definition(measure: Measure) -> str:
    return (
        f'<div><dt>{escape(measure.label)}</dt><dd><span class="equation">{escape(measure.equation)}</span>'
        f"{escape(measure.meaning)}</dd></div>"
    )
