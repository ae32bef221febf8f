"""Processes that a sweep starts: one for each replica, or one for each of several runs at a time.

A child talks to its parent over a pipe. When either dies, the other reads end-of-file: the parent then stops the sweep,
and a child ends itself, as nobody wants its work. Children start from a fork server that has imported torch already.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from gossamer.engines import NeighborLost, OutOfMemory

from .events import OnEvent, RunDone
from .in_turn import train_in_turn
from .one_run import Run

FORESEEN: tuple[type[Exception], ...] = (NeighborLost, OutOfMemory)
"""How a training may fail, in a sentence that says it all: shown without a traceback, and finished runs are kept."""
_SAID_IN_A_SENTENCE: tuple[type[Exception], ...] = (*FORESEEN, ValueError)
_TIMEOUT = timedelta(minutes=5)
_PATIENCE_S = 10.0
"""For a child that was told to end; then it is killed."""
_PRELOAD = ["gossamer.bench.launch", "torch._dynamo"]
"""Imported once by the fork server, with torch and what the first optimizer of a process would import; the children
inherit it and start in a fraction of a second."""


class WorkerFailed(RuntimeError):
    """A process of the sweep died or raised."""


@dataclass(frozen=True)
class _Failed:
    """The last words of a child."""

    sentence: str
    is_refusal: bool = False
    """Bad input or damaged files, as a `ValueError` says."""


# ---- what the parent does ----------------------------------------------------------------------------------


def a_process_a_worker(runs: Sequence[Run], on_event: OnEvent, folder: Path) -> None:
    """Train runs of one size, one after the other, with a process for each worker. Rank 0 tells of them."""
    size = runs[0].num_processes
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    with _children(_be_a_rank, [(rank, size, store.port, list(runs), folder) for rank in range(size)]) as children:
        ranks = {end: rank for rank, end in enumerate(children)}
        while ranks:
            for end in _ready(ranks):
                message = _receive(end, children[end], f"worker {ranks[end]}")
                if message is None:
                    del ranks[end]
                else:
                    on_event(message)


def several_at_a_time(runs: Sequence[Run], on_event: OnEvent, folder: Path, *, jobs: int) -> None:
    """Train `jobs` runs at a time, each in a process, which takes the next run when it is done with one."""
    waiting, at_work = deque(runs), dict[Connection, Run]()

    def give_work(end: Connection) -> None:
        at_work.pop(end, None)
        if waiting:
            at_work[end] = waiting.popleft()
            with suppress(OSError):  # the process has died, as its end of the pipe will say
                end.send(at_work[end])

    # The number of threads can show in the last digits: each process takes that of this one, whatever its own would be.
    with _children(_be_a_job, [(folder, torch.get_num_threads())] * min(jobs, len(runs))) as children:
        for end in children:
            give_work(end)
        while at_work:
            for end in _ready(at_work):
                message = _receive(end, children[end], f"the process that trains {at_work[end].folder}")
                if isinstance(message, RunDone):
                    give_work(end)  # before the results are written, which may take a while
                on_event(message)


def refuse_in_a_child() -> None:
    """A child imports the script that started it; if that import calls for children again, say how to write it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself checks
        raise ValueError(
            "the workers import the script that starts them, which must not start workers again: "
            'put the call of run() under if __name__ == "__main__":'
        )


@contextmanager
def _children(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> Iterator["_Children"]:
    """A process for each of the arguments; all are gone when the block is left, however it is left."""
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    children: _Children = {}
    try:
        for each in arguments:
            here, there = context.Pipe()
            process = context.Process(target=_live, args=(there, work, each), daemon=True)
            process.start()
            there.close()  # the child holds the only other end: when it dies, `here` reads end-of-file
            children[here] = process
        yield children
    finally:
        for process in children.values():
            process.terminate()
        for process in children.values():
            process.join(_PATIENCE_S)
            if process.exitcode is None:
                process.kill()
                process.join()


_Children = dict[Connection, ForkServerProcess]


def _ready(ends: dict[Connection, Any]) -> list[Connection]:
    """The ends at which there is something to read."""
    return [end for end in connection.wait(list(ends)) if isinstance(end, Connection)]


def _receive(end: Connection, process: ForkServerProcess, who: str) -> Any:
    """What a child says; that it failed is raised."""
    try:
        message = end.recv()
    except (EOFError, OSError):
        process.join()
        killed = " (killed: is there enough memory?)" if process.exitcode == -signal.SIGKILL else ""
        raise WorkerFailed(f"{who} died with exit code {process.exitcode}{killed}") from None
    if isinstance(message, _Failed):
        raise ValueError(message.sentence) if message.is_refusal else WorkerFailed(f"{who} failed: {message.sentence}")
    return message


# ---- what a child does -------------------------------------------------------------------------------------

_Tell = Callable[[Any], None]
_Orders = Callable[[], Any]


def _live(pipe: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """The life of a child: it works, and says at the end what went wrong, if anything did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent decides and ends the children
    orders = SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    try:
        work(pipe.send, orders.get, *arguments)
    except _SAID_IN_A_SENTENCE as error:
        with suppress(OSError):
            pipe.send(_Failed(str(error), is_refusal=isinstance(error, ValueError)))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)  # not foreseen: show where
        with suppress(OSError):
            pipe.send(_Failed(f"{type(error).__name__}: {error}"))


def _listen(pipe: Connection, orders: "SimpleQueue[Any]") -> None:
    """Queue what the parent says; when its end of the pipe is gone, so is the parent, and nobody wants the work."""
    with suppress(EOFError, OSError):
        while True:
            orders.put(pipe.recv())
    os._exit(1)


def _be_a_rank(tell: _Tell, orders: _Orders, rank: int, size: int, port: int, runs: list[Run], folder: Path) -> None:
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    train_in_turn(runs, tell if rank == 0 else lambda event: None, folder, dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()
    tell(None)


def _be_a_job(tell: _Tell, orders: _Orders, folder: Path, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    while True:  # until the parent ends it
        train_in_turn([orders()], tell, folder)
