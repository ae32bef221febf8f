"""The command line: `gossamer topo`, `gossamer bench`, `gossamer report`. Thin: it parses, calls and prints."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from gossamer.bench import Experiment, Results
    from gossamer.tasks import Task
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


# ---- bench ----------------------------------------------------------------------------------------------------

_COMPARE, _RATE, _INSIDE = "What to compare", "Learning rate", "Data and measurements"
_RUN, _RECIPE, _TIME = "Where and how it runs", "Published comparisons", "Virtual time"


def _option(panel: str, help: str, *names: str, default: str | bool = False) -> Any:
    """An option whose default is not in the signature: None there means that the user did not say."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default)


@app.command(
    epilog="Examples:\n\n"
    "gossamer bench\n\n"
    "gossamer bench --graphs ring,torus,base-2 --workers 8,16,32 --seeds 5 --jobs 2\n\n"
    "gossamer bench --task resnet20 --data ~/data --workers 96 --lr-rule linear,sqrt\n\n"
    "gossamer bench --recipe ada-96 --miniature\n\n"
    "gossamer bench --recipe straggler\n\n"
    "gossamer bench --algorithm ad-psgd --slow 3=10 --seeds 1\n\n"
    "gossamer bench --engine processes --workers 8 --seeds 1\n\n"
    "torchrun --nproc-per-node 4 -m gossamer bench --engine processes"
)
def bench(
    task: Annotated[str | None, _option(_COMPARE, "What to train; see `gossamer tasks`.", default="digits")] = None,
    graphs: Annotated[
        str | None,
        _option(
            _COMPARE,
            "Graphs, separated by commas; see `gossamer graphs`.",
            default="complete,exponential,torus,ring,ada",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        _option(
            _COMPARE,
            "Replicas of the model; several numbers, as in 12,24,48, to compare sizes.",
            "--workers",
            "-n",
            default="16, or as many as torchrun made",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        _option(
            _COMPARE,
            "all-reduce, d-psgd, d-psgd-cta, d-psgd-overlapped, local-sgd:every=8, ad-psgd or parameter-server.",
            default="d-psgd",
        ),
    ] = None,
    epochs: Annotated[int | None, _option(_COMPARE, "Passes over the data.", default="the task's own")] = None,
    seeds: Annotated[int | None, _option(_COMPARE, "How often to repeat each training.", default="3")] = None,
    recipe: Annotated[
        str | None,
        _option(_RECIPE, "Make a published comparison again, by name; see `gossamer recipes`. It sets most options."),
    ] = None,
    miniature: Annotated[
        bool,
        _option(
            _RECIPE, "The recipe on the digits, whatever --task says, with few workers: about a minute.", "--miniature"
        ),
    ] = False,
    lr: Annotated[
        float | None, _option(_RATE, "Peak for the task's own global batch.", default="the task's own")
    ] = None,
    lr_rule: Annotated[
        str | None,
        _option(
            _RATE,
            "How it follows the global batch: linear, sqrt or none; several, with commas, to compare.",
            default="the task's own",
        ),
    ] = None,
    decay: Annotated[
        str | None, _option(_RATE, "How it falls after the warm-up: cosine or step.", default="the task's own")
    ] = None,
    warmup: Annotated[
        float | None, _option(_RATE, "Epochs in which it rises to the peak.", default="the task's own")
    ] = None,
    data: Annotated[Path | None, _option(_INSIDE, "Folder of the data, for tasks that do not bring theirs.")] = None,
    batch_size: Annotated[
        int | None, _option(_INSIDE, "Samples of one worker and step.", default="the task's own")
    ] = None,
    alpha: Annotated[
        float | None,
        _option(
            _INSIDE,
            "Workers see unlike data: the classes of each share follow Dirichlet(alpha); 0.1 is very unlike.",
            default="all alike",
        ),
    ] = None,
    probe_every: Annotated[
        int | None,
        _option(
            _INSIDE,
            "Steps from one look inside the replicas to the next.",
            default="three looks an epoch, at most 150",
        ),
    ] = None,
    slow: Annotated[
        str | None,
        _option(_TIME, "Workers whose gradients take longer: RANK=FACTOR, several with commas, as in 3=10,5=2."),
    ] = None,
    jitter: Annotated[
        str | None,
        _option(
            _TIME,
            "How computation times vary: constant, exponential, or normal, lognormal, gamma with :spread=0.3.",
            default="constant",
        ),
    ] = None,
    compute_s: Annotated[
        float | None, _option(_TIME, "Seconds that a gradient takes.", "--compute-s", default="0.01")
    ] = None,
    latency_s: Annotated[
        float | None, _option(_TIME, "Seconds until a message arrives, however small.", "--latency-s", default="5e-5")
    ] = None,
    gbit_per_s: Annotated[
        float | None, _option(_TIME, "Bandwidth of a worker's link, in Gbit/s.", "--gbit-per-s", default="10")
    ] = None,
    engine: Annotated[
        str | None,
        _option(_RUN, "stacked: all replicas on one device; processes: a process each.", default="stacked"),
    ] = None,
    device: Annotated[str | None, _option(_RUN, "cpu, cuda, or auto.", default="auto")] = None,
    jobs: Annotated[int, _option(_RUN, "Trainings at a time, each in a process of its own.", default=True)] = 1,
    out: Annotated[
        Path, _option(_RUN, "Where results go; the same command goes on with what is there.", default=True)
    ] = Path("results"),
    as_json: Annotated[bool, _option(_RUN, "Print the table as JSON for machines.", "--json")] = False,
) -> None:
    """Train one model under several graphs, look inside, and write a report.

    Every graph is trained with several seeds, at every size given, and centralized all-reduce beside them.

    Results go to a folder named by the settings; a sweep that was stopped goes on with what is finished.
    """
    chosen = {
        "task": task,
        "data": None if data is None else str(data),
        "workers": _numbers("--workers", workers),
        "graphs": _names(graphs),
        "algorithm": algorithm,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "lr_rules": _names(lr_rule),
        "decay": decay,
        "warmup_epochs": warmup,
        "alpha": alpha,
        "probe_every": probe_every,
        "seeds": seeds,
        "slow": slow,
        "jitter": jitter,
        "compute_s": compute_s,
        "latency_s": latency_s,
        "gbit_per_s": gbit_per_s,
        "engine": engine,
        "device": device,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if miniature and recipe is None:
        raise ValueError("--miniature is a way to make a recipe: name one with --recipe, see `gossamer recipes`")
    if recipe is not None and _is_time_table(recipe):
        _tell_times(recipe, chosen, out, as_json)
        return
    experiments = _plain(chosen) if recipe is None else _from_recipe(recipe, chosen, miniature)
    results = [_carry_out(experiment, out, jobs, as_json) for experiment in experiments]
    if as_json and _speaks():
        tables = [{"folder": str(each.folder), "rows": each.summary} for each in results]
        said = tables[0] if recipe is None else {"recipe": recipe, "experiments": tables}
        print(json.dumps(said, indent=2))
    diverged = [run for each in results for run in each.diverged]
    for run in diverged:
        print(f"gossamer: {run.run.folder} diverged: {run.reason}", file=sys.stderr)
    if diverged:
        raise typer.Exit(2)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(option: str, text: str | None) -> int | tuple[int, ...] | None:
    try:
        numbers = tuple(int(name) for name in _names(text) or ())
    except ValueError:
        raise ValueError(f"{option} {text}: give a whole number, or several separated by commas") from None
    return None if text is None else numbers[0] if len(numbers) == 1 else numbers


def _plain(chosen: dict[str, Any]) -> "tuple[Experiment, ...]":
    from gossamer.bench import Experiment
    from gossamer.bench.launch import torchrun_size

    return (Experiment(**({"workers": torchrun_size() or 16} | chosen)),)


def _from_recipe(name: str, chosen: dict[str, Any], miniature: bool) -> "tuple[Experiment, ...]":
    from gossamer._names import lookup
    from gossamer.recipes import RECIPES, TIME_TABLES

    lookup("recipe", name, dict.fromkeys((*RECIPES, *TIME_TABLES)))
    recipe = RECIPES[name]
    _refuse_fixed(name, chosen, recipe.takes)
    return recipe.make(**chosen, miniature=miniature)


def _refuse_fixed(name: str, chosen: dict[str, Any], takes: tuple[str, ...]) -> None:
    fixed = [_option_of(setting) for setting in chosen if setting not in takes]
    if fixed:
        may = ", ".join(_option_of(setting) for setting in takes)
        raise ValueError(f"the recipe {name!r} sets {', '.join(fixed)} itself: leave it out; it takes {may}")


def _is_time_table(name: str) -> bool:
    from gossamer.recipes import TIME_TABLES

    return name in TIME_TABLES


def _tell_times(name: str, chosen: dict[str, Any], out: Path, as_json: bool) -> None:
    """A recipe that trains nothing: the clock alone answers, at once."""
    from gossamer._files import write_text
    from gossamer.recipes import TIME_TABLES, print_times

    table = TIME_TABLES[name]
    _refuse_fixed(name, chosen, table.takes)
    times, page = table.make(**chosen), out / f"{name}.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(page, times.page())
    except OSError as error:
        raise ValueError(f"cannot write {page}: {error.strerror}; give another folder with --out") from error
    if as_json:
        print(json.dumps({"recipe": name, "report": str(page), "rows": times.rows}, indent=2))
    else:
        print_times(times)
        print(f"report: {page}")


def _option_of(setting: str) -> str:
    short = {"warmup_epochs": "warmup", "lr_rules": "lr-rule"}
    return f"--{short.get(setting, setting.replace('_', '-'))}"


def _carry_out(experiment: "Experiment", out: Path, jobs: int, as_json: bool) -> "Results":
    from gossamer.bench import run
    from gossamer.bench.processes import FORESEEN, WorkerFailed
    from gossamer.bench.terminal import Progress, print_table

    failures: tuple[type[Exception], ...] = (WorkerFailed, *FORESEEN, OSError)
    silent = as_json or not _speaks()
    with Progress(silent=silent) as progress:
        try:
            results = run(experiment, out, progress.on_event, jobs=jobs)
        except failures as error:
            print(f"gossamer: {error}; finished runs are kept, the same command goes on with them", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print("gossamer: stopped; the same command goes on with what is there", file=sys.stderr)
            raise typer.Exit(130) from None
    if not silent:
        print_table(results)
    return results


def _speaks() -> bool:
    """Under torchrun, one of the processes speaks for all."""
    from gossamer.bench.launch import torchrun_rank

    return torchrun_rank() == 0


# ---- report ---------------------------------------------------------------------------------------------------


@app.command(epilog="Example: gossamer report results/digits-16-* --out all.html --csv all.csv")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `gossamer bench` has written.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the page into this HTML file.", show_default=False)] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write all rows into this CSV file.", show_default=False)
    ] = None,
) -> None:
    """Join the results of several experiments in one report: sizes, tasks, methods side by side. Trains nothing."""
    from rich.console import Console

    from gossamer.bench.joined import join

    for option, file, suffix in (("--out", out, ".html"), ("--csv", csv, ".csv")):
        if file is not None and file.suffix != suffix:
            raise ValueError(f"{option} {file}: give a file that ends in {suffix}")
    try:
        joined = join(runs, page=out, table=csv)
    except OSError as error:
        raise ValueError(
            f"cannot write {error.filename or 'the report'}: {error.strerror}; give another file"
        ) from error
    console = Console()
    console.print(f"report: [bold]{joined.page}[/bold] ({len(joined.rows)} runs)", soft_wrap=True)
    for num, why in ((joined.unfinished, "not over yet"), (joined.repeated, "there twice")):
        if num:
            console.print(f"left out: {num} {'run' if num == 1 else 'runs'}, {why}")
    if csv is not None:
        console.print(f"table: [bold]{csv}[/bold]", soft_wrap=True)
