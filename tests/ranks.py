"""Ranks as threads: one gloo process group each over a store in memory. Eight of them start in a tenth of a second."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroup, ProcessGroupGloo, Store

T = TypeVar("T")


def gloo_group(store: Store, rank: int, size: int, timeout_s: float = 20.0) -> ProcessGroup:
    """What `init_process_group` makes, without its global state, so that every thread can have its own."""
    group = ProcessGroup(store, rank, size)
    timeout = timedelta(seconds=timeout_s)
    backend = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return group


def run_ranks(size: int, work: Callable[[ProcessGroup], T]) -> list[T]:
    """Call `work` on every rank at once; the results by rank. The first error of any rank is raised."""
    store = HashStore()
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(lambda rank=rank: work(gloo_group(store, rank, size))) for rank in range(size)]
        return [future.result() for future in futures]
