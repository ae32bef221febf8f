"""What a sweep tells while it runs."""

from collections.abc import Callable
from dataclasses import dataclass

from .one_run import Run
from .outcome import Outcome, Row


@dataclass(frozen=True)
class SweepStarted:
    runs: list[Run]
    """What is left to do."""
    num_done: int


@dataclass(frozen=True)
class RunStarted:
    run: Run


@dataclass(frozen=True)
class EpochDone:
    run: Run
    row: Row


@dataclass(frozen=True)
class RunDone:
    run: Run
    outcome: Outcome


Event = SweepStarted | RunStarted | EpochDone | RunDone
OnEvent = Callable[[Event], None]
