"""How long forward, backward by bucket and update take, measured on a copy of a model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._work import BUCKET_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

Floats = NDArray[np.float64]
Loss = Callable[["nn.Module", Any], "Tensor"]
"""A model and a batch → the loss."""
_WARM_UP = 5
_SCHEDULED = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one worker, step by step."""

    bucket_bytes: tuple[int, ...]
    forward_s: Floats
    """`[steps]`."""
    ready_s: Floats
    """From the begin of backward until each bucket has its gradients, and until its end, `[steps, buckets + 1]`."""
    update_s: Floats
    """The optimizer's step, `[steps]`."""
    mix_s: Floats
    """An average of the model with another, `[steps]`."""
    queued_s: Floats
    """Of forward and backward: for a core that others had, `[steps]`; 0 where the system does not tell."""


def measure_work(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    *,
    steps: int,
    bucket_bytes: int = BUCKET_BYTES,
) -> Measured:
    """Train a copy of the model for some steps; the model itself is left alone."""
    import torch

    model = copy.deepcopy(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("the model has no parameters to train: there is nothing to measure")
    stepping = optimizer(trained)
    clock = _Clock(trained[0].device)
    buckets = _Buckets(trained, bucket_bytes, clock)
    others = [parameter.detach().clone() for parameter in trained]
    forward, ready, update, mix, queued = [], [], [], [], []
    for step in range(_WARM_UP + steps):
        stepping.zero_grad()
        marks = buckets.begin()
        begun = clock.now()
        queued_before_s = _queued_s()
        value = loss(model, batch)
        middle = clock.now()
        value.backward()  # type: ignore[no-untyped-call]
        queued_after_s = _queued_s()
        end = clock.now()
        stepping.step()
        stepped = clock.now()
        with torch.no_grad():
            torch._foreach_lerp_([parameter.detach() for parameter in trained], others, 0.5)
        mixed = clock.now()
        clock.catch_up()
        if step >= _WARM_UP:
            forward.append(clock.between(begun, middle))
            ready.append([clock.between(middle, end if mark is None else mark) for mark in (*marks, end)])
            update.append(clock.between(end, stepped))
            mix.append(clock.between(stepped, mixed))
            queued.append(queued_after_s - queued_before_s)
    buckets.close()
    return Measured(
        bucket_bytes=tuple(buckets.sizes),
        forward_s=np.array(forward),
        ready_s=np.array(ready),
        update_s=np.array(update),
        mix_s=np.array(mix),
        queued_s=np.array(queued),
    )


def _queued_s() -> float:
    """What this thread has waited for a core so far, while it could have run. Linux counts it."""
    try:
        _, waited_ns, _ = map(int, _SCHEDULED.read_text().split())
    except OSError:
        return 0.0
    return 1e-9 * waited_ns


class _Buckets:
    """Notes when the last gradient of each bucket is there. They are cut as DDP cuts them, from the last layer on."""

    def __init__(self, parameters: list[nn.Parameter], bucket_bytes: int, clock: _Clock) -> None:
        self._clock = clock
        self.sizes: list[int] = []
        self._members: list[int] = []
        self._handles = []
        for parameter in reversed(parameters):
            if not self.sizes or self.sizes[-1] >= bucket_bytes:
                self.sizes.append(0)
                self._members.append(0)
            self.sizes[-1] += parameter.nbytes
            self._members[-1] += 1
            note = partial(self._note, len(self.sizes) - 1)
            self._handles.append(parameter.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
        self._missing: list[int] = []
        self._marks: list[Any] = []

    def begin(self) -> list[Any]:
        """The marks of this step, as they come; None for a bucket some of whose parameters get no gradient."""
        self._missing, self._marks = list(self._members), [None] * len(self._members)
        return self._marks

    def _note(self, bucket: int, parameter: Tensor) -> None:
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self._marks[bucket] = self._clock.now()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


class _Clock:
    """Moments on the device that computes: on a GPU, when it has come so far, not when it was told to."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"

    def now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, one: Any, other: Any) -> float:
        return float(1e-3 * one.elapsed_time(other) if self._is_cuda else other - one)

    def catch_up(self) -> None:
        if self._is_cuda:
            import torch

            torch.cuda.synchronize()
