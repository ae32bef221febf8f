"""One colour for each graph, the same in every plot, table and drawing, in a light and a dark shade.

Okabe and Ito's colours, which people with any kind of colour vision tell apart, in the order dense to sparse: blue,
sky, green, orange, vermilion; olive and crimson help out where there are more. What changes over time (Ada) is purple,
the centralized baseline grey.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Rgb = tuple[int, int, int]

_DENSE_TO_SPARSE: dict[str, tuple[Rgb, ...]] = {
    "light": (
        (0, 98, 165),
        (58, 160, 214),
        (0, 142, 104),
        (140, 150, 20),
        (217, 144, 0),
        (201, 76, 12),
        (140, 25, 60),
    ),
    "dark": (
        (74, 152, 222),
        (140, 205, 245),
        (46, 189, 145),
        (190, 200, 85),
        (240, 176, 48),
        (240, 112, 60),
        (235, 95, 125),
    ),
}
_PICKS = {
    1: (0,),
    2: (0, 5),
    3: (0, 2, 5),
    4: (0, 2, 4, 5),
    5: (0, 1, 2, 4, 5),
    6: (0, 1, 2, 3, 4, 5),
    7: (0, 1, 2, 3, 4, 5, 6),
}
"""Few graphs take colours far apart; more divide the range evenly, and every second one steps aside in lightness."""
_ASIDE: dict[str, Rgb] = {"light": (0, 0, 0), "dark": (255, 255, 255)}
_STEP_ASIDE = 0.4
_CHANGING: dict[str, tuple[Rgb, ...]] = {
    "light": ((150, 70, 160), (205, 95, 150), (95, 70, 175)),
    "dark": ((200, 130, 215), (235, 145, 190), (155, 135, 240)),
}
_CENTRALIZED: dict[str, Rgb] = {"light": (92, 96, 104), "dark": (172, 176, 184)}
_BAND_ALPHA, _ALL_BANDS = 38, 230
"""Of 255: the opacity of one band, and of all together, lest many bands become a fog."""


@dataclass(frozen=True)
class Colour:
    """A name in the style sheet, with its shades."""

    variable: str
    shades: dict[str, Rgb]

    @property
    def band(self) -> str:
        """The variable of the same colour, almost transparent."""
        return f"{self.variable}-band"


def centralized(place: int = 0) -> Colour:
    """For the centralized baseline, or the one at `place` where runs of several experiments are joined."""
    aside = min(_STEP_ASIDE * place, 0.8)
    shades = {theme: _between(shade, _ASIDE[theme], aside) for theme, shade in _CENTRALIZED.items()}
    return Colour(f"--centralized-{place}", shades)


def changing(place: int) -> Colour:
    """For the graph at `place` among those that change over time."""
    shades = {}
    for theme, colours in _CHANGING.items():
        aside = min(_STEP_ASIDE * (place // len(colours)), 0.8)
        shades[theme] = _between(colours[place % len(colours)], _ASIDE[theme], aside)
    return Colour(f"--changing-{place}", shades)


def lasting(place: int, number: int) -> Colour:
    """For the graph at `place` of `number`, the densest first, that do not change over time."""
    shades = {}
    for theme, colours in _DENSE_TO_SPARSE.items():
        if number in _PICKS:
            shades[theme] = colours[_PICKS[number][place]]
        else:
            at = (len(colours) - 1) * place / (number - 1)
            below = min(int(at), len(colours) - 2)
            shade = _between(colours[below], colours[below + 1], at - below)
            shades[theme] = _between(shade, _ASIDE[theme], _STEP_ASIDE) if place % 2 else shade
    return Colour(f"--lasting-{place}", shades)


def style_sheet(colours: Sequence[Colour], theme: str) -> str:
    """The variables of all colours in one theme."""
    alpha = min(_BAND_ALPHA, _ALL_BANDS // max(len(colours), 1))
    lines = []
    for colour in colours:
        shade = "#{:02x}{:02x}{:02x}".format(*colour.shades[theme])
        lines += [f"{colour.variable}: {shade};", f"{colour.band}: {shade}{alpha:02x};"]
    return " ".join(lines)


def _between(one: Rgb, other: Rgb, share: float) -> Rgb:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue
