"""What an all-reduce takes, alone and beside backward, measured over the process group."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._measure_links import gathered
from ._measure_work import Loss

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

_WARM_UP, _TIMES = 2, 6


class AllReduceTimes(NamedTuple):
    """Seconds, the same on all ranks."""

    alone_s: float
    held_up_s: float
    """By what it holds up a backward that goes on beside it."""


def measure_all_reduce(
    group: ProcessGroup, model: nn.Module, loss: Loss, batch: Any, sizes: list[int]
) -> AllReduceTimes:
    """All-reduces of so many bytes, a backward, and both at a time, in turn: whatever else disturbs disturbs all three.

    All ranks must call this at the same time. The model itself is left alone.
    """
    import torch

    model = copy.deepcopy(model)
    device = next(model.parameters()).device
    messages = [torch.zeros(max(size // 4, 1), device=device) for size in sizes]
    taken: list[list[float]] = []
    for _ in range(_WARM_UP + _TIMES):
        taken.append([])
        for sent, goes_back in ((messages, False), ([], True), (messages, True)):
            model.zero_grad()
            value = loss(model, batch) if goes_back else None
            taken[-1].append(_seconds(group, device, sent, value))
    last = gathered(group, np.array(taken[_WARM_UP:])).max(axis=0)  # [times, 3], each until all ranks had done it
    alone_s, backward_s, both_s = np.median(last, axis=0).tolist()
    return AllReduceTimes(alone_s=alone_s, held_up_s=_held_up_s(alone_s, backward_s, both_s))


def _held_up_s(alone_s: float, backward_s: float, both_s: float) -> float:
    """Side by side two things take as long as the longer; from the same cores, their sum; or something in between.

    >>> [round(_held_up_s(0.25, 0.5, both_s), 6) for both_s in (0.45, 0.5, 0.625, 0.75, 0.8)]
    [0.0, 0.0, 0.125, 0.25, 0.25]
    """
    shorter, longer = sorted((alone_s, backward_s))
    return alone_s * min(max((both_s - longer) / shorter, 0.0), 1.0)


def _seconds(group: ProcessGroup, device: torch.device, messages: list[Tensor], value: Tensor | None) -> float:
    """From where all ranks begin until this one has averaged the messages and gone back from the loss."""
    import torch

    group.barrier().wait()
    if device.type == "cuda":
        torch.cuda.synchronize()  # forward is not part of it
    start = time.perf_counter()
    under_way = [group.allreduce([message]) for message in messages]
    if value is not None:
        value.backward()  # type: ignore[no-untyped-call]
    for work in under_way:
        work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
