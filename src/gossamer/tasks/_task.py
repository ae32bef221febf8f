"""What a task is: data, a model, a loss, and what "good" means."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LrRule = Literal["linear", "sqrt", "none"]
Decay = Literal["cosine", "step"]

_DIGESTED = 256
"""Samples that a digest looks at: a data set may have to be read from a disk."""


class Samples(Protocol):
    """Samples by number: a tensor, or a data set on disk that reads what it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Samples `[*indices.shape, ...]`, on the device that `to` gave."""
        ...

    def to(self, device: str) -> Self: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A data set as it is stored: images as bytes, text as token numbers. `Task.prepare` makes inputs of it."""

    train_inputs: Samples | Tensor
    train_targets: Tensor
    test_inputs: Samples | Tensor
    test_targets: Tensor

    @property
    def num_train(self) -> int:
        return len(self.train_inputs)

    @property
    def num_test(self) -> int:
        return len(self.test_inputs)

    @property
    def labels(self) -> Tensor | None:
        """The class of each training sample, where samples have one: what heterogeneous shards are drawn by."""
        return self.train_targets if self.train_targets.ndim == 1 else None

    def digest(self) -> str:
        """The same for the same data, wherever they lie: of all targets, and of samples at even distances."""
        digest = hashlib.sha256()
        for inputs, targets in ((self.train_inputs, self.train_targets), (self.test_inputs, self.test_targets)):
            some = inputs[torch.arange(0, len(inputs), max(len(inputs) // _DIGESTED, 1))]
            for tensor in (targets, some):
                digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes())
        return digest.hexdigest()[:8]

    def to(self, device: str) -> "Dataset":
        """The same with its tensors on a device."""
        return Dataset(**{name: samples.to(device) for name, samples in vars(self).items()})


def as_stored(inputs: Tensor, draws: Tensor | None) -> Tensor:
    """Inputs that are ready as they are."""
    return inputs


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training problem with settings that work for it."""

    name: str
    summary: str
    """One line for help texts and reports."""
    load: Callable[[Path | None], Dataset]
    """The data in this folder (the value of `--data`); called often, so it must keep what it has read."""
    needs_data: bool = False
    """Whether `load` needs a folder; the others bring their data along."""
    model: Callable[[], nn.Module]
    """A fresh model; its random start follows torch's seed."""
    prepare: Callable[[Tensor, Tensor | None], Tensor] = as_stored
    """Stored inputs `[..., B, *sample]` to what the model takes. With draws `[..., B, num_draws]`, uniform in [0, 1),
    augmented by them; with None as for testing. A pure function: the harness draws, from a seeded stream a replica."""
    num_draws: int = 0
    """Random numbers that `prepare` takes for one training sample; 0 for no augmentation."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Outputs and targets of a batch to the mean loss."""
    correct: Callable[[Tensor, Tensor], Tensor]
    """Outputs `[..., B, C]` (or `[..., B, T, C]`) and targets `[B]` (`[B, T]`) to the share that is right for each
    sample, `[..., B]`: its mean is the accuracy."""
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer]
    """Parameters and the peak learning rate to an elementwise optimizer."""
    lr: float
    """Peak learning rate for a global batch of `lr_batch`, reached after the warm-up."""
    lr_batch: int
    """The global batch that `lr` is for."""
    lr_rule: LrRule = "sqrt"
    """How other global batches change the rate: by their ratio, by its square root, or not."""
    decay: Decay = "cosine"
    """After the warm-up, half a cosine down to zero; or a tenth of the rate at 50 % and again at 75 % of the run."""
    batch_size: int
    """Samples of one worker and step."""
    epochs: int
    warmup_epochs: float
    good: float
    """The accuracy that a well-trained model reaches: below it, something is wrong with the training."""
    is_language: bool = False
    """Whether `exp(loss)` is a perplexity that people look at."""
    score: Callable[[Callable[[Tensor], Tensor], Dataset], dict[str, float]] | None = None
    """More figures at the end of training, such as BLEU, from a function that says what the averaged model says to a
    batch of (prepared) inputs and the data on the device."""
    half: bool = False
    """Whether the model may compute in bfloat16 on a GPU, its parameters kept in float32."""
    compiles: bool = True
    """Whether compiling the model pays on a GPU; a long unrolled loop takes minutes to compile."""
    version: int = 1
    """Raised when data, model or loss change, so that results of before are not taken for results of now."""
    cpu_threads: int | None = None
    """Threads on a CPU, where operations are so small that more would only wait for each other; None for all cores."""


def top1(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the target's, else 0."""
    return (outputs.argmax(-1) == targets).float()


def compute_dtype(task: Task, device: str) -> torch.dtype | None:
    """What the model computes in on a device, where that is not the type of its parameters."""
    return torch.bfloat16 if task.half and device.startswith("cuda") else None
