"""Handwritten digits, 8 x 8 pixels, from scikit-learn: no download, seconds a run."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from ._optimizers import sgd
from ._task import Dataset, Task, top1

_NUM_TEST = 360


@cache
def load(data: Path | None = None) -> Dataset:
    """1,437 digits to train on and 360 to test, the same split every time, pixels scaled to [0, 1]."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = torch.from_numpy(bunch.images[order]).unsqueeze(1) / 16  # float64
    labels = torch.from_numpy(bunch.target[order]).long()
    return Dataset(
        train_inputs=images[_NUM_TEST:],
        train_targets=labels[_NUM_TEST:],
        test_inputs=images[:_NUM_TEST],
        test_targets=labels[:_NUM_TEST],
    )


def model() -> nn.Module:
    """Two strided convolutions with group norm and a linear layer, 1,946 parameters.

    In float64: large steps amplify rounding, and at float32's the engines, which sum in different orders, would soon be
    on trajectories of their own. A net this small is no slower for it.
    """
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),  # [B, 8, 4, 4]
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),  # [B, 16, 2, 2]
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return net.double()


DIGITS = Task(
    name="digits",
    summary="scikit-learn's 8x8 digits, a small convolutional net",
    load=load,
    model=model,
    loss=F.cross_entropy,
    correct=top1,
    optimizer=sgd,
    lr=0.7,
    lr_batch=64,
    batch_size=4,
    epochs=15,
    warmup_epochs=2,
    good=0.95,
    cpu_threads=1,
)
