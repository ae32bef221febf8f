"""`gossamer topo`, `graphs`, `tasks`, `recipes`: what there is, answered at once."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import app

if TYPE_CHECKING:
    from gossamer.tasks import Task
    from gossamer.topologies import Schedule


@app.command(epilog="Example: gossamer topo ring-lattice:k=4 --workers 96 --draw lattice.svg")
def topo(
    name: Annotated[str, typer.Argument(help="A graph or schedule, with parameters as in ring-lattice:k=4.")],
    workers: Annotated[int, typer.Option("--workers", "-n", help="Number of workers.")] = 16,
    params: Annotated[
        int, typer.Option(help="Parameters of the model, 4 bytes each, for the bytes a worker sends.")
    ] = 1_000_000,
    local_size: Annotated[int | None, typer.Option(help="Workers of one node, for graphs that know of nodes.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw the graph into this SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show a communication graph: degree, edges, spectral gap, bytes, steps to the exact average.

    Answers at once, without PyTorch. Names: see `gossamer graphs`.
    """
    from gossamer import topologies
    from gossamer._files import write_text

    if draw is not None and draw.suffix != ".svg":
        raise ValueError(f"--draw {draw}: drawings are SVG, give a file that ends in .svg")
    if params < 1:
        raise ValueError(f"--params {params}: a model has at least 1 parameter")
    schedule = topologies.build(name, workers, local_size=local_size)
    facts = topologies.facts(schedule, model_bytes=4 * params)
    if draw is not None:
        try:
            write_text(draw, _drawing(schedule))
        except OSError as error:
            raise ValueError(f"cannot write the drawing to {draw}: {error.strerror}; give another file") from error
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print_facts(name, facts, draw)


def _drawing(schedule: "Schedule") -> str:
    from gossamer import topologies

    if schedule.period == 1:
        return topologies.draw_svg(schedule(0), size=480, title=schedule.name)
    return topologies.draw_schedule_svg(schedule, title=schedule.name)


def _print_facts(name: str, facts: dict[str, Any], draw: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from gossamer import topologies

    table = Table(show_header=False, box=None, padding=(0, 2))
    when = {"edges": " at start", "spectral_gap": " at end"} if facts["degree_at_end"] is not None else {}
    for key, value in facts.items():
        if value is not None:
            table.add_row(f"[dim]{key.replace('_', ' ')}{when.get(key, '')}[/dim]", _in_words(key, value))
    console = Console()
    console.print(f"[bold]{facts['name']}[/bold]  {topologies.describe(name)}")
    console.print(table)
    if draw is not None:
        console.print(f"drawn into {draw}")


def _in_words(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.startswith("bytes"):
        return f"{value / 1e6:,.2f} MB"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@app.command()
def graphs() -> None:
    """List the graphs and schedules there are."""
    from gossamer import topologies

    _print_names({name: topologies.describe(name) for name in topologies.names()})


@app.command()
def tasks() -> None:
    """List the tasks there are, and what the folder of their data must hold."""
    from gossamer.tasks import TASKS

    _print_names({name: f"{task.summary}\n[dim]{_data_of(task)}[/dim]" for name, task in TASKS.items()})


@app.command()
def recipes() -> None:
    """List the recipes: published comparisons that `gossamer bench --recipe NAME` makes again."""
    from gossamer.recipes import RECIPES, TIME_TABLES

    _print_names({name: recipe.summary for name, recipe in (RECIPES | TIME_TABLES).items()})


def _print_names(lines: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, line in lines.items():
        table.add_row(f"[bold]{name}[/bold]", line)
    Console().print(table)


def _data_of(task: "Task") -> str:
    """Where its data come from: a task that needs a folder says what must be in it when it gets none."""
    if not task.needs_data:
        return "brings its data along"
    try:
        task.load(None)
    except ValueError as error:
        _, _, remedy = str(error).partition(": ")
        return remedy or str(error)
    return "needs --data DIR"
