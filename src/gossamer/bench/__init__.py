"""DBench: centralized and decentralized training under one harness, seen from inside."""

from .events import EpochDone, Event, RunDone, RunStarted, SweepStarted
from .experiment import Experiment
from .one_run import Run
from .processes import WorkerFailed
from .store import RunResult
from .sweep import Results, run

__all__ = [
    "EpochDone",
    "Event",
    "Experiment",
    "Results",
    "Run",
    "RunDone",
    "RunResult",
    "RunStarted",
    "SweepStarted",
    "WorkerFailed",
    "run",
]
