"""How long forward, backward by bucket, update and exchange take, measured on a copy of a model."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
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
    from torch.distributed import ProcessGroup
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
    moments: Floats
    """Wall, on a core and ready but without one, in seconds: at the begin, after forward, when each bucket has its
    gradients, after backward and in the end, `[steps, 3 + buckets + 1, 3]`."""
    worked_s: Floats
    """What of a core it takes to update, to take in a neighbour's model, and to put up one's own with whatever else an
    exchange needs, `[steps, 3]`."""


def measure_work(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    *,
    steps: int,
    bucket_bytes: int = BUCKET_BYTES,
    group: ProcessGroup | None = None,
    local_size: int = 1,
) -> Measured:
    """Train a copy of the model for some steps; the model itself is left alone.

    On CPUs every worker averages with one other meanwhile, as `gossamer.decentralize` has it. One that has no other,
    or that is on a GPU, whose cores exchanges leave alone, averages with a copy.
    """
    import torch

    from ._measure_exchange import in_pairs

    model = copy.deepcopy(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("the model has no parameters to train: there is nothing to measure")
    stepping = optimizer(trained)
    clock = _Clock(trained[0].device)
    buckets = _Buckets(trained, bucket_bytes, clock)
    others = [parameter.detach().clone() for parameter in trained]
    moments, worked = [], []
    with (
        closing(clock),
        in_pairs(model, stepping, group, local_size, bucket_bytes / 2**20)
        if group is not None and group.size() > 1 and trained[0].is_cpu
        else nullcontext() as exchange,
    ):
        for _ in range(_WARM_UP + steps):
            begun = clock.now()
            stepping.zero_grad()
            marks = buckets.begin()
            value = loss(model, batch)
            middle = clock.now()
            value.backward()  # type: ignore[no-untyped-call]
            end = clock.now()
            stepping.step()
            stepped = clock.now()
            if exchange is None:
                with torch.no_grad():
                    torch._foreach_lerp_([parameter.detach() for parameter in trained], others, 0.5)
            mixed = clock.now()
            ready = (end if mark is None else mark for mark in marks)
            moments.append(clock.read(begun, middle, *ready, end, mixed))
            update_s, take_s = np.diff(clock.read(end, stepped, mixed)[:, 1])
            show_s = take_s
            if exchange is not None:
                all_s, (take_s, update_s) = update_s, exchange.since_last()
                show_s = all_s - take_s - update_s
            worked.append((update_s, take_s, show_s))
    buckets.close()
    return Measured(
        bucket_bytes=tuple(buckets.sizes), moments=np.array(moments[_WARM_UP:]), worked_s=np.array(worked[_WARM_UP:])
    )


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
    """Moments of this thread in seconds: wall, on a core, ready but without one. On a GPU, when it has come so far, not
    when it was told to; nobody queues there."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._scheduled = None if self._is_cuda or not _SCHEDULED.exists() else _SCHEDULED.open("rb", buffering=0)

    def now(self) -> Any:
        if not self._is_cuda:
            return self._now_on_cpu()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _now_on_cpu(self) -> tuple[float, float, float]:
        """All three of one moment: where another has got the core between them, once more."""
        after = self._queued_s()
        while True:
            before, wall_s, on_core_s, after = after, time.perf_counter(), time.thread_time(), self._queued_s()
            if before == after:
                return wall_s, on_core_s, after

    def _queued_s(self) -> float:
        """What this thread has waited for a core so far, while it could have run. Linux counts it."""
        if self._scheduled is None:
            return 0.0
        return 1e-9 * int(os.pread(self._scheduled.fileno(), 64, 0).split()[1])

    def read(self, first: Any, *others: Any) -> Floats:
        """`[moments, 3]`."""
        if not self._is_cuda:
            return np.array((first, *others))
        import torch

        torch.cuda.synchronize()
        since_s = [0.0, *(1e-3 * first.elapsed_time(other) for other in others)]
        return np.array([(time_s, time_s, 0.0) for time_s in since_s])

    def close(self) -> None:
        if self._scheduled is not None:
            self._scheduled.close()
