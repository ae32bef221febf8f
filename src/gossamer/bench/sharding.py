"""Who sees which samples, when: a pure function of the seed, so that every engine trains on the same batches."""

import numpy as np
import torch
from torch import Tensor


def batches(num_samples: int, *, workers: int, batch_size: int, seed: int, epoch: int) -> Tensor:
    """Indices `[steps, workers, batch_size]` of one epoch.

    The samples are dealt out once, at random, to shards of equal size; each epoch shuffles inside the shards.
    What does not fill a batch on every worker waits for the next epoch's shuffle.

    >>> batches(10, workers=2, batch_size=2, seed=0, epoch=0).shape
    torch.Size([2, 2, 2])
    """
    size = num_samples // workers
    dealt = np.random.default_rng([seed, 0]).permutation(num_samples)[: workers * size].reshape(workers, size)
    shuffled = np.random.default_rng([seed, 1, epoch]).permuted(dealt, axis=1)
    steps = size // batch_size
    indices = shuffled[:, : steps * batch_size].reshape(workers, steps, batch_size)
    return torch.from_numpy(np.ascontiguousarray(indices.transpose(1, 0, 2)))
