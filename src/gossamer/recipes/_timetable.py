"""Recipes that compare times alone: by the clock, where nothing is trained and torch stays out, or by processes."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.bench import Experiment, Results

Row = dict[str, Any]
"""`algorithm`, `slowdown`, `epoch_s`, `speedup`, `engine`, and what else there is to say."""
_WIDE = 110
"""Columns of a terminal that has room for the published times too."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """What such a recipe gives."""

    title: str
    rows: list[Row]
    timelines: dict[str, str] = field(default_factory=dict)
    """The first steps of each method, as SVG."""
    drawn_at: int = 1
    """The slowdown of the timelines."""

    def table(self, *, with_published: bool) -> list[list[str]]:
        """A line a slowdown, a column a method: seconds an epoch, how many times faster than one worker; a head."""
        by_place = {(row["slowdown"], row["algorithm"]): row for row in self.rows}
        algorithms = list(dict.fromkeys(row["algorithm"] for row in self.rows))
        return [["slowed", *algorithms]] + [
            [
                "no" if slowdown == 1 else f"{slowdown} ×",
                *(_cell(by_place[slowdown, algorithm], with_published) for algorithm in algorithms),
            ]
            for slowdown in dict.fromkeys(row["slowdown"] for row in self.rows)
        ]

    @property
    def has_published(self) -> bool:
        return any(row["published_epoch_s"] is not None for row in self.rows)

    def says(self, *, with_published: bool) -> str:
        """What the numbers of the table are."""
        published = "; after the stroke what was published" if with_published else ""
        time = "virtual time" if self.rows[0]["engine"] == "virtual" else "real time, with a process a worker,"
        return (
            f"One of {self.rows[0]['workers']} workers slowed: seconds of {time} an epoch, and in brackets how "
            f"many times faster that is than one worker alone{published}."
        )

    def page(self) -> str:
        """The table and the timelines as HTML that opens offline."""
        head, *lines = self.table(with_published=self.has_published)
        figures = [f"<h2>{escape(name)}</h2>\n<figure>{drawn}</figure>" for name, drawn in self.timelines.items()]
        drawn = Template(_read("timelines.html")).substitute(slowdown=self.drawn_at, figures="\n".join(figures))
        return Template(_read("times.html")).substitute(
            title=escape(self.title),
            head=_line(head, "th"),
            lines="\n".join(_line(line, "td") for line in lines),
            says=escape(self.says(with_published=self.has_published)),
            timelines=drawn if figures else "",
        )


@dataclass(frozen=True, kw_only=True)
class TimeTable:
    """A published comparison of epoch times by name."""

    make: Callable[..., Times]
    """Its keyword arguments are what may be chosen; all else is part of the comparison."""
    summary: str
    experiments: "Callable[..., tuple[Experiment, ...]]"
    """The same by real processes: what to train. Takes what may be chosen there."""
    measured: "Callable[[Sequence[Results]], Times]"
    """What that has shown."""

    def takes(self, *, on_processes: bool) -> tuple[str, ...]:
        """The names of what may be chosen."""
        return tuple(inspect.signature(self.experiments if on_processes else self.make).parameters)


def print_times(times: Times) -> None:
    """The table, in a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    with_published = console.width >= _WIDE and times.has_published
    head, *lines = times.table(with_published=with_published)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for name in head:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    console.print(times.says(with_published=with_published), style="dim")


def _cell(row: Row, with_published: bool) -> str:
    published = row["published_epoch_s"] if with_published else None
    return f"{_seconds(row['epoch_s'])} ({row['speedup']:.3g})" + (f" | {_seconds(published)}" if published else "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _line(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
