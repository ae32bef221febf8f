"""What `gossamer bench` shows in a terminal: live progress, and the table at the end."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table

from .events import EpochDone, Event, RunDone, RunStarted, SweepStarted
from .one_run import Run
from .outcome import Row
from .summary import Summary, extra_quantities
from .sweep import Results

_ROUNDING = 1e-15
"""What is below is rounding, not a distance."""
_LEFT_TO_THE_REPORT = ("test_loss", "virtual_s", "staleness_mean", "staleness_max")
"""Accuracy or perplexity says what the loss means; virtual time has a column of its own."""
_DISPENSABLE = ("\nat end", "worst\nreplica", "peak\nrate", "Gini of\nnorms", "mean\nreplica")
"""Columns that are left out, in this order, where the terminal is too narrow; the report has them all."""
_LONGEST_GRAPH = 30
"""Letters up to which the name of a graph stays on one line."""


class Progress:
    """Which runs, which epochs, how accurate, how far apart, how long still. On standard error."""

    def __init__(self, *, silent: bool = False) -> None:
        self._bars = Bars(
            TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
            disable=silent,
        )
        self._all = self._bars.add_task("all epochs", total=None, note="", visible=False)
        self._running: dict[Run, TaskID] = {}
        self._epochs: dict[Run, int] = {}
        self._name: Callable[[Run], str] = _naming(())

    def on_event(self, event: Event) -> None:
        """Show what happened."""
        match event:
            case SweepStarted(runs, num_done):
                self._name = _naming(runs)
                total = sum(run.epochs for run in runs)
                note = f"{num_done} runs are there already" if num_done else ""
                self._bars.update(self._all, total=total, note=note, visible=total > 0)
            case RunStarted(run):
                self._running[run] = self._bars.add_task(self._name(run), total=run.epochs, note="")
            case EpochDone(run, row):
                self._bars.update(self._running[run], completed=row["epoch"], note=_note(row))
                self._count(run, row["epoch"])
            case RunDone(run, outcome):
                self._bars.remove_task(self._running.pop(run))
                self._count(run, run.epochs)
                if outcome.reason:
                    self._bars.console.print(f"[red]{self._name(run)}: {outcome.reason}")

    def _count(self, run: Run, epochs: int) -> None:
        self._epochs[run] = epochs
        self._bars.update(self._all, completed=sum(self._epochs.values()))

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def print_table(results: Results) -> None:
    """Final numbers by graph, size and rule, and where the report is."""
    console = Console()
    console.print(_table(results, console.width))
    console.print(
        "Accuracy in %, mean ± standard deviation over seeds. Consensus distance of replicas and Gini coefficient of "
        "their tensors' norms: before mixing, mean over the training.",
        style="dim",
    )
    console.print(f"report: [bold]{results.report}[/bold]", soft_wrap=True)


def _table(results: Results, width: int) -> Table:
    rows = results.summary
    columns = {heading: [cell(row) for row in rows] for heading, cell in _columns(rows).items()}
    graphs = [row["graph"] for row in rows]
    for heading in _DISPENSABLE:
        if min(_width("graph", graphs), _LONGEST_GRAPH) + sum(1 + _width(*each) for each in columns.items()) > width:
            columns.pop(heading, None)
    table = Table(title=_title(results), title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("\ngraph", overflow="fold", min_width=11)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        if i and _block(row) != _block(rows[i - 1]):
            table.add_section()
        table.add_row(row["graph"], *(cells[i] for cells in columns.values()))
    return table


def _width(heading: str, cells: list[str]) -> int:
    return max(len(line) for text in (heading, *cells) for line in text.split("\n"))


# ---- names -----------------------------------------------------------------------------------------------------


def _naming(runs: Iterable[Run]) -> Callable[[Run], str]:
    """How to name each of these runs: by graph and seed, and by size and rule only where these differ."""
    runs = list(runs)
    several_sizes = len({run.workers for run in runs}) > 1
    several_rules = len({run.lr_rule for run in runs}) > 1

    def name(run: Run) -> str:
        size = f", {run.workers} workers" if several_sizes else ""
        rule = f", {run.lr_rule}" if several_rules else ""
        return f"{run.label}{size}{rule}, seed {run.seed}"

    return name


def _note(row: Row) -> str:
    perplexity = row.get("perplexity")
    good = f"accuracy {row['accuracy']:.1%}" if perplexity is None else f"perplexity {perplexity:.1f}"
    return f"{good}, consensus {row['consensus_distance']:.1e}"


def _title(results: Results) -> str:
    experiment, runs = results.experiment, [result.run for result in results.runs]
    rules = list(dict.fromkeys(run.lr_rule for run in runs))
    parts = [
        experiment.task,
        f"{_listed(experiment.sizes)} workers",
        experiment.algorithm,
        *([f"learning rate scaled by {_listed(rules)}"] if len(rules) > 1 else []),
        *([f"slowed {experiment.slow.replace('=', ' by ')}"] if experiment.slow else []),
        *([f"shards of Dirichlet({experiment.alpha:g}) classes"] if experiment.alpha is not None else []),
        f"{runs[0].epochs} epoch{'s' * (runs[0].epochs > 1)}",
        f"{experiment.seeds} seed{'s' * (experiment.seeds > 1)}",
    ]
    return ", ".join(parts)


def _listed(values: Iterable[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


# ---- cells -----------------------------------------------------------------------------------------------------


def _columns(rows: list[Summary]) -> dict[str, Callable[[Summary], str]]:
    """Headings and how to fill a cell: size and rule where they differ, and what a task measures beyond accuracy."""
    columns: dict[str, Callable[[Summary], str]] = {}
    if len({row["workers"] for row in rows}) > 1:
        columns["\nworkers"] = lambda row: str(row["workers"])
    if len({row["lr_rule"] for row in rows}) > 1:
        columns["rate\nscaled"] = lambda row: str(row["lr_rule"])
        columns["peak\nrate"] = lambda row: f"{row['lr']:.3g}"
    columns["averaged\nmodel"] = _accuracy
    for quantity in extra_quantities(rows):
        if quantity not in _LEFT_TO_THE_REPORT:
            columns["\n" + quantity.replace("_", " ")] = _number(quantity, "{:.2f}")
    return columns | {
        "mean\nreplica": _number("replica_accuracy_mean", "{:.2f}", 100),
        "worst\nreplica": _number("replica_accuracy_min", "{:.2f}", 100),
        "consensus\ndistance": _number("consensus_distance_over_training", "{:.1e}"),
        "\nat end": _number("consensus_distance", "{:.1e}"),
        "Gini of\nnorms": _number("gini_over_training", "{:.1e}"),
        "sent per\nworker": _number("bytes_sent", "{:,.1f} MB", 1e-6),
        "virtual\ntime": _number("virtual_s", "{:,.2f} s"),
    }


def _block(row: Summary) -> tuple[int, str]:
    """Rows of one block stand together in the table."""
    return row["workers"], row["lr_rule"]


def _number(key: str, form: str, times: float = 1.0) -> Callable[[Summary], str]:
    def cell(row: Summary) -> str:
        value = row.get(key)
        if value is None:
            return "–"
        return form.format(times * value) if abs(value) > _ROUNDING else "0"

    return cell


def _accuracy(row: Summary) -> str:
    if row["accuracy"] is None:
        return "diverged"
    spread = "" if row["accuracy_std"] is None else f" ± {100 * row['accuracy_std']:.1f}"
    some = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    return f"{100 * row['accuracy']:.2f}{spread}{some}"
