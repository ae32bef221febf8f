"""Recipes that compare times alone: nothing is trained, and torch stays out."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""`algorithm`, `slowdown`, `epoch_s`, `speedup`, `engine`, and what else there is to say."""

_WIDE = 110
"""Columns of a terminal that has room for the published times too."""


@dataclass(frozen=True, kw_only=True)
class TimeTable:
    """A published comparison of epoch times by name."""

    rows: Callable[..., list[Row]]
    """Makes the rows. Its keyword arguments are what may be chosen; all else is part of the comparison."""
    summary: str

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of what may be chosen."""
        return tuple(inspect.signature(self.rows).parameters)


def print_times(rows: Sequence[Row]) -> None:
    """A line a slowdown, a column a method: seconds an epoch, and how many times faster than one worker alone."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    by_place = {(row["slowdown"], row["algorithm"]): row for row in rows}
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    with_published = console.width >= _WIDE and any(row["published_epoch_s"] is not None for row in rows)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("slowed", justify="right", no_wrap=True)
    for algorithm in algorithms:
        table.add_column(algorithm, justify="right", no_wrap=True)
    for slowdown in dict.fromkeys(row["slowdown"] for row in rows):
        cells = [_cell(by_place[slowdown, algorithm], with_published) for algorithm in algorithms]
        table.add_row("no" if slowdown == 1 else f"{slowdown} ×", *cells)
    console.print(table)
    console.print(
        f"One of {rows[0]['workers']} workers slowed: seconds of virtual time an epoch, and in brackets how many times "
        f"faster that is than one worker alone{'; after the stroke what was published' if with_published else ''}.",
        style="dim",
    )


def _cell(row: Row, with_published: bool) -> str:
    published = row["published_epoch_s"] if with_published else None
    return f"{_seconds(row['epoch_s'])} ({row['speedup']:.3g})" + (f" | {_seconds(published)}" if published else "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
