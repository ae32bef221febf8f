"""What an engine offers to a harness, whether it holds all replicas or one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from .around_step import Probe
from .flat import FlatReplica

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch to the mean loss."""


class Engine(Protocol):
    """N replicas of one model in training; `local` of them are held here.

    A first axis of size L counts the replicas held here: L = N stacked on one device, L = 1 in a process of its own.
    """

    probes: list[Probe]
    """Called between the optimizer's step and the mixing, with the number of the step."""

    @property
    def num_replicas(self) -> int: ...

    @property
    def local(self) -> slice:
        """Which of the N replicas are held here."""
        ...

    @property
    def bytes_sent(self) -> NDArray[np.float64]:
        """What training, not measuring, has made each worker held here send so far, `[L]`."""
        ...

    @property
    def bytes_averaged(self) -> NDArray[np.float64]:
        """The part of it that went into means over all replicas, `[L]`."""
        ...

    @property
    def bytes_before_steps(self) -> NDArray[np.float64]:
        """What of it all went before the optimizer's steps, where it can hide behind backward, `[L]`."""
        ...

    @property
    def bytes_of_gradients(self) -> NDArray[np.float64]:
        """The part of that which went into means over all replicas, `[L]`."""
        ...

    tensor_names: tuple[str, ...]
    """Names of the trained parameters, in the order of the replicas' spans."""
    replicas: list[FlatReplica]
    """The flat buffers, one for each dtype."""

    def flats(self) -> list[Tensor]:
        """The trained parameters held here, `[L, P]` for each dtype."""
        ...

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group."""
        ...

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One training step on batches `[L, B, ...]`; the losses `[L]`."""
        ...

    def outputs(self, inputs: Tensor) -> Tensor:
        """What each replica says to inputs of its own `[L, B, ...]`: `[L, B, ...]`."""
        ...

    def averaged_outputs(self, inputs: Tensor) -> Tensor:
        """What the model averaged over all replicas says: `[B, ...]`."""
        ...

    def gather(self, local: Tensor) -> Tensor:
        """`[L, ...]` of every holder, joined: `[N, ...]`."""
        ...

    def mean(self, local: Tensor) -> Tensor:
        """The mean over all N replicas of `[L, ...]`, without the first axis."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, saved: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each of its modules is in the mode it was in, frozen ones too."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
