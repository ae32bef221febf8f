"""Drawings of graphs as self-contained SVG: no library, small files, at home on light and dark pages.

Colours are CSS variables with fallbacks (`--edge`, `--node`, `--idle`; text is `currentColor`), so a page
that shows a drawing inline can theme it, and the file alone looks right too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from gossamer.topologies._checks import whole_number
from gossamer.topologies._mixing import Mixing
from gossamer.topologies._schedule import Schedule

MAX_EDGES = 3000
"""Edges drawn at most: a complete graph of 1008 has half a million, and a picture needs no more than this."""

MAX_ARROWS = 160
"""Arrow heads drawn at most: beyond, they hide what they point at."""

LARGEST_GRID_WITH_ARCS = 5
"""On larger tori the links that wrap around are stubs at the border: arcs would cover the grid."""

PROBES = 48
"""Steps looked at for the stages of a schedule that does not repeat: Ada may have too many to build all."""

EDGE, NODE, IDLE = "var(--edge, #5b7fa6)", "var(--node, #e2725b)", "var(--idle, #9aa5b1)"

Point = tuple[float, float]
Ends = tuple[int, int]


class Layout(NamedTuple):
    """Where nodes are, how far apart on the paper, and whether edges bend or wrap around a grid."""

    points: list[Point]
    spacing: float
    bends: bool = False
    is_grid: bool = False


def draw_svg(mixing: Mixing, *, size: int = 320, title: str | None = None) -> str:
    """Draw a mixing as an SVG of `size` × `size` (a title adds a line below).

    Ranks stand on a circle, rank 0 on top and on clockwise; a star has its hub in the centre, a torus is a
    grid whose wrap-around links are arcs. Replicas that mix with nobody are grey. One-way links have arrow
    heads while there are few.

    >>> from gossamer.topologies import ring
    >>> draw_svg(ring(8), title="ring").startswith("<svg xmlns=")
    True
    """
    size = whole_number(size, "the size of a drawing", 16)
    caption_height = 26 if title else 0
    drawing, note = _panel(mixing, size)
    text = _text(title, size / 2, size + 14, 14) if title else ""
    description = f"{mixing.name}: {mixing.n} workers, degree {mixing.degree}, {mixing.num_edges} edges{note}"
    return _document(size, size + caption_height, title or mixing.name, description, drawing + text)


def draw_schedule_svg(
    schedule: Schedule,
    *,
    steps: int | None = None,
    size: int = 200,
    title: str | None = None,
    max_stages: int = 6,
    caption: Callable[[int, Mixing], str] | None = None,
) -> str:
    """Draw the distinct stages of a schedule side by side, at most `max_stages` of them, each with a caption.

    `steps` is how much of the schedule to show: one period by default, or all until it settles (Ada).
    `caption` turns (first step, mixing) into the words below a stage; by default the step and
    whom one averages with.

    >>> from gossamer.topologies import one_peer_exponential
    >>> draw_schedule_svg(one_peer_exponential(8)).count("step ")
    3
    """
    size = whole_number(size, "the size of a drawing", 16)
    max_stages = whole_number(max_stages, "max_stages", 1)
    stages = _spread_out(_distinct_stages(schedule, steps), max_stages)
    caption = caption or _caption
    top, gap = (30 if title else 0), size * 0.08
    width = len(stages) * size + (len(stages) - 1) * gap
    body = [_text(title, width / 2, 18, 15)] if title else []
    for place, (step, mixing) in enumerate(stages):
        drawing, note = _panel(mixing, size)
        words = _text(caption(step, mixing), size / 2, size + 14, 12)
        description = f"<desc>{escape(mixing.name + note)}</desc>"
        left = _number(place * (size + gap))
        body.append(f'<g transform="translate({left} {top})">{description}{drawing}{words}</g>\n')
    about = f"{schedule.name}: {len(stages)} stages of a schedule for {schedule.n} workers"
    return _document(width, top + size + 26, title or schedule.name, about, "".join(body))


def _caption(step: int, mixing: Mixing) -> str:
    if mixing.is_complete:
        return f"step {step} · complete"
    if mixing.groups is None:
        return f"step {step} · degree {mixing.degree}"
    largest = max(len(group) for group in mixing.groups)
    return f"step {step} · " + ("pairs" if largest == 2 else f"groups up to {largest}")


def _distinct_stages(schedule: Schedule, steps: int | None) -> list[tuple[int, Mixing]]:
    if steps is None:
        steps = schedule.window.stop if schedule.period is None else schedule.period
    steps = whole_number(steps, "the number of steps to draw", 1)
    looked_at = range(steps)
    if schedule.period is None and steps > PROBES:
        looked_at = range(0, steps, math.ceil(steps / PROBES))
    first_seen: dict[Mixing, int] = {}
    for step in looked_at:
        first_seen.setdefault(schedule(step), step)
    if (last := schedule(steps - 1)) not in first_seen:
        first_seen[last] = steps - 1
    return [(step, mixing) for mixing, step in first_seen.items()]


def _spread_out(stages: list[tuple[int, Mixing]], at_most: int) -> list[tuple[int, Mixing]]:
    if len(stages) <= at_most:
        return stages
    chosen = np.linspace(0, len(stages) - 1, at_most).round().astype(int)
    return [stages[place] for place in chosen]


def _panel(mixing: Mixing, size: float) -> tuple[str, str]:
    """Edges and nodes of one mixing in a square, and a note where not all edges are drawn."""
    layout = _layout(mixing, size)
    ends, total = _edges(mixing)
    note = "" if len(ends) == total else f" ({len(ends)} of {total} edges drawn)"
    # The more ink there is on the paper, the thinner and fainter each stroke: dense graphs become string art.
    ink = sum(math.dist(layout.points[a], layout.points[b]) for a, b in ends) / size
    opacity = min(0.85, max(0.1, 5.5 / math.sqrt(ink + 1)))
    width = size / 320 * min(1.8, max(0.6, 7 / math.sqrt(ink + 1)))
    radius = min(size * 0.026, max(size * 0.002, 0.22 * layout.spacing))
    lines = "".join(f'<path d="{_curve(layout, a, b, size)}"/>' for a, b in ends)
    if not mixing.is_two_way and len(ends) <= MAX_ARROWS:
        lines += "".join(_arrow_head(layout, a, b, size, radius) for a, b in ends)
    alone = [mixing.n > 1 and not mixing.neighbors(r) and not mixing.listeners(r) for r in range(mixing.n)]
    fill_if_idle = f' fill="{IDLE}"'
    dots = "".join(
        f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"{fill_if_idle if still else ""}/>'
        for (x, y), still in zip(layout.points, alone, strict=True)
    )
    strokes = f'fill="none" stroke="{EDGE}" stroke-width="{_number(width)}" stroke-opacity="{opacity:.2f}"'
    return f'<g {strokes} stroke-linecap="round">{lines}</g>\n<g fill="{NODE}">{dots}</g>\n', note


def _edges(mixing: Mixing) -> tuple[list[Ends], int]:
    """The edges (taken from, taken by) to draw, thinned out above the limit, and how many there are."""
    rows = np.repeat(np.arange(mixing.n), np.diff(mixing.weights.indptr))
    columns = mixing.weights.indices
    kept = np.flatnonzero(columns < rows if mixing.is_two_way else columns != rows)
    total = len(kept)
    if total > MAX_EDGES:  # a random choice: every k-th would draw patterns that are not in the graph
        kept = np.sort(np.random.default_rng(0).choice(kept, MAX_EDGES, replace=False))
    return list(zip(columns[kept].tolist(), rows[kept].tolist(), strict=True)), total


def _layout(mixing: Mixing, size: float) -> Layout:
    n, centre = mixing.n, size / 2
    if n == 1:
        return Layout([(centre, centre)], size)
    if mixing.shape is not None and len(mixing.shape) == 2 and min(mixing.shape) > 2:
        rows, cols = mixing.shape
        spacing = 0.74 * size / (max(rows, cols) - 1)
        left, top = centre - spacing * (cols - 1) / 2, centre - spacing * (rows - 1) / 2
        points = [(left + spacing * (rank % cols), top + spacing * (rank // cols)) for rank in range(n)]
        return Layout(points, spacing, is_grid=True)
    hub = _hub(mixing)
    around = [rank for rank in range(n) if rank != hub]
    points = [(centre, centre)] * n
    radius = 0.43 * size
    for place, rank in enumerate(around):
        angle = 2 * math.pi * place / len(around) - math.pi / 2
        points[rank] = (centre + radius * math.cos(angle), centre + radius * math.sin(angle))
    return Layout(points, 2 * math.pi * radius / len(around), bends=hub is None)


def _hub(mixing: Mixing) -> int | None:
    if mixing.n < 4 or not mixing.is_two_way or mixing.num_edges != mixing.n - 1 or mixing.degree != mixing.n - 1:
        return None
    return max(range(mixing.n), key=lambda rank: len(mixing.neighbors(rank)))


def _control(layout: Layout, a: int, b: int, size: float) -> Point | None:
    """The control point of a curved edge; None where it is straight."""
    (ax, ay), (bx, by), centre = layout.points[a], layout.points[b], size / 2
    x, y, length = (ax + bx) / 2, (ay + by) / 2, math.dist(layout.points[a], layout.points[b])
    if layout.is_grid:
        # A link that wraps around bows out of its row or column, enough to be told from the straight ones.
        bow = 0.12 * length + 0.3 * layout.spacing
        if length < 1.5 * layout.spacing:
            return None
        return (x, y - bow) if ay == by else (x - bow, y)
    if not layout.bends or length < 1.5 * layout.spacing:
        return None
    pull = 0.3 * length / size  # long chords lean towards the centre; next neighbours are joined straight
    return (x + pull * (centre - x), y + pull * (centre - y))


def _curve(layout: Layout, a: int, b: int, size: float) -> str:
    start, end, control = layout.points[a], layout.points[b], _control(layout, a, b, size)
    if control is None:
        return f"M{_pair(start)}L{_pair(end)}"
    if layout.is_grid and math.dist(start, end) > (LARGEST_GRID_WITH_ARCS - 0.5) * layout.spacing:
        return _stub(start, end, layout.spacing) + _stub(end, start, layout.spacing)
    return f"M{_pair(start)}Q{_pair(control)} {_pair(end)}"


def _stub(start: Point, other: Point, spacing: float) -> str:
    """The beginning of a link that leaves the grid at `start`, away from the node where it comes back in."""
    share = 0.55 * spacing / math.dist(start, other)
    out = (start[0] + share * (start[0] - other[0]), start[1] + share * (start[1] - other[1]))
    return f"M{_pair(start)}L{_pair(out)}"


def _arrow_head(layout: Layout, a: int, b: int, size: float, radius: float) -> str:
    tip, came_from = layout.points[b], _control(layout, a, b, size) or layout.points[a]
    length = math.dist(tip, came_from) or 1.0
    ux, uy = (tip[0] - came_from[0]) / length, (tip[1] - came_from[1]) / length
    x, y, long, wide = tip[0] - ux * radius, tip[1] - uy * radius, size * 0.022, size * 0.009
    corners: Sequence[Point] = (
        (x - ux * long - uy * wide, y - uy * long + ux * wide),
        (x, y),
        (x - ux * long + uy * wide, y - uy * long - ux * wide),
    )
    outline = "L".join(_pair(corner) for corner in corners)
    return f'<path fill="{EDGE}" stroke="none" d="M{outline}Z"/>'


def _document(width: float, height: float, title: str, description: str, body: str) -> str:
    w, h = _number(width), _number(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" '
        f'width="{w}" height="{h}" role="img">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n{body}</svg>\n"
    )


def _text(words: str, x: float, y: float, size: float) -> str:
    font = f'font-family="system-ui, sans-serif" font-size="{size}" text-anchor="middle" fill="currentColor"'
    return f'<text x="{_number(x)}" y="{_number(y)}" {font}>{escape(words)}</text>\n'


def _pair(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
