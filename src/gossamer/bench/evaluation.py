"""How good the models are: the average of all replicas, and each of them by itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.engines import Engine
from gossamer.tasks import Dataset, Task

from .outcome import Row

_LEAST_OWN_SAMPLES = 64
"""A replica's accuracy between epochs rests on so many test samples at least."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one call of a model may be given, summed over the replicas: bounds the memory."""

    samples: int
    input_elements: int
    output_elements: int


ON_CPU = Limits(samples=2048, input_elements=2048 * 3072, output_elements=4 * 2**20)
ON_GPU = Limits(samples=32768, input_elements=32768 * 3072, output_elements=64 * 2**20)
"""So many images of 3 x 32 x 32; fewer where samples or outputs (a score for each word of a language) are larger."""


@torch.no_grad()
def evaluate(task: Task, engine: Engine, data: Dataset, *, final: bool) -> Row:
    """Test the averaged model on the whole test set, and each replica on `replica_samples` samples of it.

    To test a thousand replicas on everything takes far longer than to train them for an epoch. So each gets a slice
    of its own, about as many samples as it trains on in an epoch; together the slices cover the test set evenly. With
    few replicas that is the whole set; after the last epoch (`final`) it always is. All holders must call it alike.
    """
    num_own = data.num_test if final else num_own_samples(data.num_train, data.num_test, engine.num_replicas)
    at_once = _samples_at_once(task, engine, data)
    correct, losses, replicas = [], [], []
    for indices in torch.split(torch.arange(data.num_test), chunk_size(data.num_test, at_once)):
        inputs, targets = _test_samples(task, data, indices)
        said = engine.averaged_outputs(inputs)
        correct.append(task.correct(said, targets))
        losses.append(task.loss(_at_least_float32(said), targets) * len(indices))
        if num_own == data.num_test:
            replicas.append(_share_right(task, engine, inputs, targets, at_once))
    if num_own < data.num_test:
        replicas.append(_share_right_of_own(task, engine, data, num_own, at_once))
    singles = engine.gather(torch.cat(replicas, -1).mean(-1)).cpu()
    loss = (torch.stack(losses).sum() / data.num_test).cpu()
    return {
        "accuracy": torch.cat(correct, -1).mean().item(),
        "test_loss": loss.item(),
        **({"perplexity": loss.double().exp().item()} if task.is_language else {}),
        "replica_accuracy_mean": singles.mean().item(),
        "replica_accuracy_min": singles.min().item(),
        "replica_accuracy_max": singles.max().item(),
        "replica_samples": num_own,
        **(task.score(engine.averaged_outputs, data) if final and task.score is not None else {}),
    }


# ---- which samples --------------------------------------------------------------------------------------------


def num_own_samples(num_train: int, num_test: int, num_replicas: int) -> int:
    """How many test samples a replica is tried on between epochs.

    >>> num_own_samples(50_000, 10_000, 4), num_own_samples(50_000, 10_000, 96), num_own_samples(50_000, 10_000, 1008)
    (10000, 520, 64)
    """
    return min(max(num_train // num_replicas, _LEAST_OWN_SAMPLES), num_test)


def own_samples(num_test: int, num_own: int, num_replicas: int) -> Tensor:
    """Test samples of every replica, `[N, num_own]`: runs that start at even distances around the test set.

    >>> own_samples(6, 3, 4).tolist()
    [[0, 1, 2], [1, 2, 3], [3, 4, 5], [4, 5, 0]]
    """
    starts = torch.arange(num_replicas) * num_test // num_replicas
    return (starts[:, None] + torch.arange(num_own)) % num_test


def chunk_size(count: int, limit: int) -> int:
    """Samples a call, at most `limit`; all calls alike where that does not make them less than half as large.

    Models that are compiled are compiled for one size: an odd rest at the end would cost a compilation.

    >>> chunk_size(10_000, 32_768), chunk_size(10_000, 32), chunk_size(10_007, 32)
    (10000, 25, 32)
    """
    limit = min(max(limit, 1), count)
    divisor = next(size for size in range(limit, 0, -1) if count % size == 0)
    return divisor if 2 * divisor > limit else limit


def _samples_at_once(task: Task, engine: Engine, data: Dataset) -> int:
    """Samples times replicas held here for one call; found by asking the averaged model about one sample."""
    inputs, _ = _test_samples(task, data, torch.arange(1))
    limits = ON_GPU if inputs.device.type == "cuda" else ON_CPU
    said = engine.averaged_outputs(inputs)
    return min(limits.samples, limits.input_elements // inputs.numel(), max(limits.output_elements // said.numel(), 1))


# ---- what the models say to them ------------------------------------------------------------------------------


def _test_samples(task: Task, data: Dataset, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs as the model takes them, and targets. Data sets on disk, unlike tensors, want their indices on the CPU."""
    there = indices.to(data.test_targets.device)
    stored = data.test_inputs[there if isinstance(data.test_inputs, Tensor) else indices]
    return task.prepare(stored, None), data.test_targets[there]


def _share_right(task: Task, engine: Engine, inputs: Tensor, targets: Tensor, at_once: int) -> Tensor:
    """What every replica held here makes of the same samples, `[L, B]`."""
    num_local = engine.local.stop - engine.local.start
    size = chunk_size(len(targets), at_once // num_local)
    return torch.cat(
        [
            task.correct(engine.outputs(some.expand(num_local, *some.shape)), right)
            for some, right in zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        ],
        -1,
    )


def _share_right_of_own(task: Task, engine: Engine, data: Dataset, num_own: int, at_once: int) -> Tensor:
    """What every replica held here makes of its own samples, `[L, num_own]`."""
    own = own_samples(data.num_test, num_own, engine.num_replicas)[engine.local]
    shares = []
    for indices in torch.split(own, chunk_size(num_own, at_once // len(own)), 1):
        inputs, targets = _test_samples(task, data, indices)
        shares.append(task.correct(engine.outputs(inputs), targets))
    return torch.cat(shares, -1)


def _at_least_float32(values: Tensor) -> Tensor:
    """A loss summed up in half precision would have three digits."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
