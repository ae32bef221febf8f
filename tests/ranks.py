"""Ranks as threads: one gloo process group each over a store in memory. Eight of them start in a tenth of a second."""

import threading
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
    groups: list[ProcessGroup] = []  # kept to the end: a group that is gone early would refuse a slower rank
    connected = threading.Barrier(size, timeout=60)

    def live(rank: int) -> T:
        group = gloo_group(store, rank, size)
        groups.append(group)
        connected.wait()
        return work(group)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(live, range(size)))
