"""What a recipe is, and what recipes share."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gossamer.bench import Experiment

T = TypeVar("T")

GRAPHS = ("complete", "exponential", "torus", "ring", "ada")
"""The graphs of the published comparison, and Ada, which was compared with them."""
MINIATURE_EPOCHS = 5


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A published comparison by name."""

    make: "Callable[..., tuple[Experiment, ...]]"
    """Makes the experiments. Its keyword arguments are what may be chosen; all else is part of the comparison."""
    summary: str

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of what may be chosen."""
        return tuple(inspect.signature(self.make).parameters)


def given(value: T | None, otherwise: T) -> T:
    """What the user chose, or else the recipe's own."""
    return otherwise if value is None else value


def on_digits(
    *,
    workers: int | tuple[int, ...] = 16,
    graphs: tuple[str, ...] = GRAPHS,
    seeds: int | None,
    epochs: int | None,
    **more: Any,
) -> "Experiment":
    """A comparison in miniature: on the digits, with few workers and epochs, under a minute on a laptop."""
    from gossamer.bench import Experiment

    return Experiment(
        task="digits",
        workers=workers,
        graphs=graphs,
        seeds=given(seeds, 1),
        epochs=given(epochs, MINIATURE_EPOCHS),
        **more,
    )


def ada(workers: int, epochs: int, *, share: float, k0: int | None = None, k_min: int = 2) -> str:
    """The name of the Ada that falls from k0 neighbours (complete when not given) to k_min in this share of the epochs.

    >>> ada(96, 60, share=0.5)
    'ada:gamma=3.1'
    >>> ada(96, 60, share=0.75, k0=32, k_min=8)
    'ada:k0=32:gamma=0.5333:k_min=8'
    """
    if epochs < 1:
        raise ValueError(f"epochs={epochs}: must be 1 or more")
    start = workers - 1 if k0 is None else k0
    settings = {"k0": k0, "gamma": f"{(start - k_min) / (share * epochs):.4g}", "k_min": None if k_min == 2 else k_min}
    return ":".join(["ada", *(f"{key}={value}" for key, value in settings.items() if value is not None)])
