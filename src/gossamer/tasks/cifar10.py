"""CIFAR-10: 60,000 photographs of 32 x 32 pixels in ten classes (Krizhevsky 2009), in its Python files."""

import pickle
from collections.abc import Callable
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ._folder import data_folder, first_file
from ._images import NUM_DRAWS, cut_normalised, normalised, one_of
from ._optimizers import sgd
from ._task import Dataset, Task, top1

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_MAX_SHIFT = 4
_FOLDER = "cifar-10-batches-py"
_HOLDS = f"{_FOLDER}/ (the unpacked 'python version' of https://www.cs.toronto.edu/~kriz/cifar.html)"
_TRAIN, _TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)


def load(data: Path | None, *, task: str) -> Dataset:
    """50,000 images to train on and 10,000 to test, bytes `[S, 3, 32, 32]`; `task` is for messages."""
    folder = data_folder(data, task=task, holds=_HOLDS)
    folder = folder / _FOLDER if (folder / _FOLDER).is_dir() else folder
    for name in (*_TRAIN, *_TEST):
        first_file(folder, (name,), task=task, holds=_HOLDS)
    return read(folder)


@cache
def read(folder: Path, num_each: int = 10_000) -> Dataset:
    """The six files of a folder, each with `num_each` images."""
    train_inputs, train_targets = _join(folder, _TRAIN, num_each)
    test_inputs, test_targets = _join(folder, _TEST, num_each)
    return Dataset(
        train_inputs=train_inputs, train_targets=train_targets, test_inputs=test_inputs, test_targets=test_targets
    )


def prepare(images: Tensor, draws: Tensor | None) -> Tensor:
    """Normalised images; with draws, shifted by up to 4 pixels each way and mirrored (He et al. 2015)."""
    if draws is None:
        return normalised(images, MEAN, STD)
    top, left = (one_of(2 * _MAX_SHIFT + 1, draws[..., :2]) - _MAX_SHIFT).unbind(-1)
    return cut_normalised(images, top, left, draws[..., 2] < 0.5, size=32, mean=MEAN, std=STD)


def prepare_small(images: Tensor, draws: Tensor | None) -> Tensor:
    """The same with a pixel for every four, 16 x 16: a quarter of the work."""
    prepared = prepare(images, draws)
    return F.avg_pool2d(prepared.flatten(0, -4), 2).view(*prepared.shape[:-2], 16, 16)


def photographs(
    name: str,
    summary: str,
    model: Callable[[], nn.Module],
    *,
    lr: float,
    good: float,
    weight_decay: float = 5e-4,
    prepare: Callable[[Tensor, Tensor | None], Tensor] = prepare,
    batch_size: int = 32,
    epochs: int = 60,
    warmup_epochs: float = 5,
) -> Task:
    """The task of a model that tells the classes apart."""
    return Task(
        name=name,
        summary=summary,
        load=partial(load, task=name),
        needs_data=True,
        model=model,
        prepare=prepare,
        num_draws=NUM_DRAWS,
        loss=F.cross_entropy,
        correct=top1,
        optimizer=partial(sgd, weight_decay=weight_decay),
        lr=lr,
        lr_batch=128,
        batch_size=batch_size,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        good=good,
        half=True,
    )


def _join(folder: Path, names: tuple[str, ...], num_each: int) -> tuple[Tensor, Tensor]:
    batches = [_read_batch(folder / name, num_each) for name in names]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.tensor([label for _, labels in batches for label in labels])


def _read_batch(file: Path, num_expected: int) -> tuple[NDArray[np.uint8], list[int]]:
    try:
        stored = _OnlyArrays(BytesIO(file.read_bytes()), encoding="bytes").load()
    except Exception as error:  # bytes that are no pickle may fail in any way
        why = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{file} cannot be read as a CIFAR-10 file: {why}; unpack the archive again") from error
    pixels, labels = (_entry(stored, name) for name in ("data", "labels"))
    shape = pixels.shape if isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 else None
    num_labels = len(labels) if isinstance(labels, list) and all(label in range(10) for label in labels) else None
    if shape != (num_expected, 3072) or num_labels != num_expected:
        raise ValueError(
            f"{file} has images of shape {shape} and {num_labels} labels from 0 to 9, but shape {(num_expected, 3072)} "
            f"and {num_expected} labels are expected: unpack the archive again"
        )
    return pixels, labels


def _entry(stored: Any, name: str) -> Any:
    """An entry by its name, which Python 2 wrote as bytes."""
    return stored.get(name.encode(), stored.get(name)) if isinstance(stored, dict) else None


class _OnlyArrays(pickle.Unpickler):
    """Makes NumPy arrays and what is built into Python, and nothing else: a pickle could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 file does") from None


def _empty_array(*_: object) -> NDArray[np.int8]:
    """Stands for NumPy's own function of this place; the pickle then sets type, shape and contents."""
    return np.ndarray((0,), np.int8)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _latin1,
}
