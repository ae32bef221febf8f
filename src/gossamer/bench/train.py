"""Trains one run on any engine and measures it: the loop of `gossamer bench`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gossamer import algorithms
from gossamer.clock import PARAMETER_SERVER, asynchronous
from gossamer.engines import (
    Asynchronous,
    Engine,
    StackedEngine,
    StackedGradient,
    SynchronousEngine,
    VirtualEngine,
    VirtualPairs,
    VirtualServer,
    join_world,
)
from gossamer.tasks import compute_dtype

from .checkpoint import Checkpoints
from .evaluation import evaluate
from .feed import Feed
from .learning_rate import learning_rate
from .norm_parts import NormParts
from .one_run import CENTRALIZED, Run, load_data, task_of
from .out_of_step import Worker, begin
from .outcome import Outcome, Row
from .pace import Pace
from .shards import write_shards
from .virtual_time import advance_epoch, exchanged_bytes, make_clock, model_bytes, staleness_row
from .white_box import WhiteBox

OnEpoch = Callable[[Run, Row], None]

_COMPILED: dict[tuple[Any, ...], StackedGradient] = {}
"""The computation of the last run that compiled one: the next run with the same spares itself a minute."""


def _computation(run: Run) -> tuple[Any, ...]:
    return task_of(run), run.workers, run.batch_size, run.device


def num_threads(run: Run) -> int:
    """Threads for a run: its task's choice, one where every replica is a process, else all that torch has."""
    if run.engine == "processes":
        return 1
    return task_of(run).cpu_threads or torch.get_num_threads()


def make_engine(run: Run, group: ProcessGroup | None = None) -> Engine:
    """The engine of a run at its start; `group` is the process group of the processes engine."""
    task, model = task_of(run), _make_model(run)
    algorithm, schedule = algorithms.build(run.algorithm), run.schedule()
    if group is None:
        settings: dict[str, Any] = {
            "num_replicas": run.workers,
            "algorithm": algorithm,
            "schedule": schedule,
            "loss": task.loss,
            "device": run.device,
            "compute": compute_dtype(task, run.device),
            "compiled": run.compiled,
            "gradient": _COMPILED.get(_computation(run)),
        }
        kind: type[StackedEngine] = StackedEngine
        if algorithm.is_asynchronous:
            kind = VirtualServer if run.algorithm == PARAMETER_SERVER else VirtualPairs
            settings["events"] = asynchronous(
                run.algorithm, run.cluster(), schedule, exchanged_bytes(run, model_bytes(model))
            )
        engine = kind(model, lambda parameters: task.optimizer(parameters, run.lr), **settings)
        if run.compiled and _computation(run) not in _COMPILED:
            _COMPILED.clear()  # what another task or size has compiled is not needed again
            torch.compiler.reset()  # and would count: of one function torch compiles eight versions and no more
            _COMPILED[_computation(run)] = engine.gradient
        return engine
    torch.manual_seed(run.seed * run.workers + group.rank())  # from here on each replica draws numbers of its own
    if algorithm.is_asynchronous:
        return Worker(run, begin_training(run, group, model), task.loss)
    optimizer = task.optimizer(model.parameters(), run.lr)
    return SynchronousEngine(
        model,
        optimizer,
        algorithm=algorithm,
        schedule=schedule,
        group=group,
        local_size=join_world(group).local_size,
        loss=task.loss,
    )


def begin_training(run: Run, group: ProcessGroup, model: nn.Module | None = None) -> Asynchronous:
    """An asynchronous run on this rank of its processes, be it a worker or the server."""
    model = model or _make_model(run)
    return begin(run, model, task_of(run).optimizer(model.parameters(), run.lr), group)


def _make_model(run: Run) -> nn.Module:
    torch.manual_seed(run.seed)
    return task_of(run).model()


def train(run: Run, engine: Engine, *, on_epoch: OnEpoch, folder: Path | None = None) -> Outcome:
    """Train to the end and measure on the way; `on_epoch` hears of every epoch after which the models were tested.

    With the run's `folder`, norms and checkpoints are written there, and a run that was stopped goes on from where it
    was left. All holders of replicas call this alike and get the same outcome.
    """
    task, outcome, schedule = task_of(run), Outcome(), run.schedule()
    shares = slice(run.workers) if isinstance(engine, Worker) else engine.local  # whoever is free takes any batch
    feed = Feed(run, task, load_data(task, run.data), shares)
    checkpoints = None if folder is None else Checkpoints(folder, engine)
    own_folder = folder if engine.local.start == 0 else None  # one holder writes for all
    parts = None if own_folder is None else NormParts(own_folder)
    if own_folder is not None:
        write_shards(own_folder, feed.shards())
    if checkpoints is not None:
        checkpoints.restore(outcome)
    if parts is not None:
        parts.discard_from(outcome.num_epochs * run.steps_per_epoch)
    clock = engine if isinstance(engine, VirtualEngine) else make_clock(run, engine, outcome.sent)
    if not isinstance(clock, VirtualEngine) and outcome.num_epochs:  # it goes on from there
        clock.go_to(outcome.num_epochs)
    pace = Pace(run, engine.local.start) if isinstance(engine, SynchronousEngine) else None
    white_box = WhiteBox(engine, run, outcome, parts)
    engine.probes.append(white_box)
    for epoch in range(outcome.num_epochs, run.epochs):
        first_step, is_last = epoch * run.steps_per_epoch, epoch + 1 == run.epochs
        losses, whose, seconds = train_epoch(run, engine, feed, epoch, pace)
        outcome.seconds += seconds
        outcome.reason = _divergence(losses, first_step, whose)
        if outcome.reason:
            white_box.write()
            outcome.status = "diverged"
            return outcome
        outcome.num_epochs = epoch + 1
        if not isinstance(clock, VirtualEngine):
            clock.go_to(outcome.num_epochs)
        if isinstance(engine, VirtualEngine | Worker):
            outcome.staleness = dict(engine.staleness)
        if run.is_evaluated(epoch):
            row: Row = {
                "epoch": epoch + 1,
                "step": first_step + run.steps_per_epoch,
                "train_loss": losses.mean().item(),
                **evaluate(task, engine, feed.data, final=is_last),
                **white_box.means(),
                "bytes_sent": engine.gather(torch.from_numpy(engine.bytes_sent)).max().item(),
                "degree": schedule(first_step).degree if run.label != CENTRALIZED else run.workers - 1,
                "seconds": outcome.seconds,
                **staleness_row(outcome.staleness),
                "virtual_s": clock.now_s,
            }
            outcome.epochs.append(row)
            on_epoch(run, row)
        if checkpoints is not None and not is_last and checkpoints.is_due():
            white_box.write()
            checkpoints.save(outcome)
    white_box.write()
    outcome.status = "finished"
    return outcome


def train_epoch(
    run: Run, engine: Engine, feed: Feed, epoch: int, pace: Pace | None = None
) -> tuple[Tensor, Tensor, float]:
    """The losses `[N, steps]` of one epoch and whose they are, on the host; until then nothing waits for the device.
    And what it has taken, in seconds. Processes that wait for each other keep a `pace`."""

    def lr(step: int) -> float:
        return learning_rate(
            step,
            peak=run.lr,
            warmup_steps=run.warmup_epochs * run.steps_per_epoch,
            num_steps=run.num_steps,
            decay=run.decay,
        )

    if isinstance(engine, Worker):
        return engine.train_epoch(feed, epoch, lr)
    started = time.monotonic()
    if isinstance(engine, VirtualEngine):
        losses, whose = advance_epoch(run, engine, feed, epoch, lr)
    else:
        losses, whose = _step_by_step(run, engine, feed, epoch, lr, pace)
    return losses, whose, time.monotonic() - started


def _step_by_step(
    run: Run, engine: Engine, feed: Feed, epoch: int, lr: Callable[[int], float], pace: Pace | None
) -> tuple[Tensor, Tensor]:
    first_step, losses = epoch * run.steps_per_epoch, []
    step = engine.step if pace is None else _paced(engine, pace)
    for i, (inputs, targets) in enumerate(feed.epoch(epoch)):
        engine.set_lr(lr(first_step + i))
        losses.append(step(inputs, targets))
    whose = torch.arange(run.workers)[:, None].expand(-1, len(losses))
    return engine.gather(torch.stack(losses, 1)).cpu(), whose


def _paced(engine: Engine, pace: Pace) -> Callable[[Tensor, Tensor], Tensor]:
    """Steps whose gradients take their time, which begins at the end of the step before."""
    assert isinstance(engine, SynchronousEngine)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = engine.backward(inputs, targets)
        pace.rest()
        engine.optimizer.step()
        pace.begin()
        return loss

    pace.begin()
    return step


def _divergence(losses: Tensor, first_step: int, whose: Tensor) -> str:
    """Which replica's loss stopped being a number first, in a sentence; empty when all is well."""
    broken = ~losses.isfinite()
    if not broken.any():
        return ""
    step, place = (int(i) for i in broken.T.nonzero()[0])
    return (
        f"the loss of replica {whose[place, step]} became {losses[place, step].item()} at step {first_step + step}: "
        "take a lower learning rate, a longer warm-up or a graph with more connections"
    )
