"""A plan and its map in a terminal, and as data for machines."""

from math import isfinite
from typing import Any

from ._advice import Plan, Row
from ._map_drawing import ratio_text, says, shade, title
from ._regimes import Regimes, nearest


def print_plan(plan: Plan) -> None:
    """The table and the advice."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("ms", "waiting", "link\nin use", "speed\nup", "bound by", "apart"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        table.add_row(row.graph, *_cells(row), style="bold" if row is plan.best else None)
    console = Console()
    console.print(table)
    console.print(
        "Milliseconds of an iteration, and what a worker waits in it; how much of the time the busiest link is in use; "
        "times as fast as all-reduce; how far apart replicas stay (variance, in that of one step).",
        style="dim",
    )
    console.print()
    console.print(plan.advice)


def _cells(row: Row) -> list[str]:
    found = row.prediction
    return [
        f"{1e3 * found.iteration_s:.1f}",
        f"{1e3 * found.waiting_s:.1f}",
        f"{found.link_use:.0%}",
        f"{row.speedup:.2f}",
        found.bound,
        "same" if row.is_all_reduce else f"{row.consensus_variance:.2f}",
    ]


def print_map(found: Regimes) -> None:
    """The regime map, a coloured cell for each ratio and spread."""
    from rich.console import Console
    from rich.text import Text

    console, wide = Console(), 5
    here = nearest(found.spreads, found.here[1]), nearest(found.ratios, found.here[0])
    console.print(f"\n[bold]{title(found)}[/bold]")
    for row in reversed(range(len(found.spreads))):
        line = Text(f"{found.spreads[row]:>6g} ")
        for column in range(len(found.ratios)):
            speedup = float(found.speedups[row, column])
            red, green, blue = shade(speedup)
            ink = "white" if red + green + blue < 400 else "black"
            text = f"[{speedup:.1f}]" if (row, column) == here else f"{speedup:.1f} "
            line.append(f"{text:>{wide}}", style=f"{ink} on rgb({red},{green},{blue})")
        console.print(line, no_wrap=True, crop=False)
    marks = [ratio_text(ratio) if place % 2 == 0 else "" for place, ratio in enumerate(found.ratios)]
    console.print(" " * 7 + "".join(f"{mark:>{wide - 1}} " for mark in marks), no_wrap=True, crop=False)
    console.print(
        f"Across: all-reduce ÷ computation; up: spread of computation times. {says(found).replace('Framed', 'In [ ]')}",
        style="dim",
        markup=False,
    )


def as_data(plan: Plan) -> dict[str, Any]:
    """For machines."""
    cluster = plan.profile.cluster
    return {
        "workers": cluster.workers,
        "local_size": cluster.local_size,
        "rows": [
            {
                "graph": row.graph,
                "iteration_s": row.prediction.iteration_s,
                "computation_s": row.prediction.computation_s,
                "waiting_s": row.prediction.waiting_s,
                "links_s": row.prediction.links_s,
                "stragglers_s": row.prediction.stragglers_s,
                "link_use": row.prediction.link_use,
                "speedup": row.speedup,
                "bound": row.prediction.bound,
                "consensus_variance": row.consensus_variance if isfinite(row.consensus_variance) else None,
            }
            for row in plan.rows
        ],
        "best": plan.best.graph,
        "advice": plan.advice,
    }


def map_as_data(found: Regimes) -> dict[str, Any]:
    return {
        "ratios": list(found.ratios),
        "spreads": list(found.spreads),
        "speedups": found.speedups.tolist(),
        "graphs": [list(row) for row in found.graphs],
        "here": list(found.here),
    }
