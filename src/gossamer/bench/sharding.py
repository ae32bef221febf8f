"""Who sees which samples, when, and with which random numbers: pure functions of the seed, so that every engine trains
on the same batches."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]

# What follows the user's seed in the seeds of our streams, so that no two of them are the same.
_DEAL, _SHUFFLE, _DEAL_BY_CLASS, _DRAW = 0, 1, 2, 3


def batches(
    num_samples: int,
    *,
    workers: int,
    batch_size: int,
    seed: int,
    epoch: int,
    labels: Tensor | None = None,
    alpha: float | None = None,
) -> Tensor:
    """Indices `[steps, workers, batch_size]` of one epoch.

    The samples are dealt out once, at random, to shards of equal size; each epoch shuffles inside the shards.
    What does not fill a batch on every worker waits for the next epoch's shuffle.

    With `alpha`, the classes of each shard follow a Dirichlet distribution of this concentration: the smaller, the
    fewer classes a worker sees. `labels` are the classes of the samples.

    >>> batches(10, workers=2, batch_size=2, seed=0, epoch=0).shape
    torch.Size([2, 2, 2])
    >>> labels = torch.arange(1000) % 10
    >>> alike, apart = (batches(1000, workers=5, batch_size=200, seed=0, epoch=0, labels=labels, alpha=alpha)[0]
    ...                 for alpha in (1000, 0.1))
    >>> [len(labels[shard].unique()) for shard in alike], [len(labels[shard].unique()) for shard in apart]
    ([10, 10, 10, 10, 10], [6, 4, 5, 6, 4])
    """
    dealt = _dealt(num_samples, workers, seed, labels, alpha)
    shuffled = np.random.default_rng([seed, _SHUFFLE, epoch]).permuted(dealt, axis=1)
    steps = dealt.shape[1] // batch_size
    indices = shuffled[:, : steps * batch_size].reshape(workers, steps, batch_size)
    return torch.from_numpy(np.ascontiguousarray(indices.transpose(1, 0, 2)))


def dealt_classes(labels: Tensor, *, workers: int, seed: int, alpha: float) -> dict[str, list[int]]:
    """How many samples of which class each worker is dealt: columns `worker`, `class` and `samples`, without zeros.

    >>> dealt = dealt_classes(torch.arange(1000) % 10, workers=5, seed=0, alpha=0.1)
    >>> [dealt["worker"].count(worker) for worker in range(5)], sum(dealt["samples"])
    ([6, 4, 5, 6, 4], 1000)
    """
    dealt = _dealt(len(labels), workers, seed, labels, alpha)
    classes, of_class = np.unique(labels.cpu().numpy(), return_inverse=True)
    counts = np.stack([np.bincount(of_class[shard], minlength=len(classes)) for shard in dealt])
    worker, place = counts.nonzero()
    return {"worker": worker.tolist(), "class": classes[place].tolist(), "samples": counts[worker, place].tolist()}


def draws(num_draws: int, *, workers: int, steps: int, batch_size: int, seed: int, epoch: int) -> Tensor:
    """Random numbers for the augmentation of one epoch's samples, uniform in [0, 1): `[steps, workers, B, num_draws]`.

    Those of a worker follow from the seed, the epoch and its number alone, however many others there are.

    >>> few = draws(3, workers=2, steps=5, batch_size=4, seed=0, epoch=0)
    >>> many = draws(3, workers=7, steps=5, batch_size=4, seed=0, epoch=0)
    >>> bool((few == many[:, :2]).all())
    True
    """
    # One generator, set 2^128 blocks further on for each worker: a fresh one each would take ten times as long.
    philox = np.random.Philox(key=np.random.SeedSequence([seed, _DRAW, epoch]).generate_state(2, np.uint64))
    generator, start = np.random.Generator(philox), philox.state
    drawn = np.empty((workers, steps, batch_size, num_draws), np.float32)
    for worker in range(workers):
        start["state"]["counter"][2] = worker
        philox.state = start
        generator.random(out=drawn[worker], dtype=np.float32)
    return torch.from_numpy(np.ascontiguousarray(drawn.transpose(1, 0, 2, 3)))


@lru_cache(maxsize=4)  # a run asks for the same in every epoch; labels are compared as objects
def _dealt(num_samples: int, workers: int, seed: int, labels: Tensor | None, alpha: float | None) -> Indices:
    """The samples of each worker, `[workers, num_samples // workers]`."""
    size = num_samples // workers
    if alpha is None:
        return np.random.default_rng([seed, _DEAL]).permutation(num_samples)[: workers * size].reshape(workers, size)
    if labels is None:
        raise ValueError(f"alpha={alpha} deals samples out by class: give their labels")
    generator = np.random.default_rng([seed, _DEAL_BY_CLASS])
    _, of_class, available = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
    counts = _class_counts(available, workers, size, alpha, generator)
    # Samples by class, in random order inside each; the first of a class go to worker 0, the next to worker 1, …
    order = generator.permutation(num_samples)
    order = order[np.argsort(of_class[order], kind="stable")]
    nobody = available - counts.sum(0)
    owners = np.tile(np.append(np.arange(workers), workers), len(available))
    owner = np.repeat(owners, np.vstack([counts, nobody]).T.ravel())
    return order[np.argsort(owner, kind="stable")][: workers * size].reshape(workers, size)


def _class_counts(available: Indices, workers: int, size: int, alpha: float, generator: np.random.Generator) -> Indices:
    """How many samples of each class each worker gets, `[workers, classes]`, `size` in all.

    Worker after worker, in random order, draws shares of the classes ~ Dirichlet(α), and then samples from those that
    are left, with odds by the share of their class. So with a large α all shards are like the whole, also where some
    classes are rare; and those who choose last, from what is left, follow their own draw the least.
    """
    left, counts = available.astype(np.int64), np.zeros((workers, len(available)), np.int64)
    for worker in generator.permutation(workers):
        shares = generator.dirichlet(np.full(len(left), alpha))
        missing = size
        while missing > 0:  # each turn fills the shard or uses up a class
            odds = shares * left
            if not odds.sum() > 0:  # nothing is left of what this worker has a share in
                odds = left.astype(np.float64)
            taken = np.minimum(generator.multinomial(missing, odds / odds.sum()), left)
            counts[worker] += taken
            left -= taken
            missing -= int(taken.sum())
    return counts
