"""Puts the page together: template, style, script, figures. Nothing in it is fetched from anywhere."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs
from scipy.stats import spearmanr

from gossamer._files import write_text

from ..experiment import Experiment
from ..store import RunResult
from ._colours import style_sheet
from ._configuration import configuration
from ._controls import legend, switch
from ._drawings import drawings
from ._endings import dispersed
from ._figures import Figures, figures, figures_json
from ._finding import finding, on_workers
from ._finding_across import on_rules, on_scale
from ._groups import Group, by_setting, group
from ._labels import RULES, Setting
from ._measures import AVERAGED, CONSENSUS, DEFINED, GINI, LANGUAGE, Measure
from ._numbers import listed
from ._rank_section import analyses_of, on_peaks, rank_table
from ._results_table import results_table
from ._settings import chooser, first_shown, per_setting
from ._shards import on_shards
from ._subject import Subject
from ._timeline import timelines

_FEWEST_TO_CORRELATE = 5


def write_report(path: Path, experiment: Experiment, runs: Sequence[RunResult]) -> None:
    """Write the report of an experiment: one file that opens offline, in light and dark."""
    subject = Subject(runs=experiment.runs(), origin="Experiment", settings=asdict(experiment))
    write_page(path, subject, runs)


def write_page(path: Path, subject: Subject, runs: Sequence[RunResult]) -> None:
    """Write a page on any runs."""
    write_text(path, page(subject, runs))


def page(subject: Subject, runs: Sequence[RunResult]) -> str:
    """The page as HTML."""
    groups = group(runs)
    settings = by_setting(groups)
    analyses = {setting: analyses_of(members) for setting, members in settings.items()}
    plots = figures(groups, analyses)
    first = first_shown(list(settings))

    def following(text: Callable[[list[Group]], str], tag: str = "div") -> str:
        """A text for each setting, of which the page shows one."""
        return per_setting([text(members) for members in settings.values()] or [text([])], first, tag)

    graphs = drawings(list(settings.values()) or [[]])
    colours = {member.colour.variable: member.colour for member in groups}
    has_language = any(member.has(measure) for member in groups for measure in LANGUAGE)
    return Template(_file("page.html")).substitute(
        title=escape(subject.title),
        finding=following(lambda members: escape(_finding(groups, members)), "span"),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in subject.notes),
        facts=subject.facts(),
        style=_file("style.css"),
        light=style_sheet(list(colours.values()), "light"),
        dark=style_sheet(list(colours.values()), "dark"),
        chooser=chooser(list(settings)),
        table=results_table(groups),
        how_drawn=following(lambda members: escape(_how_drawn(members)), "span"),
        accuracy_legend=legend(groups, "accuracy", "final"),
        drift_legend=legend(groups, "consensus", "dispersion"),
        scatter_legend=legend(groups, "scatter"),
        bytes_legend=legend(groups, "bytes"),
        zeros=following(lambda members: escape(_zeros(members)), "span"),
        peaks=following(lambda members: escape(on_peaks(members)), "span"),
        correlation=following(lambda members: escape(_correlation(members)), "span"),
        ranks=following(lambda members: rank_table(members, analyses[members[0].setting] if members else [])),
        rank_plot=_rank_plot(plots),
        graphs=per_setting([f'<div class="graphs">{drawn}</div>' for drawn in graphs], first),
        degree=_degree(plots),
        shards=_shards(following(lambda members: escape(on_shards(members)), "span"), plots),
        across=_across(groups, plots),
        timeline=_timeline(list(settings.values()), plots, first),
        accuracy_switch=switch(plots, "accuracy", "final") + switch(plots, "accuracy", axis=1),
        drift_switch=switch(plots, "consensus", "dispersion", axis=1),
        dispersion_switch=switch(plots, "dispersion"),
        scatter_switch=switch(plots, "scatter"),
        tensors_switch=switch(plots, "tensors", axis=1) + switch(plots, "tensors"),
        bytes_switch=switch(plots, "bytes", axis=1) + switch(plots, "bytes"),
        definitions="".join(_definition(m) for m in (*DEFINED, *(LANGUAGE if has_language else ()))),
        configuration=configuration(subject, runs),
        plotly=get_plotlyjs(),
        figures=_json({"first": first, "plots": figures_json(plots)}),
        script=_file("page.js"),
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """JSON inside a script element: no `<` can end the element, and no NaN can break the parser."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _finding(everything: Sequence[Group], members: Sequence[Group]) -> str:
    """First what sizes and rules do, then what graphs do in the setting that is shown."""
    if not members:
        return finding(members)
    setting = members[0].setting
    said = [on_scale(everything, setting), on_rules(everything, setting), finding(members, _where(everything, setting))]
    return " ".join(filter(None, said))


def _where(everything: Sequence[Group], setting: Setting) -> str:
    """The setting, in as many words as tell it from the others."""
    tasks, rules = ({getattr(member.setting, name) for member in everything} for name in ("task", "rule"))
    more = [setting.task] * (len(tasks) > 1) + [f"{RULES[setting.rule]} rule"] * (len(rules) > 1)
    return on_workers(setting.workers) + (f" ({', '.join(more)})" if more else "")


def _how_drawn(members: Sequence[Group]) -> str:
    seeds = max((len(member.finished) for member in members), default=0)
    drawn = f"Line: mean over {seeds} seeds. Band: lowest to highest." if seeds > 1 else "One seed, so no band."
    cut = "The view starts after the first steep epochs: double-click shows everything, dragging zooms in."
    is_cut = any(member.runs[0].run.epochs >= 10 for member in members)
    return " ".join([drawn, *([cut] if is_cut else [])])


def _zeros(members: Sequence[Group]) -> str:
    equal = [member.label for member in members if member.over_training(CONSENSUS) == 0]
    if not equal:
        return ""
    return f"Not shown: {listed(equal)}, where replicas are equal at all times and a logarithmic axis has no zero."


def _correlation(members: Sequence[Group]) -> str:
    points = [(dispersion, run.final[AVERAGED.key]) for _, run, dispersion in dispersed(members, GINI)]
    n = len(points)
    if n < _FEWEST_TO_CORRELATE:
        return f"Too few decentralized runs for a rank correlation: {n}."
    dispersions, accuracies = zip(*points, strict=True)
    if len(set(dispersions)) == 1 or len(set(accuracies)) == 1:
        return f"All {n} decentralized runs are equal in one of the two, so there is no correlation."
    rho = float(spearmanr(dispersions, accuracies).statistic)
    said = f"Spearman’s rank correlation of Gini coefficient and accuracy over {n} decentralized runs: "
    said += f"ρ\u00a0=\u00a0{rho:+.2f}."
    return said.replace("-", "−")


def _rank_plot(plots: Sequence[Figures]) -> str:
    if not any("ranks" in made for made in plots):
        return ""
    return (
        '<figure class="frame"><div class="head"><h3>Accuracy against rank</h3>'
        f'{switch(plots, "ranks")}</div><div class="plot" id="ranks"></div></figure>'
    )


def _shards(said: str, plots: Sequence[Figures]) -> str:
    """The section on who sees which data; none where all workers see alike."""
    if not any("shards" in made for made in plots):
        return ""
    switches = switch(plots, "shards") + switch(plots, "shards", axis=1)
    return Template(_file("shards.html")).substitute(said=said, switches=switches)


def _timeline(settings: Sequence[Sequence[Group]], plots: Sequence[Figures], first: int) -> str:
    """The section on who waits for whom; none where no run says what its clock is."""
    drawn = timelines(settings)
    if not any(drawn):
        return ""
    groups = [group for members in settings for group in members]
    staleness = (
        f'<figure class="frame"><h3>How stale gradients are</h3>{legend(groups, "staleness")}'
        '<div class="plot" id="staleness"></div></figure>'
        if any("staleness" in made for made in plots)
        else ""
    )
    return Template(_file("timeline.html")).substitute(drawn=per_setting(drawn, first), staleness=staleness)


def _degree(plots: Sequence[Figures]) -> str:
    if not any("degree" in made for made in plots):
        return ""
    return '<div class="frame"><h3>Degree over time</h3><div class="plot" id="degree"></div></div>'


def _across(groups: Sequence[Group], plots: Sequence[Figures]) -> str:
    """The section on sizes and rules, where there are several."""
    titles = {"scale": "More workers", "rules": "Learning-rate rule"}
    shown = [name for name in titles if any(name in made for made in plots)]
    if not shown:
        return ""
    frames = "".join(
        f'<figure class="frame"><h3>{titles[name]}</h3><div class="plot" id="{name}"></div></figure>' for name in shown
    )
    shrunk = len({member.runs[0].run.batch_size for member in groups}) > 1
    return Template(_file("across.html")).substitute(
        switch=switch(plots, *shown),
        legend=legend(groups, *shown),
        frames=frames,
        batches="Batches are not of the same size everywhere: few samples are left for a worker among many. " * shrunk,
    )


def _definition(measure: Measure) -> str:
    return (
        f'<div><dt>{escape(measure.label)}</dt><dd><span class="equation">{escape(measure.equation)}</span>'
        f"{escape(measure.meaning)}</dd></div>"
    )
