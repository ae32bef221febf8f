"""The command line: `gossamer topo`, `gossamer bench`. Thin: it parses, calls and prints."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from gossamer.topologies import Schedule

app = typer.Typer(
    name="gossamer",
    help="Decentralized deep learning: train with your neighbours, look inside, know when it pays.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)


def main() -> None:
    """Run the command line. Bad input is one sentence on standard error and exit code 2."""
    try:
        app()
    except ValueError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _refuse(message: str) -> NoReturn:
    print(f"gossamer: {message}", file=sys.stderr)
    sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        from gossamer import __version__

        print(f"gossamer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# ---- topo -----------------------------------------------------------------------------------------------------


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
    from rich.console import Console
    from rich.table import Table

    from gossamer import topologies

    table = Table(show_header=False, box=None, padding=(0, 2))
    for name in topologies.names():
        table.add_row(f"[bold]{name}[/bold]", topologies.describe(name))
    Console().print(table)


# ---- bench ----------------------------------------------------------------------------------------------------


@app.command(
    epilog="Examples: gossamer bench · gossamer bench --graphs ring,torus,base-2 --seeds 5 · "
    "gossamer bench --engine processes --workers 8 --seeds 1 · "
    "torchrun --nproc-per-node 4 -m gossamer bench --engine processes"
)
def bench(
    task: Annotated[str, typer.Option(help="What to train.")] = "digits",
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-n", help="Replicas of the model; 16, or as many as torchrun made, when not given."),
    ] = None,
    graphs: Annotated[
        str, typer.Option(help="Graphs to compare, separated by commas; see `gossamer graphs`.")
    ] = "complete,exponential,torus,ring,ada",
    algorithm: Annotated[
        str, typer.Option(help="all-reduce, d-psgd, d-psgd-cta, d-psgd-overlapped or local-sgd:every=8.")
    ] = "d-psgd",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; the task's own number when not given.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How often to repeat each training.")] = 3,
    engine: Annotated[
        str, typer.Option(help="stacked: all replicas on one device; processes: a process each.")
    ] = "stacked",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    out: Annotated[Path, typer.Option(help="Where results go; the same command goes on with what is there.")] = Path(
        "results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON for machines.")] = False,
) -> None:
    """Train one model under several graphs, look inside, and write a report.

    Every graph is trained with several seeds, and centralized all-reduce beside them.

    Results go to a folder named by the settings; a sweep that was stopped goes on with what is finished.
    """
    from gossamer.bench import Experiment, WorkerFailed, run
    from gossamer.bench.launch import torchrun_rank, torchrun_size
    from gossamer.bench.terminal import Progress, print_table
    from gossamer.engines import NeighborLost

    experiment = Experiment(
        task=task,
        workers=workers if workers is not None else torchrun_size() or 16,
        graphs=tuple(name.strip() for name in graphs.split(",") if name.strip()),
        algorithm=algorithm,
        epochs=epochs,
        seeds=seeds,
        engine=engine,  # type: ignore[arg-type]  # checked by Experiment
        device=device,
    )
    silent = torchrun_rank() != 0
    with Progress(silent=silent or as_json) as progress:
        try:
            results = run(experiment, out, progress.on_event)
        except (WorkerFailed, NeighborLost, OSError) as error:
            print(f"gossamer: {error}; finished runs are kept, the same command goes on with them", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print("gossamer: stopped; the same command goes on with what is there", file=sys.stderr)
            raise typer.Exit(130) from None
    if silent:
        return
    if as_json:
        print(json.dumps({"folder": str(results.folder), "rows": results.summary}, indent=2))
    else:
        print_table(results)
    for diverged in results.diverged:
        print(f"gossamer: {diverged.run.folder} diverged: {diverged.reason}", file=sys.stderr)
    if results.diverged:
        raise typer.Exit(2)
