"""Carries runs out: stacked in this process, on processes that it starts, or on those that torchrun made."""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, TCPStore  # type: ignore[attr-defined]

from gossamer.engines import NeighborLost

from .experiment import Run
from .outcome import Outcome, Row
from .train import make_engine, num_threads, train

_TIMEOUT = timedelta(minutes=5)
_PRELOAD = ["gossamer.bench.launch"]
"""Imported once by the fork server, with torch; the workers inherit it and start in a fraction of a second."""


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


class WorkerFailed(RuntimeError):
    """A worker process of the sweep died or raised."""


def launch(runs: Sequence[Run], on_event: OnEvent, folder: Path) -> None:
    """Train all runs, one after the other, and tell of what happens. All must be of one engine and size.

    Checkpoints go to the runs' folders inside `folder`; a run that was stopped goes on from its last one.
    """
    if not runs:
        return
    if runs[0].engine == "stacked":
        _train_all(runs, on_event, folder)
    elif under_torchrun():
        _train_all(runs, on_event, folder, torchrun_group(runs[0].workers))
    else:
        _on_local_processes(runs, on_event, folder)


def _train_all(runs: Iterable[Run], on_event: OnEvent, folder: Path, group: ProcessGroup | None = None) -> None:
    for run in runs:
        with _threads_of(run):
            on_event(RunStarted(run))
            engine = make_engine(run, group)
            outcome = train(
                run,
                engine,
                on_epoch=lambda run, row: on_event(EpochDone(run, row)),
                folder=folder / run.folder,
            )
            engine.close()
            on_event(RunDone(run, outcome))


@contextmanager
def _threads_of(run: Run) -> Iterator[None]:
    """As many threads as the task is fast with; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads(run))
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- torchrun --------------------------------------------------------------------------------------------


def under_torchrun() -> bool:
    """Whether a launcher has started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def torchrun_group(num_workers: int) -> ProcessGroup:
    """The group of all processes that torchrun has started; there must be as many as workers."""
    if torchrun_size() != num_workers:
        raise ValueError(
            f"torchrun has made {torchrun_size()} processes for {num_workers} workers: "
            f"leave --workers out, or start torchrun with --nproc-per-node {num_workers}"
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


# ---- processes of our own --------------------------------------------------------------------------------


def refuse_in_a_worker() -> None:
    """A worker imports the script that started it; if that import calls for workers again, say how to write it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself checks
        raise ValueError(
            "the workers import the script that starts them, which must not start workers again: "
            'put the call of run() under if __name__ == "__main__":'
        )


def _on_local_processes(runs: Sequence[Run], on_event: OnEvent, folder: Path) -> None:
    size = runs[0].workers
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    workers: dict[Connection, tuple[int, ForkServerProcess]] = {}
    try:
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=_work, args=(rank, size, store.port, list(runs), folder, there), daemon=True
            )
            process.start()
            there.close()  # the worker holds the only other end: when it dies, `here` reads end-of-file
            workers[here] = (rank, process)
        _listen(workers, on_event)
    finally:
        for _, process in workers.values():
            process.terminate()
            process.join()


def _listen(workers: dict[Connection, tuple[int, ForkServerProcess]], on_event: OnEvent) -> None:
    """Pass on what rank 0 tells until all workers are done; raise on the first that fails."""
    open_ends = dict(workers)
    while open_ends:
        for end in connection.wait(list(open_ends)):
            assert isinstance(end, Connection)
            rank, process = open_ends[end]
            try:
                message = end.recv()
            except EOFError:
                process.join()
                raise WorkerFailed(f"worker {rank} died with exit code {process.exitcode}") from None
            if message is None:
                del open_ends[end]
            elif isinstance(message, str):
                raise WorkerFailed(f"worker {rank} failed: {message}")
            else:
                on_event(message)


def _work(rank: int, size: int, port: int, runs: list[Run], folder: Path, tell: "Connection[Any, Any]") -> None:
    """The life of one worker: all runs, one after the other; rank 0 tells of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent decides and ends the workers
    threading.Thread(target=_die_with_parent, args=(tell,), daemon=True).start()
    try:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
        group = dist.group.WORLD
        assert group is not None
        _train_all(runs, tell.send if rank == 0 else lambda event: None, folder, group)
        dist.barrier()
        dist.destroy_process_group()
        tell.send(None)
    except NeighborLost as error:
        with suppress(OSError):
            tell.send(str(error))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)  # not foreseen: show where
        tell.send(f"{type(error).__name__}: {error}")


def _die_with_parent(tell: "Connection[Any, Any]") -> None:
    """The parent never writes; when its end of the pipe is gone, so is the parent, and nobody wants the work."""
    with suppress(EOFError, OSError):
        tell.recv()
    os._exit(1)
