"""ResNet50 on ImageNet (He et al. 2015; a bottleneck's stride is in its 3 x 3 convolution, known as v1.5)."""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from . import imagenet
from ._images import NUM_DRAWS
from ._optimizers import sgd
from ._task import Task, top1
from .resnet import start_convolutions


class _Bottleneck(nn.Module):
    """1 x 1 down to `width` channels, 3 x 3, 1 x 1 up to four times `width`; its shortcut too where shapes change."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        if channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        said = F.relu(self.norm1(self.conv1(x)))
        said = F.relu(self.norm2(self.conv2(said)))
        return F.relu(self.norm3(self.conv3(said)) + self.shortcut(x))


class ResNetForImageNet(nn.Module):
    """Stages of bottlenecks with 64, 128, 256 and 512 channels inside, each but the first halving height and width."""

    def __init__(self, *, stages: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[_Bottleneck] = []
        channels = width
        for stage, num_blocks in enumerate(stages):
            for block in range(num_blocks):
                blocks.append(_Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
                channels = 4 * width
            width *= 2
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(channels, imagenet.MAX_CLASSES)
        start_convolutions(self)
        for last in blocks:
            # every block starts as its shortcut, which steadies large batches (Goyal et al. 2017)
            last.norm3.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, stride=2, padding=1)  # [B, 64, 56, 56]
        said: Tensor = self.out(self.blocks(x).mean((2, 3)))
        return said


RESNET50 = Task(
    name="resnet50",
    summary="ResNet50 on ImageNet-1K, or another folder of up to 1000 classes, 25.6 M parameters",
    load=partial(imagenet.load, task="resnet50"),
    needs_data=True,
    model=ResNetForImageNet,
    prepare=imagenet.prepare,
    num_draws=NUM_DRAWS,
    loss=F.cross_entropy,
    correct=top1,
    optimizer=partial(sgd, weight_decay=1e-4),
    lr=0.1,
    lr_batch=256,
    lr_rule="linear",
    batch_size=8,
    epochs=90,
    warmup_epochs=5,
    good=0.72,
    half=True,
)
