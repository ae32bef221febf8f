"""VGG-16 with batch norm on CIFAR-10 (Simonyan and Zisserman 2015): a large model without shortcuts."""

from torch import nn

from .cifar10 import photographs
from .resnet import start_convolutions

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg(stages: tuple[tuple[int, ...], ...] = _STAGES, num_classes: int = 10) -> nn.Module:
    """Stages of 3 x 3 convolutions, each halving height and width, and one linear layer: 32 pixels leave one."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in stages:
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, num_classes))
    start_convolutions(net)
    return net


VGG16 = photographs(
    "vgg16", "VGG-16 with batch norm on CIFAR-10, 14.7 M parameters", vgg, lr=0.05, good=0.92, weight_decay=5e-4
)
