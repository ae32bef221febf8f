"""DBench: centralized and decentralized training under one harness, seen from inside."""

from .experiment import Experiment, Run
from .launch import EpochDone, Event, RunDone, RunStarted, SweepStarted, WorkerFailed
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
