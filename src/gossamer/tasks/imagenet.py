"""ImageNet-1K, or any folder of images with a folder a class, as 256 x 256 pixels."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ._folder import data_folder
from ._images import cut_normalised, normalised, one_of
from ._packed_images import image_files, packed, require_pillow
from ._task import Dataset

MAX_CLASSES = 1000
"""Outputs of the models; a folder may have fewer classes."""
STORED, SEEN = 256, 224
"""Side of the images as stored, and of what the model sees of them."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HOLDS = "train/CLASS/*.JPEG and val/CLASS/*.JPEG (jpg and png too)"


def load(data: Path | None, *, task: str) -> Dataset:
    """Training images and, to test on, those of `val/`; `task` is for messages.

    The first call decodes every image, shorter side 256, its middle, into `.gossamer-256/` inside the folder, 197 kB
    each: hours and 262 GB for all of ImageNet. After that, images are read from there.
    """
    folder = data_folder(data, task=task, holds=_HOLDS)
    require_pillow(task)
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise ValueError(f"{folder} has no {part}/: task {task!r} needs --data DIR with {_HOLDS} in it")
    return _read(folder)


@cache
def _read(folder: Path) -> Dataset:
    train, val = image_files(folder / "train"), image_files(folder / "val")
    for part, files in (("train", train), ("val", val)):
        if not files:
            raise ValueError(f"{folder / part} has no images: fill it with CLASS/*.JPEG (jpg and png too)")
    classes = {name: number for number, name in enumerate(sorted({file.parent.name for file in train}))}
    unknown = sorted({file.parent.name for file in val} - set(classes))
    if unknown:
        raise ValueError(
            f"{folder / 'val'} has the class {unknown[0]!r}, which {folder / 'train'} has not: add it there"
        )
    if len(classes) > MAX_CLASSES:
        raise ValueError(f"{folder / 'train'} has {len(classes)} classes: the models here tell {MAX_CLASSES} apart")
    cache_folder = folder / f".gossamer-{STORED}"
    return Dataset(
        train_inputs=packed(train, name="train", side=STORED, cache=cache_folder),
        train_targets=torch.tensor([classes[file.parent.name] for file in train]),
        test_inputs=packed(val, name="val", side=STORED, cache=cache_folder),
        test_targets=torch.tensor([classes[file.parent.name] for file in val]),
    )


def prepare(images: Tensor, draws: Tensor | None) -> Tensor:
    """224 x 224 normalised pixels: the middle, or with draws a square anywhere, mirrored or not."""
    spare = STORED - SEEN
    if draws is None:
        middle = slice(spare // 2, spare // 2 + SEEN)
        return normalised(images[..., middle, middle], MEAN, STD)
    top, left = one_of(spare + 1, draws[..., :2]).unbind(-1)
    return cut_normalised(images, top, left, draws[..., 2] < 0.5, size=SEEN, mean=MEAN, std=STD)
