"""Asynchronous methods with a process a worker: each trains at a pace of its own, and all are measured together."""

import io
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, Store  # type: ignore[attr-defined]
from torch.optim import Optimizer

from gossamer import algorithms, topologies
from gossamer.clock import PARAMETER_SERVER
from gossamer.engines import Asynchronous, AsynchronousPairs, Loss, OneReplica, Served, Transport, Wire, join_world
from gossamer.engines.around_step import Probe

from .feed import Feed
from .one_run import Run
from .pace import Pace
from .virtual_time import place

_PATIENCE = timedelta(days=365)
"""An epoch may be long. Should somebody die, whoever has started the processes ends them all."""
_TOGETHER, _SAVE, _LOAD, _CLOSE = "come together", "save", "load", "close"
"""What a server is told to do."""


def begin(run: Run, model: nn.Module, optimizer: Optimizer, group: ProcessGroup) -> Asynchronous:
    """Workers, and behind them a server where the method has one, connected and ready."""
    settings: dict[str, Any] = {
        "algorithm": algorithms.build(run.algorithm),
        "world": join_world(group),
        "wire": Wire(),
    }
    if is_served(run):
        star = topologies.build(run.graph, group.size())
        return Served(model, optimizer, schedule=star, server=run.workers, **settings)
    return AsynchronousPairs(model, optimizer, schedule=run.schedule(), seed=run.seed, **settings)


def is_served(run: Run) -> bool:
    return run.algorithm == PARAMETER_SERVER


class Worker(OneReplica):
    """One worker as the harness sees it: trains its share of an epoch, and is measured with the others after it.

    The work is shared, in the order in which workers ask. An epoch is over when so many gradients were applied as there
    are batches. That finds others in the middle of one: a gradient that is not due yet is kept, with what is left of
    its time, and goes on in the next epoch. So it is as if the models were tested in no time.
    """

    def __init__(self, run: Run, training: Asynchronous, loss: Loss) -> None:
        self.run, self.training, self.loss = run, training, loss
        self.model, self.optimizer, self.replicas = training.model, training.optimizer, training.replicas
        self.tensor_names = training.tensor_names
        self.transport = training.transport if not is_served(run) else _among_workers(training, run.workers)
        self.worker = self.transport.rank
        self.probes: list[Probe] = []
        self.staleness: dict[int, int] = {}
        """How many gradients of all workers were so stale, as of the last epoch."""
        self._stale_before: Counter[int] = Counter()
        """Those of this worker before it was loaded."""
        self._pace = Pace(run, self.worker)
        self._store = _store(training)
        self._num_orders = 0
        self._first = 0
        """Batches that were taken before this engine was made."""
        self._num_own = 0
        self._taken: tuple[int, int] | None = None
        """The batch of the gradient under way: how many were taken before it by all, and by this worker."""
        self._loss_of_taken: Tensor | None = None
        """None where its gradient is not computed yet."""
        self._left_s = 0.0
        """Of the time that the gradient takes."""

    # ---- an epoch ---------------------------------------------------------------------------------------

    def train_epoch(self, feed: Feed, epoch: int, lr: Callable[[int], float]) -> tuple[Tensor, Tensor, float]:
        """Until all have applied so many gradients as there are batches: losses `[N, steps]` in the order in which they
        were applied, whose they were, and the seconds from the start to the last of them."""
        run, over = self.run, threading.Event()
        num_gradients, first_step = run.workers * run.steps_per_epoch, epoch * run.steps_per_epoch
        losses, whose = torch.zeros(num_gradients, dtype=torch.float64), torch.zeros(num_gradients, dtype=torch.int64)
        self.gather(torch.zeros(1))  # all begin at one moment
        began = time.monotonic()
        listener = threading.Thread(target=self._listen, args=(self._store.clone(), epoch, over), daemon=True)  # type: ignore[attr-defined]
        listener.start()
        while not over.is_set():
            loss = self._gradient(feed)
            if not self._is_due(over):
                break
            number = self._store.add(f"applied/{epoch}", 1) - 1
            if number >= num_gradients:
                break
            self.set_lr(lr(first_step + number // run.workers))
            self.optimizer.step()
            self._taken = self._loss_of_taken = None
            losses[number], whose[number] = loss, self.worker
            if number + 1 == num_gradients:
                self._store.set(f"over/{epoch}", str(time.monotonic() - began))
        listener.join()
        seconds = float(self._store.get(f"over/{epoch}"))
        self._come_together()
        for probe in self.probes:
            probe(first_step + run.steps_per_epoch - 1)
        losses, whose = (self.gather(each[None]).sum(0) for each in (losses, whose))
        return losses.view(-1, run.workers).T, whose.view(-1, run.workers).T, seconds

    def _gradient(self, feed: Feed) -> Tensor:
        """That of the batch under way, or of the next one."""
        if self._loss_of_taken is None:
            self._pace.begin()
            if self._taken is None:
                self._taken = (self._first + self._store.add("taken", 1) - 1, self._num_own)
                self._num_own += 1
            self._loss_of_taken = self.backward(*feed.pick([place(self.run, self.worker, self._taken)]))[0]
            self._left_s = self._pace.left_s()
        return self._loss_of_taken

    def _is_due(self, over: threading.Event) -> bool:
        """Sleep until the gradient has taken its time; False where the epoch is over before that."""
        since = time.monotonic()
        if self._left_s > 0 and over.wait(self._left_s):
            self._left_s = max(self._left_s - (time.monotonic() - since), 0.0)
            return False
        self._left_s = 0.0
        return True

    def _listen(self, store: Store, epoch: int, over: threading.Event) -> None:
        store.wait([f"over/{epoch}"], _PATIENCE)
        over.set()

    def _come_together(self) -> None:
        self._order(_TOGETHER)
        self.training.come_together()
        own = self._stale_before + Counter(self.training.staleness)
        most = int(self.gather(torch.tensor([max(own, default=0)])).max())
        counts = torch.tensor([[own[stale] for stale in range(most + 1)]])
        self.staleness = {stale: n for stale, n in enumerate(self.gather(counts).sum(0).tolist()) if n}

    # ---- what an engine offers ----------------------------------------------------------------------------

    @property
    def bytes_sent(self) -> NDArray[np.float64]:
        return self.training.bytes_sent

    @property
    def bytes_averaged(self) -> NDArray[np.float64]:
        return self.training.bytes_averaged

    @property
    def bytes_before_steps(self) -> NDArray[np.float64]:
        return self.training.bytes_before_steps

    @property
    def bytes_of_gradients(self) -> NDArray[np.float64]:
        return self.training.bytes_of_gradients

    def set_lr(self, lr: float) -> None:
        self.training.set_lr(lr)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("workers of an asynchronous method have no step in common: call train_epoch()")

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, but for the gradient under way: its batch is taken again."""
        self._order(_SAVE)
        return {
            "training": self.training.state_dict(),
            "server": _of_server(self.training, None) if is_served(self.run) else None,
            "num_taken": self._first + self._store.add("taken", 0),
            "num_own": self._num_own,
            "taken": self._taken,
            "staleness": dict(self._stale_before + Counter(self.training.staleness)),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._order(_LOAD)
        if is_served(self.run):
            _to_server(self.training, saved["server"])
        self.training.load_state_dict(saved["training"])
        self._first, self._num_own = saved["num_taken"], saved["num_own"]
        self._taken = None if saved["taken"] is None else (saved["taken"][0], saved["taken"][1])
        self._stale_before = Counter(saved["staleness"])

    def close(self) -> None:
        self._order(_CLOSE)
        if is_served(self.run):
            self.transport.close()
        self.training.close()

    def _order(self, what: str) -> None:
        """The first worker tells the server what all are about to do."""
        if is_served(self.run) and self.worker == 0:
            self._store.set(f"order/{self._num_orders}", what)
            self._num_orders += 1


def serve(training: Asynchronous) -> None:
    """What the rank does that only serves: gradients come to threads of their own, the rest it is told."""
    store = _store(training)
    order, number = "", 0
    while order != _CLOSE:
        store.wait([f"order/{number}"], _PATIENCE)
        order, number = store.get(f"order/{number}").decode(), number + 1
        if order == _TOGETHER:
            training.come_together()
        elif order == _SAVE:
            _of_server(training, training.state_dict())
        elif order == _LOAD:
            state = _to_server(training, None)
            training.load_state_dict(torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True))
    training.close()


def _store(training: Asynchronous) -> Store:
    """A connection of its own: a store answers one caller at a time."""
    transport = training.transport
    store = PrefixStore(f"out-of-step/{transport.serial}", transport.group.get_group_store())
    return store.clone()  # type: ignore[attr-defined, no-any-return]


def _among_workers(training: Asynchronous, num_workers: int) -> Transport:
    """A group without the server, which has no replica to be measured."""
    whole = training.transport
    store = PrefixStore(f"workers/{whole.serial}", whole.group.get_group_store())
    group = ProcessGroup(store, whole.rank, num_workers)
    backend = ProcessGroupGloo(PrefixStore("gloo", store), whole.rank, num_workers, whole.timeout)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return Transport(group)


# ---- the state of a server, which the first worker keeps for it -------------------------------------------------


def _of_server(training: Asynchronous, state: dict[str, Any] | None) -> Tensor | None:
    """Its bytes, on the first worker; the server calls it with its state, the others with None."""
    written = io.BytesIO()
    if state is not None:
        torch.save(state, written)
    own = torch.frombuffer(bytearray(written.getvalue() or b"-"), dtype=torch.uint8)
    told = _broadcast(training, own, source=training.size - 1)
    return told if training.rank == 0 else None


def _to_server(training: Asynchronous, state: Tensor | None) -> Tensor:
    return _broadcast(training, torch.zeros(1, dtype=torch.uint8) if state is None else state, 0)


def _broadcast(training: Asynchronous, values: Tensor, source: int) -> Tensor:
    size = torch.tensor([len(values)])
    training.transport.broadcast(size, source)
    if training.rank != source:
        values = torch.zeros(int(size), dtype=values.dtype)
    training.transport.broadcast(values, source)
    return values
