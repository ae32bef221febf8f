"""How much memory replicas take, and how many fit: said before or instead of a crash."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

_COPIES = 4
"""What training holds of every parameter at least: itself, its gradient, the optimizer's momentum, the mixed values."""


class OutOfMemory(RuntimeError):
    """The replicas do not fit on the device; says how many would."""


def check_memory(num_replicas: int, parameters: Iterable[Tensor], device: torch.device) -> None:
    """Refuse a number of replicas whose parameters alone cannot fit."""
    one = _COPIES * sum(p.numel() * p.element_size() for p in parameters)
    has = available_bytes(device)
    if one * num_replicas > has:
        raise OutOfMemory(
            f"{num_replicas} replicas need {one * num_replicas / 2**30:,.1f} GiB for parameters, gradients and "
            f"momentum, and the device has {has / 2**30:,.1f} GiB free: about {has // one} would fit"
        )


def replicas_that_fit(num_replicas: int, device: torch.device) -> int:
    """About how many of `num_replicas`, which have just failed to fit, would, from what they take now."""
    taken = torch.cuda.max_memory_allocated(device)
    return int(num_replicas * torch.cuda.mem_get_info(device)[1] * 0.8 // max(taken, 1)) or 1


def available_bytes(device: torch.device) -> int:
    """What a device has free, and what torch holds of it without need."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: all there is
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
