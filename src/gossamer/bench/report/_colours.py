"""One colour for each graph, the same in every plot, table and drawing, in a light and a dark shade.

Okabe and Ito's colours, which people with any kind of colour vision tell apart, in the order dense to sparse: blue,
sky, green, orange, vermilion. What changes over time (Ada) is purple, the centralized baseline grey.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Rgb = tuple[int, int, int]

_DENSE_TO_SPARSE: dict[str, tuple[Rgb, ...]] = {
    "light": ((0, 98, 165), (58, 160, 214), (0, 142, 104), (217, 144, 0), (201, 76, 12)),
    "dark": ((74, 152, 222), (140, 205, 245), (46, 189, 145), (240, 176, 48), (240, 112, 60)),
}
_PICKS = {1: (0,), 2: (0, 4), 3: (0, 2, 4), 4: (0, 2, 3, 4)}
"""Few graphs take colours far apart; five or more divide the whole range evenly."""
_CHANGING: dict[str, tuple[Rgb, ...]] = {
    "light": ((150, 70, 160), (205, 95, 150), (95, 70, 175)),
    "dark": ((200, 130, 215), (235, 145, 190), (155, 135, 240)),
}
_CENTRALIZED: dict[str, Rgb] = {"light": (92, 96, 104), "dark": (172, 176, 184)}
_BAND_ALPHA = 38  # of 255


@dataclass(frozen=True)
class Colour:
    """A name in the style sheet, with its shades."""

    variable: str
    shades: dict[str, Rgb]

    @property
    def band(self) -> str:
        """The variable of the same colour, almost transparent."""
        return f"{self.variable}-band"


def centralized() -> Colour:
    return Colour("--centralized", _CENTRALIZED)


def changing(place: int) -> Colour:
    """For the graph at `place` among those that change over time."""
    shades = {theme: colours[place % len(colours)] for theme, colours in _CHANGING.items()}
    return Colour(f"--changing-{place}", shades)


def lasting(place: int, number: int) -> Colour:
    """For the graph at `place` of `number`, the densest first, that do not change over time."""
    last = len(_DENSE_TO_SPARSE["light"]) - 1
    at = _PICKS[number][place] if number in _PICKS else last * place / (number - 1)
    return Colour(f"--lasting-{place}", {theme: _between(colours, at) for theme, colours in _DENSE_TO_SPARSE.items()})


def style_sheet(colours: Iterable[Colour], theme: str) -> str:
    """The variables of all colours in one theme."""
    lines = []
    for colour in colours:
        shade = "#{:02x}{:02x}{:02x}".format(*colour.shades[theme])
        lines += [f"{colour.variable}: {shade};", f"{colour.band}: {shade}{_BAND_ALPHA:02x};"]
    return " ".join(lines)


def _between(colours: tuple[Rgb, ...], at: float) -> Rgb:
    below = min(int(at), len(colours) - 2)
    red, green, blue = (
        round(a + (b - a) * (at - below)) for a, b in zip(colours[below], colours[below + 1], strict=True)
    )
    return red, green, blue
