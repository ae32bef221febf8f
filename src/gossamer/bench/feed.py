"""The batches of a run, epoch by epoch, ready on its device."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gossamer.tasks import Dataset, Task

from . import sharding
from .one_run import Run
from .outcome import Columns


class Feed:
    """Gives each replica held here its samples, augmented where the task says so.

    Which samples, and the random numbers of the augmentation, are pure functions of the seed. They are drawn on the
    host, those of the next epoch while the device still computes this one. From then on all is done on the device.
    """

    def __init__(self, run: Run, task: Task, data: Dataset, local: slice) -> None:
        self._run, self._task, self._local = run, task, local
        self._labels = data.labels  # on the host, where the samples are dealt out
        self._data = data.to(run.device)
        self._prepare = torch.compile(task.prepare, dynamic=False) if run.device.startswith("cuda") else task.prepare
        self._drawn: dict[int, tuple[Tensor, Tensor | None]] = {}

    @property
    def data(self) -> Dataset:
        """The data on the device."""
        return self._data

    def shards(self) -> Columns:
        """How many samples of which class each worker is dealt; empty where all are dealt the same mixture."""
        run = self._run
        if run.alpha is None or self._labels is None:
            return {}
        return sharding.dealt_classes(self._labels, workers=run.workers, seed=run.seed, alpha=run.alpha)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs `[L, B, ...]` and targets `[L, B, ...]` of every step."""
        on_host, draws = self._drawn.pop(epoch) if epoch in self._drawn else self._draw(epoch)
        device = self._run.device
        on_device = on_host.to(device)
        draws = None if draws is None else draws.to(device)
        inputs, targets = self._data.train_inputs, self._data.train_targets
        indices = on_device if isinstance(inputs, Tensor) else on_host  # a data set on disk looks files up by number
        for i in range(len(on_host)):
            yield self._prepare(inputs[indices[i]], None if draws is None else draws[i]), targets[on_device[i]]
        if epoch + 1 < self._run.epochs:
            self._drawn[epoch + 1] = self._draw(epoch + 1)

    def pick(self, places: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[L, B, ...]` of batches from anywhere in the run: the epoch, the step, whose share."""
        for epoch in {epoch for epoch, _, _ in places} - self._drawn.keys():
            self._drawn[epoch] = self._draw(epoch)
        for epoch in self._drawn.keys() - {epoch for epoch, _, _ in places}:
            del self._drawn[epoch]
        device = self._run.device
        indices = torch.stack([self._drawn[epoch][0][step, share] for epoch, step, share in places])
        numbers = [drawn[step, share] for epoch, step, share in places if (drawn := self._drawn[epoch][1]) is not None]
        draws = torch.stack(numbers).to(device) if numbers else None
        inputs, targets = self._data.train_inputs, self._data.train_targets
        on_device = indices.to(device)
        return self._prepare(inputs[on_device if isinstance(inputs, Tensor) else indices], draws), targets[on_device]

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """Indices `[steps, L, B]` and, where the task augments, random numbers `[steps, L, B, num_draws]`."""
        run, num_draws = self._run, self._task.num_draws
        indices = sharding.batches(
            self._data.num_train,
            workers=run.workers,
            batch_size=run.batch_size,
            seed=run.seed,
            epoch=epoch,
            labels=self._labels,
            alpha=run.alpha,
        )
        if not num_draws:
            return indices[:, self._local], None
        draws = sharding.draws(
            num_draws,
            workers=run.workers,
            steps=len(indices),
            batch_size=run.batch_size,
            seed=run.seed,
            epoch=epoch,
        )
        return indices[:, self._local], draws[:, self._local]
