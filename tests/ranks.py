"""Ranks as threads: one gloo process group each over a store in memory. Eight of them start in a tenth of a second."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
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
    groups: dict[int, ProcessGroup] = {}  # kept to the end: a group that is gone early would refuse a slower rank
    connected = threading.Barrier(size, timeout=60)

    def live(rank: int) -> T:
        group = groups[rank] = gloo_group(store, rank, size)
        connected.wait()
        return work(group)

    def leave(rank: int) -> None:
        """Gloo takes 10 ms to close a connection: ranks do it side by side."""
        groups.pop(rank, None)

    with ThreadPoolExecutor(size) as pool:
        lives = [pool.submit(live, rank) for rank in range(size)]
        wait(lives)
        list(pool.map(leave, range(size)))
    return [life.result() for life in lives]
