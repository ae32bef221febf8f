"""`gossamer plan`: figures or a profile in, a table and advice out; no torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import app

if TYPE_CHECKING:
    from gossamer.plan import Profile, Regimes

_CLUSTER, _WORK, _SAYS = "The cluster", "The training", "What is said"


def _option(panel: str, help: str, *names: str, default: str | bool = False) -> Any:
    """An option whose default is not in the signature: None there means that the user did not say."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default)


@app.command(
    epilog="Examples:\n\n"
    "gossamer plan --workers 32 --local-size 4 --params 63M --compute 60ms --jitter 0.0134 --inter 25gbit "
    "--intra 300gbit\n\n"
    "gossamer plan --profile cluster.json --workers 64 --map"
)
def plan(
    workers: Annotated[int | None, _option(_CLUSTER, "Workers in all.", "--workers", "-n")] = None,
    local_size: Annotated[
        int | None, _option(_CLUSTER, "Workers of a node; they share its link to others.", default="1")
    ] = None,
    inter: Annotated[str | None, _option(_CLUSTER, "Bandwidth of a node's link to others, as in 25gbit.")] = None,
    intra: Annotated[
        str | None, _option(_CLUSTER, "Bandwidth of a worker's link inside its node.", default="like --inter")
    ] = None,
    latency: Annotated[str | None, _option(_CLUSTER, "Until a message arrives, however small.", default="20us")] = None,
    gloo: Annotated[
        bool,
        _option(_CLUSTER, "For models on CPUs: whole nodes average node by node, and not around a ring as by NCCL."),
    ] = False,
    slow: Annotated[str | None, _option(_CLUSTER, "Workers that compute longer: RANK=FACTOR, with commas.")] = None,
    params: Annotated[str | None, _option(_WORK, "Parameters of the model, as in 63M.")] = None,
    param_bytes: Annotated[int | None, _option(_WORK, "Bytes of a parameter on its way.", default="4")] = None,
    compute: Annotated[str | None, _option(_WORK, "Forward and backward of a worker, as in 60ms.")] = None,
    update: Annotated[str | None, _option(_WORK, "The optimizer's step.", default="0s")] = None,
    buckets: Annotated[
        int | None, _option(_WORK, "Parts in which a model is sent.", default="of 25 MiB, at most 16")
    ] = None,
    jitter: Annotated[
        str | None,
        _option(
            _WORK,
            "Variance of the computation time over its mean, or a distribution such as gamma:spread=0.3.",
            default="0",
        ),
    ] = None,
    profile: Annotated[
        Path | None, _option(_WORK, "All this as `gossamer calibrate` has measured it; --workers may differ.")
    ] = None,
    graphs: Annotated[
        str | None, _option(_SAYS, "Topologies, with commas; see `gossamer graphs`.", default="the usual")
    ] = None,
    epochs: Annotated[int, _option(_SAYS, "Of a whole training, over which Ada thins out.", default=True)] = 30,
    show_map: Annotated[
        bool, _option(_SAYS, "Show where, by links and jitter, decentralizing wins and by how much.", "--map")
    ] = False,
    draw: Annotated[Path | None, _option(_SAYS, "Draw that map into this file, .svg or .html.")] = None,
    as_json: Annotated[bool, _option(_SAYS, "Print JSON for machines.", "--json")] = False,
) -> None:
    """Say beforehand what an iteration will take, topology by topology, and whether decentralizing pays.

    Answers at once, without PyTorch.
    """
    from gossamer import plan as planner

    if draw is not None and draw.suffix not in (".svg", ".html"):
        raise ValueError(f"--draw {draw}: give a file that ends in .svg or .html")
    figures: dict[str, Any] = {
        "--inter": inter,
        "--intra": intra,
        "--latency": latency,
        "--gloo": gloo or None,
        "--slow": slow,
        "--params": params,
        "--param-bytes": param_bytes,
        "--compute": compute,
        "--update": update,
        "--buckets": buckets,
        "--jitter": jitter,
    }
    given = {option: value for option, value in figures.items() if value is not None}
    what = (
        _from_figures(workers, local_size, given) if profile is None else _loaded(profile, workers, local_size, given)
    )
    names = None if graphs is None else [name.strip() for name in graphs.split(",") if name.strip()]
    found = planner.plan(what, names, epochs=epochs)
    around = planner.regimes(found) if show_map or draw is not None else None
    if draw is not None and around is not None:
        _write(draw, around)
    if as_json:
        said = planner.as_data(found) | ({"map": planner.map_as_data(around)} if around is not None else {})
        print(json.dumps(said, indent=2))
        return
    planner.print_plan(found)
    if show_map and around is not None:
        planner.print_map(around)
    if draw is not None:
        print(f"drawn into {draw}")


def _from_figures(workers: int | None, local_size: int | None, given: dict[str, Any]) -> "Profile":
    from gossamer.plan import profile_of_figures

    missing = [option for option in ("--params", "--compute", "--inter") if option not in given]
    missing = ["--workers"] * (workers is None) + missing
    if missing or workers is None:
        raise ValueError(f"{', '.join(missing)} missing: give these figures, or a --profile")
    settings = {option.removeprefix("--").replace("-", "_"): value for option, value in given.items()}
    return profile_of_figures(workers=workers, local_size=1 if local_size is None else local_size, **settings)


def _loaded(path: Path, workers: int | None, local_size: int | None, given: dict[str, Any]) -> "Profile":
    from gossamer.plan import Profile

    if given:
        raise ValueError(f"{', '.join(given)}: the profile says that; leave it out, or give figures and no --profile")
    return Profile.load(path).resized(workers, local_size)


def _write(path: Path, found: "Regimes") -> None:
    from gossamer._files import write_text
    from gossamer.plan import draw_map_svg, map_page

    try:
        write_text(path, draw_map_svg(found) if path.suffix == ".svg" else map_page(found))
    except OSError as error:
        raise ValueError(f"cannot write the map to {path}: {error.strerror}; give another file") from error
