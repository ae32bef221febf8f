"""What `gossamer bench` shows in a terminal: live progress, and the table at the end."""

from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table

from .launch import EpochDone, Event, RunDone, RunStarted, SweepStarted
from .summary import Summary
from .sweep import Results

_ROUNDING = 1e-15
"""What is below is rounding, not a distance."""


class Progress:
    """Which run, which epoch, how accurate, how far apart, how long still. On standard error."""

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
        self._one = self._bars.add_task("", total=None, note="", visible=False)
        self._epochs_before = 0

    def on_event(self, event: Event) -> None:
        """Show what happened."""
        match event:
            case SweepStarted(runs, num_done):
                total = sum(run.epochs for run in runs)
                note = f"{num_done} runs are there already" if num_done else ""
                self._bars.update(self._all, total=total, note=note, visible=total > 0)
            case RunStarted(run):
                name = f"{run.label}, seed {run.seed}"
                self._bars.reset(self._one, total=run.epochs, description=name, note="", visible=True)
            case EpochDone(_, row):
                note = f"accuracy {row['accuracy']:.1%}, consensus {row['consensus_distance']:.1e}"
                self._bars.update(self._one, completed=row["epoch"], note=note)
                self._bars.update(self._all, completed=self._epochs_before + row["epoch"])
            case RunDone(run, outcome):
                self._epochs_before += run.epochs
                self._bars.update(self._all, completed=self._epochs_before)
                if outcome.reason:
                    self._bars.console.print(f"[red]{run.label}, seed {run.seed}: {outcome.reason}")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def print_table(results: Results) -> None:
    """Final numbers by graph, and where the report is."""
    table = Table(title=_title(results), title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("\ngraph", overflow="fold", min_width=11)
    for heading in (
        "averaged\nmodel",
        "mean\nreplica",
        "worst\nreplica",
        "consensus\ndistance",
        "\nat end",
        "Gini of\nnorms",
        "sent per\nworker",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in results.summary:
        table.add_row(row["graph"], *_cells(row))
    console = Console()
    console.print(table)
    console.print(
        "Accuracy in %, mean ± standard deviation over seeds. Consensus distance of replicas and Gini coefficient of "
        "their tensors' norms: before mixing, mean over the training.",
        style="dim",
    )
    console.print(f"report: [bold]{results.report}[/bold]", soft_wrap=True)


def _title(results: Results) -> str:
    experiment = results.experiment
    return (
        f"{experiment.task}, {experiment.workers} workers, {experiment.algorithm}, "
        f"{results.runs[0].run.epochs} epochs, {experiment.seeds} seed{'s' * (experiment.seeds > 1)}"
    )


def _small(value: float) -> str:
    return f"{value:.1e}" if value > _ROUNDING else "0"


def _cells(row: Summary) -> list[str]:
    if row["accuracy"] is None:
        return ["diverged", *["–"] * 6]
    spread = "" if row["accuracy_std"] is None else f" ± {100 * row['accuracy_std']:.1f}"
    some = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    return [
        f"{100 * row['accuracy']:.2f}{spread}{some}",
        f"{100 * row['replica_accuracy_mean']:.2f}",
        f"{100 * row['replica_accuracy_min']:.2f}",
        _small(row["consensus_distance_over_training"]),
        _small(row["consensus_distance"]),
        _small(row["gini_over_training"]),
        f"{row['bytes_sent'] / 1e6:,.1f} MB",
    ]
