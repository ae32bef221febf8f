"""True processes for tests of kills and of separate memory: forkserver with all imports done, never spawn."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, TCPStore

PRELOAD = ["gossamer.bench.launch", "torch._dynamo"]
"""What a sweep has its own processes start with: they and these come from the same server, whoever is first."""


def in_processes(size: int, work: Callable[[ProcessGroup], Any]) -> dict[int, Any]:
    """Call `work`, a function of a module, in `size` processes; results by rank of those that lived to send one."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    return _results([partial(_in_group, rank, size, store.port, work) for rank in range(size)])


def under(environments: list[dict[str, str]], work: Callable[[], Any]) -> dict[int, Any]:
    """Call `work` in a process for each environment, as launchers set them; nothing else is set up."""
    return _results([partial(_in_environment, environment, work) for environment in environments])


def as_torchrun(size: int) -> list[dict[str, str]]:
    """What torchrun sets, as `test_world` sees it do, without the seconds that each of its processes imports torch."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    all_alike = address | {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "none"}
    return [all_alike | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def _results(calls: list[Callable[[], Any]]) -> dict[int, Any]:
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    ends = []
    for rank, call in enumerate(calls):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_tell, args=(call, there), daemon=True)
        process.start()
        there.close()
        ends.append((rank, here, process))
    results = {}
    for rank, here, process in ends:
        with suppress(EOFError):  # it was killed
            results[rank] = here.recv()
        process.join()
    return results


def _tell(call: Callable[[], Any], there: Connection) -> None:
    torch.set_num_threads(1)
    there.send(call())


def _in_group(rank: int, size: int, port: int, work: Callable[[ProcessGroup], Any]) -> Any:
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    return work(dist.group.WORLD)


def _in_environment(environment: dict[str, str], work: Callable[[], Any]) -> Any:
    os.environ.update(environment)
    return work()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def group_lives(process_group: int) -> bool:
    """Whether any process of a group (of a process that was started in a session of its own) is still there."""
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return False
    return True
