"""What happens at which moment: events that a training follows, and spans that a timeline shows."""

from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal["read", "gradient", "send", "average"]


class Event(NamedTuple):
    """One thing that changes or looks at a model.

    read       the worker takes a copy of the parameters, and computes a gradient there
    gradient   that gradient is ready, and applied
    send       two workers send each other their models
    average    these have arrived: both move by half of the difference of what was sent
    """

    time_s: float
    kind: Kind
    worker: int
    partner: int = -1
    """The other worker of a pair; the first is the one that asked."""
    staleness: int = 0
    """Of a gradient: how often the model was mixed (on a server: stepped by others) since it was read."""


Doing = Literal["compute", "exchange", "wait"]


class Span(NamedTuple):
    """What a worker does from one moment to another. Computing and exchanging may go on at the same time."""

    worker: int
    doing: Doing
    start_s: float
    end_s: float
    partner: int = -1
    """With whom it exchanges, or for whom it waits; -1 for several, or for a server."""


OnSpan = Callable[[Span], None]


def ignore(span: Span) -> None:
    """For those who want no timeline."""
