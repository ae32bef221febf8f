"""How long forward, backward by bucket, update and exchange take, measured on a copy of a model."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
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
    """Of one worker, step by step, `[steps]`. Where cores are shared, what is worked on them takes its share of the
    queueing for them."""

    bucket_bytes: tuple[int, ...]
    forward_s: Floats
    ready_s: Floats
    """From the begin of backward until each bucket has its gradients, and until its end, `[steps, buckets + 1]`."""
    update_s: Floats
    """The optimizer's step."""
    take_s: Floats
    """To take in the model of a neighbour."""
    show_s: Floats
    """To put up one's own, and whatever else an exchange takes."""


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
    moments, spent = [], []
    with (
        in_pairs(model, stepping, group, local_size, bucket_bytes / 2**20)
        if group is not None and group.size() > 1 and trained[0].is_cpu
        else nullcontext()
    ) as exchange:
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
            else:
                spent.append(exchange.since_last())
            mixed = clock.now()
            ready = (end if mark is None else mark for mark in marks)
            moments.append(clock.read(begun, middle, *ready, end, stepped, mixed))
    buckets.close()
    parts = Parts(np.array(moments[_WARM_UP:]))
    update_s, take_s, show_s = parts.worked_s(-3, -2), parts.worked_s(-2, -1), parts.worked_s(-2, -1)
    if spent:
        take_s, own_s = parts.shared * np.array(spent[_WARM_UP:]).T
        show_s, update_s = update_s - take_s - own_s, own_s
    return Measured(
        bucket_bytes=tuple(buckets.sizes),
        forward_s=parts.lasted_s(0, 1),
        ready_s=np.stack([parts.lasted_s(1, 2 + bucket) for bucket in range(len(buckets.sizes) + 1)], axis=1),
        update_s=update_s,
        take_s=take_s,
        show_s=show_s,
    )


class Parts:
    """What lies between moments of each step, `[steps, moments, 3]`: wall, on a core, ready but without one.

    Where workers share cores they queue for these, and who waits in one step has others wait in another: that makes
    all of them slower, but nobody late. So whatever is worked on a core takes the same share of all queueing.
    """

    def __init__(self, moments: Floats) -> None:
        self._moments = moments
        _, on_core_s, queued_s = (moments[:, -1] - moments[:, 0]).sum(axis=0)
        self.shared = 1 + float(queued_s / on_core_s)
        """How many times as long as alone on a core."""

    def worked_s(self, one: int, other: int) -> Floats:
        """What is worked between two moments of each step, `[steps]`."""
        return np.asarray(self.shared * (self._moments[:, other] - self._moments[:, one])[:, 1])

    def lasted_s(self, one: int, other: int) -> Floats:
        """The same, and what a worker sleeps in it."""
        wall_s, on_core_s, queued_s = (self._moments[:, other] - self._moments[:, one]).T
        return np.asarray(wall_s - on_core_s - queued_s + self.worked_s(one, other))


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
            return time.perf_counter(), time.thread_time(), self._queued_s()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

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
