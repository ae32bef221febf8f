"""ResNets on CIFAR-10 (He et al., "Deep residual learning for image recognition", 2015, section 4.2)."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from .cifar10 import photographs, prepare_small

Norm = Callable[[int], nn.Module]


def batch_norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels)


def group_norm(channels: int) -> nn.Module:
    """Groups of 8 channels: nothing depends on the other samples of the batch."""
    return nn.GroupNorm(channels // 8, channels)


class _Block(nn.Module):
    """Two convolutions and a shortcut without parameters: every other pixel, new channels zero (option A)."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.stride, self.num_new = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        said = F.relu(self.norm1(self.conv1(x)))
        said = self.norm2(self.conv2(said))
        if self.num_new:
            before = self.num_new // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.num_new - before))
        return F.relu(said + x)


class ResNet(nn.Module):
    """6n + 2 layers: n blocks each with 16, 32 and 64 channels."""

    def __init__(self, *, blocks: int = 3, norm: Norm = batch_norm, num_classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = norm(16)
        widths = [16] * blocks + [32] * blocks + [64] * blocks
        self.blocks = nn.Sequential(
            *(
                _Block(before, after, 1 if before == after else 2, norm)
                for before, after in zip([16, *widths], widths, strict=False)
            )
        )
        self.out = nn.Linear(64, num_classes)
        start_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))  # [B, 64, 8, 8]
        said: Tensor = self.out(x.mean((2, 3)))
        return said


def start_convolutions(net: nn.Module) -> None:
    """He's random start: the signal keeps its size from layer to layer, backward."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


RESNET20 = photographs(
    "resnet20", "ResNet20 on CIFAR-10, 0.27 M parameters", partial(ResNet, norm=batch_norm), lr=0.25, good=0.90
)
RESNET8 = photographs(
    "resnet8",
    "ResNet8 on CIFAR-10 at 16 x 16 pixels, 0.08 M parameters: for a CPU",
    partial(ResNet, blocks=1, norm=batch_norm),
    lr=0.25,
    good=0.70,
    prepare=prepare_small,
    batch_size=8,
    epochs=16,
    warmup_epochs=1.5,
)
RESNET20_GN = photographs(
    "resnet20-gn",
    "ResNet20 with group norm on CIFAR-10: no statistics of batches",
    partial(ResNet, norm=group_norm),
    lr=0.25,
    good=0.87,
)
