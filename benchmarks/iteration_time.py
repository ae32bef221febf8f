"""Iteration times of decentralized training in real processes, beside those of its peers: ratios, round by round.

    python benchmarks/iteration_time.py run --out benchmarks/DATE-iteration-time          on one machine
    python benchmarks/iteration_time.py links --out benchmarks/DATE-iteration-time        across links, as root
    python benchmarks/iteration_time.py table benchmarks/DATE-iteration-time

Contenders: no communication at all (`none`, the floor), PyTorch's DDP (`ddp`), its post-local SGD with an average every
4 steps (`post-local-sgd`), torchft's fault-tolerant DDP (`torchft`), Decent-DP and Gossamer's `decentralize` on four
topologies each, the latter also two steps behind its neighbours (`gossamer-2-behind`). All train the same perceptron on
the same batches with the same AdamW, one thread a worker, over gloo.
In each round every contender trains for some iterations in turn, in a random order. A ratio is that of two times of one
round; its median and quartiles over the rounds are what counts. With jitter every worker sleeps in each iteration for a
time drawn from an exponential distribution; all contenders get the same draws.

Peers are optional; what is not installed is left out. Without their own wish for a torch:

    pip install --no-deps decent-dp==0.2.3 loguru torchft-nightly
    pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http

Hivemind is not among them: its peers meet through a distributed hash table and wait there for each other for seconds
before each average, so that it has no iteration time to compare.

A case that has its rows already is not measured again: a run that was stopped goes on.
"""

import csv
import io
import json
import os
import platform
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gossamer._files import write_text
from side_by_side.cases import LINKS, MODELS, Case, grid, linked
from side_by_side.contenders import CONTENDERS, Contender, chosen
from side_by_side.launch import rows_of
from side_by_side.network import check_possible
from side_by_side.summary import OURS, Bar, Spread, Summary, bars, summarize

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
Row = dict[str, Any]
QUICK = Case(workers=2, model="tiny")
_WIDTH = 140
"""Of tables that go into a file."""
_NUMBERS = ("workers", "round", "iterations")
_NEW_COLUMNS = {"device": "cpu"}
"""What rows from before there was such a column have in it."""
_PACKAGES = ("gossamer", "torch", "decent-dp", "torchft-nightly")

Out = Annotated[Path, typer.Option(help="Folder for rows.csv and environment.json.")]
Names = Annotated[str, typer.Option(help="Which contenders, with commas; one topology as in gossamer:ring.")]
Rounds = Annotated[int, typer.Option(help="Rounds, in which each contender has a turn.")]
Iterations = Annotated[int | None, typer.Option(help="Timed iterations a turn; fewer for large models, if not given.")]
ALL = ",".join(dict.fromkeys(contender.name for contender in CONTENDERS))


@app.command()
def run(
    out: Out,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "4,8",
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}.")] = "small,middle,large",
    jitter: Annotated[str, typer.Option(help="Mean sleep in each iteration, in ms.")] = "0,20",
    contenders: Names = ALL,
    rounds: Rounds = 9,
    iterations: Iterations = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda: all workers share the first GPU, over gloo.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Two workers, a tiny model, two rounds: does it run?")] = False,
) -> None:
    """Measure on this machine."""
    cases = [QUICK] if quick else grid(_listed(workers, int), _listed(models), _listed(jitter, float), device)
    _measure(cases, contenders, out, 2 if quick else rounds, iterations)


@app.command()
def links(
    out: Out,
    names: Annotated[str, typer.Option("--links", help=f"Of {', '.join(LINKS)}.")] = "100mbit,1gbit,2x2",
    models: Annotated[str, typer.Option(help="When not given, those that suit the links.")] = "",
    contenders: Names = ALL,
    rounds: Rounds = 9,
    iterations: Iterations = 12,
) -> None:
    """Measure across links of a given bandwidth, between network namespaces. Needs root, `ip` and `tc`."""
    check_possible()
    _measure(linked(_listed(names), _listed(models)), contenders, out, rounds, iterations)


@app.command()
def table(folder: Annotated[Path, typer.Argument(help="Folder that a measurement has filled.")]) -> None:
    """Print what was measured, and which bars are reached."""
    rows = read_rows(folder)
    if not rows:
        raise ValueError(f"there is no rows.csv in {folder}: give a folder that `run` or `links` has filled")
    _print(summarize(rows))


# ---- measuring ------------------------------------------------------------------------------------------------


def _measure(cases: list[Case], names: str, out: Path, rounds: int, iterations: int | None) -> None:
    if rounds < 1 or (iterations is not None and iterations < 1):
        raise ValueError(f"{rounds} rounds of {iterations} iterations: give 1 or more of each")
    contenders = _installed(chosen(_listed(names)))
    rows = read_rows(out)
    waiting = [case for case in cases if not _is_done(case, contenders, rows)]
    out.mkdir(parents=True, exist_ok=True)
    with _progress() as progress:
        task = progress.add_task("", total=len(waiting) * rounds * len(contenders))
        for case in waiting:
            progress.update(task, description=str(case))
            fresh = []
            turns = iterations or MODELS[case.model].iterations
            for row in rows_of(case, contenders, rounds=rounds, iterations=turns):
                fresh.append(_rounded(row | {"iterations": turns}))
                progress.advance(task)
            rows = [row for row in rows if Case.of(row) != case] + fresh
            write_text(out / "rows.csv", _as_csv(rows))
            write_text(out / "environment.json", json.dumps(environment(), indent=1) + "\n")
    _print([summary for summary in summarize(rows) if summary.case in cases])


def _installed(contenders: list[Contender]) -> list[Contender]:
    for package in sorted({contender.missing for contender in contenders if contender.missing}):
        Console(stderr=True).print(f"{package} is not installed and left out", style="yellow")
    return [contender for contender in contenders if not contender.missing]


def _is_done(case: Case, contenders: list[Contender], rows: list[Row]) -> bool:
    there = {Contender(row["name"], row["topology"]) for row in rows if Case.of(row) == case}
    return set(contenders) <= there


def _progress() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def environment() -> dict[str, Any]:
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "command": sys.argv[1:],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ---- files ----------------------------------------------------------------------------------------------------


def _as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rounded(row: Row) -> Row:
    """As it is kept: what is printed at once says the same as what is read again."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def read_rows(folder: Path) -> list[Row]:
    path = folder / "rows.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [_NEW_COLUMNS | {key: _value(key, text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(key: str, text: str) -> str | int | float:
    if key in _NUMBERS:
        return int(text)
    return float(text) if key.endswith("_ms") else text


def _listed(text: str, kind: type = str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",") if part]
    except ValueError:
        raise ValueError(f"{text!r}: give numbers with commas between them, as in 4,8") from None


# ---- what is shown --------------------------------------------------------------------------------------------


def _print(summaries: list[Summary]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for case in dict.fromkeys(summary.case for summary in summaries):
        console.print(_case_table([summary for summary in summaries if summary.case == case]))
    found = bars(summaries)
    if found:
        console.print(_bars_table(found))
        console.print(f"{sum(bar.is_reached for bar in found)} of {len(found)} bars are reached")


def _case_table(summaries: list[Summary]) -> Table:
    first = summaries[0]
    table = Table(
        title=f"{first.case}: ms an iteration, median of {first.rounds} rounds (quartiles)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("contender", no_wrap=True)
    for heading in ("iteration", "computed", "queued", "waited", "other\nthreads", "of DDP's", "of Decent-DP's"):
        table.add_column(heading, justify="right", no_wrap=True)
    limit = "links allow" if first.case.links else "jitter allows" if first.case.jitter_ms else None
    if limit:
        table.add_column(f"of what the\n{limit}", justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(
            f"{summary.name} {summary.topology}",
            _spread(summary.iteration_ms, 1),
            *(f"{value:.1f}" for value in summary.details_ms.values()),
            _spread(summary.to_ddp, 2),
            _spread(summary.to_decent_dp, 2),
            *([_spread(summary.to_least, 2)] if limit else []),
            style="bold" if summary.name in OURS else None,
        )
    return table


def _bars_table(found: list[Bar]) -> Table:
    table = Table(
        title="Bars for Gossamer's iteration time", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for heading in ("case", "contender", "times", "at most", "measured", ""):
        table.add_column(heading)
    for bar in found:
        table.add_row(
            str(bar.summary.case),
            f"{bar.summary.name} {bar.summary.topology}",
            bar.what,
            f"{bar.limit:.2f}" + (" within the spread" if bar.is_within_spread else ""),
            _spread(bar.value, 2),
            "[green]reached[/green]" if bar.is_reached else "[red]missed[/red]",
        )
    return table


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "–"
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}–{spread.high:.{digits}f})"


def main() -> None:
    try:
        app()
    except ValueError as error:
        print(f"iteration_time: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and namespaces go too
    main()
