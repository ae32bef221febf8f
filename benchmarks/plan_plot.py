"""Predicted against measured iteration times, as an SVG for the docs.

python benchmarks/plan_plot.py benchmarks/DATE-plan-published benchmarks/DATE-plan-real --out docs/planner.svg
"""

import csv
from html import escape
from math import log10
from pathlib import Path
from typing import Annotated

import typer

from gossamer._files import write_text
from plan_real import read, summaries

_SIZE, _LEFT, _TOP, _BOTTOM, _RIGHT = 460.0, 70.0, 20.0, 56.0, 290.0
_LOW, _HIGH = 5.0, 500.0
_MARKS = (5, 10, 20, 50, 100, 200, 500)
_COLOURS = {
    "published, computation time known": "#177369",
    "published, computation ∝ tokens": "#9aa3ad",
    "here, DDP": "#b24a2b",
    "here, Gossamer": "#3b6fb0",
}
Point = tuple[str, float, float, str]
"""Kind, measured, predicted, what it is."""


def main(
    published: Annotated[Path, typer.Argument(help="Folder of plan_published.py.")],
    real: Annotated[Path, typer.Argument(help="Folder of plan_real.py.")],
    out: Annotated[Path, typer.Option(help="Where the drawing goes.")],
) -> None:
    points = _of_published(published) + _of_real(real)
    write_text(out, drawn(points))
    print(f"{len(points)} points, drawn into {out}")


def _of_published(folder: Path) -> list[Point]:
    with (folder / "rows.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["is_fitted"] == "False"]
    known, strict, *_ = _COLOURS
    points = []
    for row in rows:
        name, measured = f"{row['cluster']}, {row['workers']}, {row['topology']}", float(row["published_ms"])
        points.append((strict, measured, float(row["predicted_ms"]), name))
        if row["topology"] != "alternating-exponential-ring":  # its time is what the computation was taken from
            points.append((known, measured, float(row["predicted_computation_known_ms"]), name))
    return points


def _of_real(folder: Path) -> list[Point]:
    *_, ddp, ours = _COLOURS
    return [
        (
            ddp if row["method"] == "ddp" else ours,
            row["measured_ms"],
            row["predicted_ms"],
            f"{row['case']}, {row['method']}",
        )
        for row in summaries(read(folder))
    ]


def drawn(points: list[Point]) -> str:
    """Both axes logarithmic; the diagonal, and bands of 10 and 20 % around it."""
    frame = f'x="{_LEFT:g}" y="{_TOP:g}" width="{_SIZE:g}" height="{_SIZE:g}"'
    clip = f'<clipPath id="axes"><rect {frame}/></clipPath>'
    parts, floor = [clip, _band(0.2, 0.07), _band(0.1, 0.12), _diagonal()], _TOP + _SIZE
    for mark in _MARKS:
        at = _x(mark)
        parts += [
            _text(at, floor + 18, f"{mark}", "middle"),
            _text(_LEFT - 8, _y(mark) + 4, f"{mark}", "end"),
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{floor:g}" y2="{floor + 5:g}" stroke="currentColor"/>',
        ]
    parts.append(f'<rect {frame} fill="none" stroke="currentColor"/>')
    parts += [
        f'<circle cx="{_x(measured):.1f}" cy="{_y(predicted):.1f}" r="4" fill="{_COLOURS[kind]}" fill-opacity="0.8">'
        f"<title>{escape(name)}: {measured:.1f} ms, predicted {predicted:.1f}</title></circle>"
        for kind, measured, predicted, name in points
    ]
    for place, (kind, colour) in enumerate(_COLOURS.items()):
        y = _TOP + 20 + 22 * place
        parts += [
            f'<circle cx="{_LEFT + _SIZE + 18:g}" cy="{y - 4:g}" r="5" fill="{colour}"/>',
            _text(_LEFT + _SIZE + 30, y, kind, "start"),
        ]
    parts += [
        _text(_LEFT + _SIZE / 2, _TOP + _SIZE + 42, "measured, ms an iteration", "middle"),
        f'<text transform="translate(18 {_TOP + _SIZE / 2:g}) rotate(-90)" text-anchor="middle" '
        'fill="currentColor">predicted</text>',
        _text(_LEFT + _SIZE + 12, _TOP + 20 + 22 * len(_COLOURS), "bands: 10 and 20 %", "start"),
    ]
    width, height = _LEFT + _SIZE + _RIGHT, _TOP + _SIZE + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" color="#555" '
        'font-family="system-ui, sans-serif" font-size="13"><title>Predicted against measured iteration times</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _x(value_ms: float) -> float:
    return _LEFT + _SIZE * (log10(value_ms) - log10(_LOW)) / (log10(_HIGH) - log10(_LOW))


def _y(value_ms: float) -> float:
    return _TOP + _SIZE - (_x(value_ms) - _LEFT)


def _band(share: float, opacity: float) -> str:
    above, below = 1 + share, 1 / (1 + share)
    corners = [(_LOW, _LOW * above), (_HIGH, _HIGH * above), (_HIGH, _HIGH * below), (_LOW, _LOW * below)]
    points = " ".join(f"{_x(a):.1f},{_y(b):.1f}" for a, b in corners)
    return f'<polygon clip-path="url(#axes)" points="{points}" fill="currentColor" fill-opacity="{opacity}"/>'


def _diagonal() -> str:
    return (
        f'<line x1="{_x(_LOW):.1f}" y1="{_y(_LOW):.1f}" x2="{_x(_HIGH):.1f}" y2="{_y(_HIGH):.1f}" '
        'stroke="currentColor" stroke-opacity="0.6"/>'
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'


if __name__ == "__main__":
    typer.run(main)
