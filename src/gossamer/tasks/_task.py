"""What a task is: data, a model, a loss, and what "good" means."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A data set that fits in memory, as tensors."""

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    @property
    def num_train(self) -> int:
        return self.train_inputs.shape[0]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training problem with settings that work for it."""

    name: str
    summary: str
    """One line for help texts and reports."""
    load: Callable[[], Dataset]
    """The data; called often, so it must keep what it has read."""
    model: Callable[[], nn.Module]
    """A fresh model; its random start follows torch's seed."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Outputs and targets of a batch to the mean loss."""
    correct: Callable[[Tensor, Tensor], Tensor]
    """Outputs `[..., B, C]` and targets `[B]` to 0 or 1 for each sample, `[..., B]`: its mean is the accuracy."""
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer]
    """Parameters and the peak learning rate to an elementwise optimizer."""
    lr: float
    """Peak learning rate for a global batch of `lr_batch`: reached after the warm-up, then lowered along a cosine."""
    lr_batch: int
    """The global batch that `lr` is for; other batches scale it by the square root of their ratio."""
    batch_size: int
    """Samples of one worker and step."""
    epochs: int
    warmup_epochs: float
    good: float
    """The accuracy that a well-trained model reaches: below it, something is wrong with the training."""
    version: int = 1
    """Raised when data, model or loss change, so that results of before are not taken for results of now."""
    cpu_threads: int | None = None
    """Threads on a CPU, where operations are so small that more would only wait for each other; None for all cores."""


def top1(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the target's, else 0."""
    return (outputs.argmax(-1) == targets).float()
