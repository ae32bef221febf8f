"""Trains runs one after the other in this process."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from .events import EpochDone, OnEvent, RunDone, RunStarted
from .one_run import Run
from .out_of_step import serve
from .outcome import Outcome
from .train import begin_training, make_engine, num_threads, train


def train_in_turn(runs: Iterable[Run], on_event: OnEvent, folder: Path, group: ProcessGroup | None = None) -> None:
    """Train all runs and tell of what happens; `group` is the process group of the processes engine.

    A rank beyond the workers is a server, and has nothing to tell.

    Checkpoints go to the runs' folders inside `folder`; a run that was stopped goes on from its last one.
    """
    for run in runs:
        with _threads_of(run):
            on_event(RunStarted(run))
            outcome = _train_one(run, on_event, folder, group)
            if run.device.startswith("cuda"):
                gc.collect()  # an engine and its parts refer to each other: the next one needs their memory
            on_event(RunDone(run, outcome))


def _train_one(run: Run, on_event: OnEvent, folder: Path, group: ProcessGroup | None) -> Outcome:
    if group is not None and group.rank() == run.workers:
        serve(begin_training(run, group))
        return Outcome()
    engine = make_engine(run, group)
    outcome = train(run, engine, on_epoch=lambda run, row: on_event(EpochDone(run, row)), folder=folder / run.folder)
    engine.close()
    return outcome


@contextmanager
def _threads_of(run: Run) -> Iterator[None]:
    """As many threads as the task is fast with; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads(run))
    try:
        yield
    finally:
        torch.set_num_threads(before)
