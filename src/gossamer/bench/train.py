"""Trains one run on any engine and measures it: the loop of `gossamer bench`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer.engines import Engine, StackedEngine, SynchronousEngine
from gossamer.tasks import Dataset, Task

from .checkpoint import Checkpoints
from .experiment import CENTRALIZED, Run, load_data, make_algorithm, task_of
from .learning_rate import learning_rate
from .outcome import Columns, Outcome, Row
from .sharding import batches
from .white_box import DISPERSION, Snapshot, snapshot

OnEpoch = Callable[[Run, Row], None]

_EVALUATE_AT_ONCE = 2048
"""Test samples times local replicas that are evaluated in one call, at least one sample each: bounds the memory."""


def num_threads(run: Run) -> int:
    """Threads for a run: its task's choice, one where every replica is a process, else all that torch has."""
    if run.engine == "processes":
        return 1
    return task_of(run).cpu_threads or torch.get_num_threads()


def make_engine(run: Run, group: ProcessGroup | None = None) -> Engine:
    """The engine of a run at its start; `group` is the process group of the processes engine."""
    task = task_of(run)
    torch.manual_seed(run.seed)
    model = task.model()
    algorithm, schedule = make_algorithm(run.algorithm), run.schedule()
    if group is None:
        return StackedEngine(
            model,
            lambda parameters: task.optimizer(parameters, run.lr),
            num_replicas=run.workers,
            algorithm=algorithm,
            schedule=schedule,
            loss=task.loss,
            device=run.device,
        )
    torch.manual_seed(run.seed * run.workers + group.rank())  # from here on each replica draws numbers of its own
    optimizer = task.optimizer(model.parameters(), run.lr)
    return SynchronousEngine(model, optimizer, algorithm=algorithm, schedule=schedule, group=group, loss=task.loss)


def train(run: Run, engine: Engine, *, on_epoch: OnEpoch, folder: Path | None = None) -> Outcome:
    """Train to the end and measure on the way; with a `folder` for checkpoints, go on from where it was left.

    All holders of replicas call this alike and get the same outcome.
    """
    task, outcome, schedule = task_of(run), Outcome(), run.schedule()
    data = load_data(task, run.data).to(run.device)
    checkpoints = None if folder is None else Checkpoints(folder, engine)
    if checkpoints is not None:
        checkpoints.restore(outcome)
    probe = _Probe(engine, run, outcome)
    engine.probes.append(probe)
    for epoch in range(len(outcome.epochs), run.epochs):
        started = time.monotonic()
        losses = _train_epoch(run, engine, data, epoch)
        seconds = time.monotonic() - started
        first_step = epoch * run.steps_per_epoch
        outcome.reason = _divergence(losses, first_step)
        if outcome.reason:
            outcome.status = "diverged"
            return outcome
        row: Row = {
            "epoch": epoch + 1,
            "step": first_step + run.steps_per_epoch,
            "train_loss": losses.mean().item(),
            **_evaluate(task, engine, data),
            **probe.epoch_means(),
            "bytes_sent": engine.gather(torch.from_numpy(engine.bytes_sent)).max().item(),
            "degree": schedule(first_step).degree if run.label != CENTRALIZED else run.workers - 1,
            "seconds": seconds + (outcome.epochs[-1]["seconds"] if outcome.epochs else 0.0),
        }
        outcome.epochs.append(row)
        on_epoch(run, row)
        if checkpoints is not None:
            checkpoints.save_if_due(outcome)
    outcome.status = "finished"
    return outcome


def _train_epoch(run: Run, engine: Engine, data: Dataset, epoch: int) -> Tensor:
    """The losses `[N, steps]` of one epoch."""
    indices = batches(data.num_train, workers=run.workers, batch_size=run.batch_size, seed=run.seed, epoch=epoch).to(
        run.device
    )
    losses = []
    for i, here in enumerate(indices[:, engine.local]):
        engine.set_lr(
            learning_rate(
                epoch * run.steps_per_epoch + i,
                peak=run.lr,
                warmup_steps=run.warmup_epochs * run.steps_per_epoch,
                num_steps=run.num_steps,
                decay=run.decay,
            )
        )
        losses.append(engine.step(data.train_inputs[here], data.train_targets[here]))
    return engine.gather(torch.stack(losses, 1)).cpu()


def _divergence(losses: Tensor, first_step: int) -> str:
    """Which replica's loss stopped being a number first, in a sentence; empty when all is well."""
    broken = ~losses.isfinite()
    if not broken.any():
        return ""
    step, replica = (int(i) for i in broken.T.nonzero()[0])
    return (
        f"the loss of replica {replica} became {losses[replica, step].item()} at step {first_step + step}: "
        "take a lower learning rate, a longer warm-up or a graph with more connections"
    )


@torch.no_grad()
def _evaluate(task: Task, engine: Engine, data: Dataset) -> Row:
    averaged, single = [], []
    num_local = engine.local.stop - engine.local.start
    at_once = max(_EVALUATE_AT_ONCE // num_local, 1)
    for indices in torch.arange(data.num_test, device=data.test_targets.device).split(at_once):
        inputs, targets = task.prepare(data.test_inputs[indices], None), data.test_targets[indices]
        averaged.append(task.correct(engine.averaged_outputs(inputs), targets))
        single.append(task.correct(engine.outputs(inputs.expand(num_local, *inputs.shape)), targets))
    replicas = engine.gather(torch.cat(single, -1).mean(-1)).cpu()
    return {
        "accuracy": torch.cat(averaged, -1).mean().item(),
        "replica_accuracy_mean": replicas.mean().item(),
        "replica_accuracy_min": replicas.min().item(),
        "replica_accuracy_max": replicas.max().item(),
    }


class _Probe:
    """Takes snapshots a few times an epoch and files them in the outcome."""

    def __init__(self, engine: Engine, run: Run, outcome: Outcome) -> None:
        self._engine, self._run, self._outcome = engine, run, outcome
        self._this_epoch: list[Snapshot] = []

    def __call__(self, step: int) -> None:
        if self._run.is_probed(step):
            taken = snapshot(self._engine, step)
            self._this_epoch.append(taken)
            self._file(taken)

    def _file(self, taken: Snapshot) -> None:
        names, (num_replicas, num_tensors) = self._engine.tensor_names, taken.norms.shape
        _extend(
            self._outcome.tensors,
            step=[taken.step] * num_tensors,
            tensor=list(names),
            consensus_distance=taken.consensus.tolist(),
            **{name: values.tolist() for name, values in taken.dispersion.items()},
        )
        _extend(
            self._outcome.norms,
            step=[taken.step] * (num_tensors * num_replicas),
            tensor=[name for name in names for _ in range(num_replicas)],
            replica=list(range(num_replicas)) * num_tensors,
            norm=taken.norms.T.flatten().tolist(),
        )

    def epoch_means(self) -> Row:
        """Consensus and dispersion (mean over tensors), averaged over the snapshots since the last call."""
        taken, self._this_epoch = self._this_epoch, []
        row = {"consensus_distance": sum(s.total_consensus for s in taken) / len(taken)}
        for name in DISPERSION:
            row[name] = sum(s.dispersion[name].mean().item() for s in taken) / len(taken)
        return row


def _extend(columns: Columns, **more: list[Any]) -> None:
    for name, values in more.items():
        columns.setdefault(name, []).extend(values)
