"""`gossamer bench`: what the options mean, and what is printed."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import app

if TYPE_CHECKING:
    from gossamer.bench import Experiment, Results

_COMPARE, _RATE, _INSIDE = "What to compare", "Learning rate", "Data and measurements"
_RUN, _RECIPE, _TIME = "Where and how it runs", "Published comparisons", "Time, virtual and real"


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
    "gossamer bench --recipe straggler --engine processes --workers 8\n\n"
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
            "all-reduce, d-psgd, d-psgd-cta, d-psgd-overlapped, local-sgd:every=8, qg-momentum, gradient-tracking, d2, "
            "gut, push-sum, quantized-push-sum, choco:top_k=0.01, adaptive, consensus-control, listening-ada, slowmo, "
            "diloco, noloco, ad-psgd or parameter-server.",
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
            _RECIPE,
            "The recipe on the digits, with few workers: about a minute.",
            "--miniature",
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
        float | None,
        _option(
            _TIME,
            "Seconds that a gradient takes; real processes sleep for the rest of it.",
            "--compute-s",
            default="0.01; on processes what it takes",
        ),
    ] = None,
    latency_s: Annotated[
        float | None, _option(_TIME, "Seconds until a message arrives, however small.", "--latency-s", default="5e-5")
    ] = None,
    gbit_per_s: Annotated[
        float | None, _option(_TIME, "Bandwidth of a worker's link, in Gbit/s.", "--gbit-per-s", default="10")
    ] = None,
    profile: Annotated[
        str | None,
        _option(_TIME, "All this as `gossamer calibrate` has measured it; the report then tells seconds there."),
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
        "profile": profile,
        "engine": engine,
        "device": device,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if miniature and recipe is None:
        raise ValueError("--miniature is a way to make a recipe: name one with --recipe, see `gossamer recipes`")
    if recipe is not None and _is_time_table(recipe):
        if miniature:
            raise ValueError(f"the recipe {recipe!r} compares times and has no miniature: leave --miniature out")
        if jobs != 1:
            raise ValueError(f"--jobs {jobs}: the recipe {recipe!r} compares times, and trainings disturb each other")
        _tell_times(recipe, chosen, out, as_json)
        return
    experiments = _plain(chosen) if recipe is None else _from_recipe(recipe, chosen, miniature)
    silent = as_json or not _speaks()
    results = [_tell(_carry_out(experiment, out, jobs, silent), silent) for experiment in experiments]
    if recipe is not None and len(results) > 1 and _speaks():
        _join(recipe, results, out, silent)
    if as_json and _speaks():
        tables = [{"folder": str(each.folder), "rows": each.summary} for each in results]
        said = tables[0] if recipe is None else {"recipe": recipe, "experiments": tables}
        print(json.dumps(said, indent=2))
    _refuse_diverged(results)


def _join(recipe: str, results: "list[Results]", out: Path, silent: bool) -> None:
    """All experiments of a recipe on one page."""
    from gossamer.bench.joined import join

    joined = join([each.folder for each in results], page=out / f"{recipe}.html", table=out / f"{recipe}.csv")
    if not silent:
        print(f"all of them: {joined.page}, {out / recipe}.csv ({len(joined.rows)} runs)")


def _refuse_diverged(results: "list[Results]") -> None:
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
    unused = [_option_of(setting) for setting in ("task", "data") if miniature and setting in chosen]
    if unused:
        raise ValueError(
            f"a miniature is on the digits, which need no data: leave {' and '.join(unused)} out, or --miniature"
        )
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
    """A recipe that compares times: the clock answers at once, and trains nothing; real processes train."""
    from gossamer._files import write_text
    from gossamer.recipes import TIME_TABLES, print_times

    table, on_processes = TIME_TABLES[name], chosen.get("engine") == "processes"
    _refuse_fixed(name, chosen, table.takes(on_processes=on_processes))
    if on_processes:
        results = [_carry_out(each, out, jobs=1, silent=as_json) for each in table.experiments(**chosen)]
        _refuse_diverged(results)
        times, page = table.measured(results), out / f"{name}-processes.html"
    else:
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


def _carry_out(experiment: "Experiment", out: Path, jobs: int, silent: bool) -> "Results":
    from gossamer.bench import run
    from gossamer.bench.processes import FORESEEN, WorkerFailed
    from gossamer.bench.terminal import Progress

    failures: tuple[type[Exception], ...] = (WorkerFailed, *FORESEEN, OSError)
    with Progress(silent=silent) as progress:
        try:
            return run(experiment, out, progress.on_event, jobs=jobs)
        except failures as error:
            print(f"gossamer: {error}; finished runs are kept, the same command goes on with them", file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print("gossamer: stopped; the same command goes on with what is there", file=sys.stderr)
            raise typer.Exit(130) from None


def _tell(results: "Results", silent: bool) -> "Results":
    from gossamer.bench.terminal import print_table

    if not silent:
        print_table(results)
    return results


def _speaks() -> bool:
    """Under torchrun, one of the processes speaks for all."""
    from gossamer.bench.launch import torchrun_rank

    return torchrun_rank() == 0
