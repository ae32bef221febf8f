"""The first steps of a method as a picture: who computes, exchanges, waits."""

from collections.abc import Callable, Sequence
from html import escape
from math import floor, log10

from gossamer.topologies import Schedule

from ._cluster import Cluster
from ._computation import slow_workers
from ._events import Doing, Span
from ._methods import ALL_REDUCE, ASYNCHRONOUS, asynchronous
from ._rounds import Rounds

MOST_LANES = 8
"""Workers drawn: who is slow, and as many of the others as there is room for."""
_LANE, _GAP = 22.0, 9.0
"""Heights: of a worker's lane, which is half computing and half exchanging, and between two of them."""
_LEFT, _RIGHT, _BOTTOM = 62.0, 30.0, 30.0
_THINNEST = 1.0
"""However short, an exchange can be seen."""
_APART = 0.8
"""Between a gradient and the next, which begins where it ends."""
_COLOURS: dict[Doing, str] = {
    "compute": "var(--computing, #4a7fb0)",
    "exchange": "var(--exchanging, #d98a00)",
    "wait": "var(--waiting, #c9ccd1)",
}
_MOST_STEPS = 12.0
"""Of time on the axis, in usual gradients: longer waits look all the same."""


def timeline_end_s(cluster: Cluster) -> float:
    """So much of the beginning as shows a few steps, and the slowest worker's first.

    >>> from gossamer.clock import Computation
    >>> timeline_end_s(Cluster(workers=4, computation=Computation(mean_s=1.0, slow="1=4")))
    8.0
    """
    factors = slow_workers(cluster.computation.slow, cluster.workers).values()
    return cluster.computation.mean_s * min(4 + max([1.0, *factors]), _MOST_STEPS)


def first_spans(
    algorithm: str,
    cluster: Cluster,
    schedule: Schedule,
    model_bytes: float,
    *,
    end_s: float,
    every: int = 1,
    steps_under_way: int = 0,
) -> list[Span]:
    """What workers do up to a moment, and what is under way then to its end.

    `every` and `steps_under_way` as in `Rounds`.
    """
    spans: list[Span] = []
    if algorithm in ASYNCHRONOUS:
        for event in asynchronous(algorithm, cluster, schedule, model_bytes, on_span=spans.append):
            if event.time_s > end_s:
                break
    else:
        graph = None if algorithm == ALL_REDUCE else schedule
        clock = Rounds(cluster, graph, model_bytes, every=every, steps_under_way=steps_under_way, on_span=spans.append)
        while clock.ready_s.min() <= end_s:
            clock.advance()
    return [span for span in spans if span.start_s < end_s]


def draw_timeline_svg(
    spans: Sequence[Span], cluster: Cluster, *, end_s: float, width: float = 1000.0, title: str
) -> str:
    """A lane a worker, time from left to right: computing above, exchanging and waiting below; pairs are joined.

    Of many workers the first few and the slow ones are shown. Colours are CSS variables with fallbacks (`--computing`,
    `--exchanging`, `--waiting`; text is `currentColor`).
    """
    slow = slow_workers(cluster.computation.slow, cluster.workers)
    lanes = {worker: place for place, worker in enumerate(_shown(cluster.workers, list(slow)))}
    scale = (width - _LEFT - _RIGHT) / end_s
    height = len(lanes) * (_LANE + _GAP) + _BOTTOM

    def x(time_s: float) -> float:
        return _LEFT + scale * min(time_s, end_s)

    def y(worker: int) -> float:
        return lanes[worker] * (_LANE + _GAP)

    drawn = [_label(y(worker), f"{worker} ({slow[worker]:g}×)" if worker in slow else str(worker)) for worker in lanes]
    drawn += [_bar(span, x(span.start_s), x(span.end_s), y(span.worker)) for span in spans if span.worker in lanes]
    for span in spans:
        if span.doing == "exchange" and span.worker < span.partner and {span.worker, span.partner} <= lanes.keys():
            drawn.append(_joint(x(span.start_s), *sorted((y(span.worker), y(span.partner)))))
    drawn.append(_axis(end_s, x, height - _BOTTOM))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" font-size="12">'
        f"<title>{escape(title)}</title>\n" + "\n".join(drawn) + "\n</svg>\n"
    )


def _shown(workers: int, slow: Sequence[int]) -> list[int]:
    others = [worker for worker in range(workers) if worker not in slow]
    kept = list(slow)[:MOST_LANES]
    return sorted(kept + others[: MOST_LANES - len(kept)])


def _label(y: float, words: str) -> str:
    return f'<text x="{_LEFT - 10:g}" y="{y + _LANE / 2 + 4:.1f}" text-anchor="end" fill="currentColor">{words}</text>'


def _bar(span: Span, left: float, right: float, y: float) -> str:
    top = y if span.doing == "compute" else y + _LANE / 2
    thick = _LANE / 2 - 1
    wide = max(right - left - _APART, _THINNEST)
    return f'<rect x="{left:.1f}" y="{top:g}" width="{wide:.1f}" height="{thick:g}" fill="{_COLOURS[span.doing]}"/>'


def _joint(x: float, upper: float, lower: float) -> str:
    return (
        f'<line x1="{x + 0.5:.1f}" x2="{x + 0.5:.1f}" y1="{upper + _LANE:.1f}" y2="{lower + _LANE / 2:.1f}" '
        f'stroke="{_COLOURS["exchange"]}" stroke-width="1" stroke-opacity="0.55"/>'
    )


def _axis(end_s: float, x: Callable[[float], float], y: float) -> str:
    step = _round_number(end_s / 8)
    marks = [step * i for i in range(int(end_s / step) + 1)]
    unit, times = ("ms", 1e3) if end_s < 1 else ("s", 1.0)
    ticks = "".join(
        f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{y:g}" y2="{y + 4:g}" stroke="currentColor"/>'
        f'<text x="{x(mark):.1f}" y="{y + 18:g}" text-anchor="middle" fill="currentColor">{times * mark:g}'
        f"{f' {unit}' if place == len(marks) - 1 else ''}</text>"
        for place, mark in enumerate(marks)
    )
    return f'<line x1="{x(0):.1f}" x2="{x(end_s):.1f}" y1="{y:g}" y2="{y:g}" stroke="currentColor"/>{ticks}'


def _round_number(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less.

    >>> [_round_number(x) for x in (0.013, 0.9, 3.0)]
    [0.02, 1.0, 5.0]
    """
    power = 10.0 ** floor(log10(least))
    return next(float(f"{digit * power:.6g}") for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
