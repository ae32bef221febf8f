"""How good the models are: the average of all replicas, and each of them by itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.engines import Engine
from gossamer.tasks import Dataset, Task

from .outcome import Row

_LEAST_OWN_SAMPLES = 64
"""A replica's accuracy between epochs rests on so many test samples at least."""
_FINAL_SAMPLES = 2**21
"""So many the replicas together are tested on at the end: 200 on all of CIFAR-10, a thousand on 2080 samples each,
where one replica's accuracy is known to within 1.1 % and the mean of all far better."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one call of a model may be given, summed over the replicas: bounds the memory."""

    samples: int
    input_elements: int
    output_elements: int


ON_CPU = Limits(samples=2048, input_elements=2048 * 3072, output_elements=4 * 2**20)
"""So many images of 3 x 32 x 32; fewer where samples or outputs (a score for each word of a language) are larger."""


def on_gpu(device: torch.device) -> Limits:
    """Outputs may take a few per cent of a GPU's memory; of all of it, not of what is free: a run must repeat."""
    total = torch.cuda.get_device_properties(device).total_memory
    return Limits(samples=32768, input_elements=32768 * 3072, output_elements=total // 128)


@torch.no_grad()
def evaluate(task: Task, engine: Engine, data: Dataset, *, final: bool) -> Row:
    """Test the averaged model on the whole test set, and each replica on `replica_samples` samples of it.

    To test a thousand replicas on everything takes far longer than to train them for an epoch. So each gets a slice
    of its own, about as many samples as it trains on in an epoch; together the slices cover the test set evenly. With
    few replicas that is the whole set; after the last epoch (`final`) with hundreds too. All holders must call it
    alike.
    """
    num_own, num_between = (
        num_own_samples(data.num_train, data.num_test, engine.num_replicas, final=at_end) for at_end in (final, False)
    )
    at_once = _samples_at_once(task, engine, data)
    portion = even_portion(num_between, at_once // (engine.local.stop - engine.local.start))
    correct, losses, replicas = [], [], []
    for indices in torch.split(torch.arange(data.num_test), even_portion(data.num_test, at_once)):
        inputs, targets = _test_samples(task, data, indices)
        said = engine.averaged_outputs(inputs)
        correct.append(task.correct(said, targets))
        losses.append(task.loss(_at_least_float32(said), targets) * len(indices))
        if num_own == data.num_test:
            replicas.append(_share_right(task, engine, inputs, targets, portion))
    if num_own < data.num_test:
        replicas.append(_share_right_of_own(task, engine, data, num_own, portion))
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


def num_own_samples(num_train: int, num_test: int, num_replicas: int, *, final: bool) -> int:
    """How many test samples a replica is tried on between epochs, or at the end.

    >>> [num_own_samples(50_000, 10_000, n, final=False) for n in (4, 96, 1008)]
    [10000, 520, 64]
    >>> [num_own_samples(50_000, 10_000, n, final=True) for n in (4, 96, 1008)]
    [10000, 10000, 2080]
    """
    in_all = max(num_train, _FINAL_SAMPLES) if final else num_train
    return min(max(in_all // num_replicas, _LEAST_OWN_SAMPLES), num_test)


def own_samples(num_test: int, num_own: int, num_replicas: int) -> Tensor:
    """Test samples of every replica, `[N, num_own]`: runs that start at even distances around the test set.

    >>> own_samples(6, 3, 4).tolist()
    [[0, 1, 2], [1, 2, 3], [3, 4, 5], [4, 5, 0]]
    """
    starts = torch.arange(num_replicas) * num_test // num_replicas
    return (starts[:, None] + torch.arange(num_own)) % num_test


def even_portion(count: int, limit: int) -> int:
    """Samples a call, at most `limit`, so that the last of the calls is about as full as the others.

    >>> even_portion(64, 32), even_portion(520, 341), even_portion(64, 1000)
    (32, 260, 64)
    """
    return -(-count // -(-count // max(limit, 1)))


def _samples_at_once(task: Task, engine: Engine, data: Dataset) -> int:
    """Samples times replicas held here for one call; found by asking the averaged model about one sample."""
    inputs, _ = _test_samples(task, data, torch.arange(1))
    limits = on_gpu(inputs.device) if inputs.device.type == "cuda" else ON_CPU
    said = engine.averaged_outputs(inputs)
    return min(limits.samples, limits.input_elements // inputs.numel(), max(limits.output_elements // said.numel(), 1))


# ---- what the models say to them ------------------------------------------------------------------------------


def _test_samples(task: Task, data: Dataset, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs as the model takes them, and targets. Data sets on disk, unlike tensors, want their indices on the CPU."""
    there = indices.to(data.test_targets.device)
    stored = data.test_inputs[there if isinstance(data.test_inputs, Tensor) else indices]
    return task.prepare(stored, None), data.test_targets[there]


def _share_right(task: Task, engine: Engine, inputs: Tensor, targets: Tensor, portion: int) -> Tensor:
    """What every replica held here makes of the same samples, `[L, B]`."""
    num_local = engine.local.stop - engine.local.start
    shares = []
    for indices in _portions(torch.arange(len(targets), device=targets.device), portion):
        some = inputs[indices]
        said = engine.outputs(some.expand(num_local, *some.shape).contiguous())
        shares.append(task.correct(said, targets[indices]))
    return torch.cat(shares, -1)[:, : len(targets)]


def _share_right_of_own(task: Task, engine: Engine, data: Dataset, num_own: int, portion: int) -> Tensor:
    """What every replica held here makes of its own samples, `[L, num_own]`."""
    shares = []
    for indices in _portions(own_samples(data.num_test, num_own, engine.num_replicas)[engine.local], portion):
        inputs, targets = _test_samples(task, data, indices)
        shares.append(task.correct(engine.outputs(inputs), targets))
    return torch.cat(shares, -1)[:, :num_own]


def _portions(indices: Tensor, size: int) -> tuple[Tensor, ...]:
    """All of one size, the last filled up with samples that do not count: a compiled model is for one size."""
    missing = -indices.shape[-1] % size
    return torch.split(torch.cat([indices, indices[..., :1].expand(*indices.shape[:-1], missing)], -1), size, -1)


def _at_least_float32(values: Tensor) -> Tensor:
    """A loss summed up in half precision would have three digits."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
