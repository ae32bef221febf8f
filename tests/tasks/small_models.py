"""The models of the tasks, less deep and wide, with batches for three replicas."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gossamer.tasks import TASKS
from gossamer.tasks.chargpt import CharGPT
from gossamer.tasks.densenet import DenseNet
from gossamer.tasks.lstm import LstmLanguageModel
from gossamer.tasks.resnet import ResNet, group_norm
from gossamer.tasks.resnet50 import ResNetForImageNet
from gossamer.tasks.translation import Translator
from gossamer.tasks.vgg import vgg

N, B = 3, 4
SMALL: dict[str, Callable[[], nn.Module]] = {
    "digits": TASKS["digits"].model,
    "resnet8": partial(ResNet, blocks=1),
    "resnet20": partial(ResNet, blocks=1),
    "resnet20-gn": partial(ResNet, blocks=1, norm=group_norm),
    "densenet100": partial(DenseNet, depth=10, growth=4),
    "vgg16": partial(vgg, ((8,), (8,), (16, 16))),
    "resnet50": partial(ResNetForImageNet, stages=(1, 1, 2), width=8),
    "lstm": partial(LstmLanguageModel, vocabulary=50, width=24),
    "lstm-sgd": partial(LstmLanguageModel, vocabulary=50, width=24),
    "chargpt": partial(CharGPT, width=16, layers=2),
    "translation": partial(Translator, vocabulary=30, length=6, width=16, layers=2),
}


def batch(name: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets `[N, B, ...]` for the small models."""
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randint, generator=generator)
    if name in ("lstm", "lstm-sgd"):
        return draw(50, (N, B, 5)), draw(50, (N, B, 5))
    if name == "chargpt":
        return draw(128, (N, B, 9)), draw(128, (N, B, 9))
    if name == "translation":
        tokens, targets = draw(3, 30, (N, B, 12)), draw(3, 30, (N, B, 6))
        tokens[..., 4:6], targets[:, 1:, 3:] = 0, 0  # padding, of another amount from sample to sample
        return tokens, targets
    side, channels = (8, 1) if name == "digits" else (8, 3) if name == "vgg16" else (32, 3)
    return torch.randn(N, B, channels, side, side, generator=generator), draw(10, (N, B))
