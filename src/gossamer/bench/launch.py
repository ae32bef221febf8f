"""Carries runs out: stacked in this process or several at a time, on a process a worker, or on those of torchrun."""

import os
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import torch.distributed as dist
from torch.distributed import ProcessGroup

from .events import OnEvent
from .in_turn import train_in_turn
from .one_run import Run
from .processes import a_process_a_worker, several_at_a_time
from .train import num_threads

_TIMEOUT = timedelta(minutes=5)


def launch(runs: Sequence[Run], on_event: OnEvent, folder: Path, *, jobs: int = 1) -> None:
    """Train all runs, `jobs` at a time, and tell of what happens. On processes all must have as many workers.

    Checkpoints go to the runs' folders inside `folder`; a run that was stopped goes on from its last one.
    """
    if not runs:
        return
    if runs[0].engine == "stacked" and jobs == 1:
        train_in_turn(runs, on_event, folder)
    elif runs[0].engine == "stacked":
        several_at_a_time(runs, on_event, folder, jobs=jobs)
    elif under_torchrun():
        train_in_turn(runs, on_event, folder, torchrun_group(runs))
    else:
        for _, same in groupby(runs, key=lambda run: run.num_processes):
            a_process_a_worker(list(same), on_event, folder)


def check_jobs(runs: Sequence[Run], jobs: int) -> None:
    """Refuse what cannot work. How many threads a run has may change the last digits, so jobs do not change that."""
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: must be 1 or more")
    if jobs == 1 or not runs:
        return
    if runs[0].engine != "stacked":
        raise ValueError(
            f"jobs={jobs}: the processes engine has a process for each replica and trains one run at a time; "
            "leave --jobs out, or take --engine stacked"
        )
    threads, cores = max(map(num_threads, runs)), os.cpu_count() or 1
    if runs[0].device == "cpu" and threads > 1 and jobs * threads > cores:
        raise ValueError(
            f"jobs={jobs}: a run of {runs[0].task!r} takes {threads} threads already, and there are {cores} cores; "
            "leave --jobs out, or set OMP_NUM_THREADS to fewer threads a run"
        )


# ---- torchrun --------------------------------------------------------------------------------------------


def under_torchrun() -> bool:
    """Whether a launcher has started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def torchrun_group(runs: Sequence[Run]) -> ProcessGroup:
    """The group of all processes that torchrun has started; there must be as many as all runs need."""
    needed = sorted({run.num_processes for run in runs})
    if len(needed) > 1:
        raise ValueError(
            f"torchrun has made {torchrun_size()} processes, but one method needs {needed[0]} and the other, which "
            f"has a server, {needed[1]}: start without torchrun"
        )
    if torchrun_size() != needed[0]:
        raise ValueError(
            f"torchrun has made {torchrun_size()} processes for {runs[0].workers} workers: "
            f"leave --workers out, or start torchrun with --nproc-per-node {needed[0]}"
        )
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    group = dist.group.WORLD
    assert group is not None
    return group


def torchrun_size() -> int | None:
    """How many processes torchrun has started; None when it has not."""
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else None


def torchrun_rank() -> int:
    """Which of them this is; 0 when it is alone."""
    return int(os.environ["RANK"]) if under_torchrun() else 0
