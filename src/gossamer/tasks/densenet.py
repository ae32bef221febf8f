"""DenseNet-BC on CIFAR-10 (Huang et al., "Densely connected convolutional networks", 2017)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cifar10 import photographs
from .resnet import start_convolutions


class _Layer(nn.Module):
    """A 1 x 1 convolution to 4 x growth channels, a 3 x 3 one to `growth`: these join what was there."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(F.relu(self.norm1(x)))
        new = self.conv2(F.relu(self.norm2(new)))
        return torch.cat((x, new), 1)


class _Transition(nn.Module):
    """Half the channels, half the height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """Three dense blocks of (depth - 4) / 6 layers each, with transitions between."""

    def __init__(self, *, depth: int = 100, growth: int = 12, num_classes: int = 10) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for block in range(3):
            for _ in range((depth - 4) // 6):
                layers.append(_Layer(channels, growth))
                channels += growth
            if block < 2:
                layers.append(_Transition(channels))
                channels //= 2
        self.features = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(channels)
        self.out = nn.Linear(channels, num_classes)
        start_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.features(x)))  # [B, C, 8, 8]
        said: Tensor = self.out(x.mean((2, 3)))
        return said


DENSENET100 = photographs(
    "densenet100", "DenseNet-BC, 100 layers, growth 12, on CIFAR-10, 0.77 M parameters", DenseNet, lr=0.15, good=0.92
)
