"""The regime map as a picture."""

from html import escape

from ._regimes import Regimes, nearest

_CELL_W, _CELL_H = 52.0, 30.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 74.0, 46.0, 16.0, 84.0
_STRONGEST = 2.5
"""The speed-up at which the colour is full."""
_WINS, _LOSES = (23, 115, 105), (178, 74, 43)


def draw_map_svg(found: Regimes) -> str:
    """A cell for each ratio and spread: the speed-up, coloured by who wins, framed where the plan is."""
    rows, columns = len(found.spreads), len(found.ratios)
    width = _LEFT + columns * _CELL_W + _RIGHT
    height = _TOP + rows * _CELL_H + _BOTTOM
    drawn = [_text(_LEFT, 20, title(found), "start", 14, bold=True)]
    for y, spread in enumerate(reversed(found.spreads)):
        row = rows - 1 - y
        top = _TOP + y * _CELL_H
        drawn.append(_text(_LEFT - 8, top + _CELL_H / 2 + 4, f"{spread:g}", "end"))
        for column, graph in enumerate(found.graphs[row]):
            left = _LEFT + column * _CELL_W
            drawn.append(_cell(left, top, float(found.speedups[row, column]), graph))
    for column, ratio in enumerate(found.ratios):
        if column % 2 == 0:
            drawn.append(_text(_LEFT + (column + 0.5) * _CELL_W, _TOP + rows * _CELL_H + 16, ratio_text(ratio)))
    middle, under = _LEFT + columns * _CELL_W / 2, _TOP + rows * _CELL_H + 36
    drawn.append(_text(middle, under, "all-reduce ÷ computation, where nothing overlaps"))
    drawn.append(
        f'<text transform="translate(18 {_TOP + rows * _CELL_H / 2:g}) rotate(-90)" text-anchor="middle" '
        'fill="currentColor">spread of computation times (standard deviation ÷ mean)</text>'
    )
    drawn.append(_frame(found))
    drawn.append(_text(middle, under + 24, says(found)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12">'
        f"<title>{escape(title(found))}</title>\n" + "\n".join(drawn) + "\n</svg>\n"
    )


def map_page(found: Regimes) -> str:
    """The picture on a page that opens offline."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title(found))}</title>\n"
        "<style>:root{color-scheme:light dark}body{margin:2rem auto;max-width:960px;padding:0 1rem}svg{width:100%}"
        f"</style></head>\n<body>\n{draw_map_svg(found)}</body></html>\n"
    )


def title(found: Regimes) -> str:
    return f"Times as fast as all-reduce, the best topology of {found.workers} workers"


def says(found: Regimes) -> str:
    """What the frame is."""
    ratio, spread = found.here
    return f"Framed: this plan, {ratio_text(ratio)} and {spread:.2g}"


def ratio_text(ratio: float) -> str:
    """
    >>> ratio_text(0.25), ratio_text(2.9), ratio_text(0.3)
    ('1/4', '2.9', '0.3')
    """
    inverse = 1 / ratio if ratio else 0.0
    return f"1/{inverse:.0f}" if inverse > 1 and abs(inverse - round(inverse)) < 1e-9 else f"{ratio:.2g}"


def shade(speedup: float) -> tuple[int, int, int]:
    """From white at 1 to full where one of the two wins by far."""
    wins = speedup >= 1
    share = min(((speedup if wins else 1 / speedup) - 1) / (_STRONGEST - 1), 1.0)
    red, green, blue = (round(255 + share * (full - 255)) for full in (_WINS if wins else _LOSES))
    return red, green, blue


def _cell(left: float, top: float, speedup: float, graph: str) -> str:
    red, green, blue = shade(speedup)
    ink = "#fff" if red + green + blue < 400 else "#222"
    return (
        f'<g><title>{escape(graph)}</title><rect x="{left:g}" y="{top:g}" width="{_CELL_W:g}" height="{_CELL_H:g}" '
        f'fill="rgb({red},{green},{blue})"/><text x="{left + _CELL_W / 2:g}" y="{top + _CELL_H / 2 + 4:g}" '
        f'text-anchor="middle" fill="{ink}">{speedup:.2f}</text></g>'
    )


def _frame(found: Regimes) -> str:
    column = nearest(found.ratios, found.here[0])
    row = len(found.spreads) - 1 - nearest(found.spreads, found.here[1])
    left, top = _LEFT + column * _CELL_W + 1, _TOP + row * _CELL_H + 1
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{_CELL_W - 2:g}" height="{_CELL_H - 2:g}" fill="none" '
        'stroke="#111" stroke-width="2.5"/>'
    )


def _text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}"{weight} fill="currentColor">'
        f"{escape(words)}</text>"
    )
