"""The processes of a training: those a launcher has started, those of a group that is there, or this one alone."""

import atexit
import os
import re
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, ProcessGroup, ProcessGroupGloo  # type: ignore[attr-defined]

_SLURM_PORTS = range(20_000, 50_000)


@dataclass(frozen=True, kw_only=True)
class World:
    """A process group, and how many of its processes share a node."""

    group: ProcessGroup
    workers_per_node: tuple[int, ...]
    """In the order of the ranks."""

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.group.size()

    @property
    def local_size(self) -> int | None:
        """Workers on every node; None where some have more than others."""
        return self.workers_per_node[0] if len(set(self.workers_per_node)) == 1 else None


def join_world(group: ProcessGroup | None = None, *, local_size: int | None = None) -> World:
    """The group that is given; that of `torch.distributed`, where a launcher or the user has made one; one made from
    what `torchrun` or Slurm's `srun` has put into the environment, for as long as the process lives; or a world of this
    process alone.

    For scripts that need the number of workers before they call `gossamer.decentralize`, which otherwise does this.

    >>> world = join_world()
    >>> world.rank, world.size
    (0, 1)
    """
    if group is None and not dist.is_initialized():
        _init_from(os.environ)
    if group is None:
        group = dist.group.WORLD if dist.is_initialized() else _alone()
    assert group is not None
    if torch.device("cpu") not in group._device_types:  # NCCL alone: what lies on the CPU is exchanged too
        ranks = dist.get_process_group_ranks(group)
        group = dist.new_group(ranks, backend=_backend(), use_local_synchronization=True)
    assert group is not None
    if local_size is None:
        return World(group=group, workers_per_node=_workers_per_node(os.environ, group.size()))
    if local_size < 1 or group.size() % local_size:
        raise ValueError(
            f"local_size={local_size} does not divide the {group.size()} workers: give the number of workers on each "
            "node, the same on all"
        )
    return World(group=group, workers_per_node=_evenly(local_size, group.size()))


def _init_from(environment: "os._Environ[str] | dict[str, str]") -> None:
    """Make torch's default group, if a launcher has said how. It stays to the end of the process, since models are
    averaged and saved after the training too."""
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        dist.init_process_group(_backend())
    elif {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys() and int(environment["SLURM_NTASKS"]) > 1:
        dist.init_process_group(
            _backend(),
            init_method=slurm_address(environment),
            rank=int(environment["SLURM_PROCID"]),
            world_size=int(environment["SLURM_NTASKS"]),
        )
    else:
        return
    atexit.register(_end)


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def _end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def slurm_address(environment: "os._Environ[str] | dict[str, str]") -> str:
    """Where the processes of a job step meet: the first node, at a port that follows from the job's number.

    >>> slurm_address({"SLURM_STEP_NODELIST": "gpu[07-09,12],login1", "SLURM_JOB_ID": "31415"})
    'tcp://gpu07:21415'
    >>> slurm_address({"SLURM_JOB_NODELIST": "solo", "SLURM_JOB_ID": "5", "MASTER_PORT": "29500"})
    'tcp://solo:29500'
    """
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise ValueError("Slurm has set SLURM_PROCID but no SLURM_STEP_NODELIST: start the script with srun")
    whole = re.match(r"(\[[^\]]*\]|[^,\[])*", nodes)  # up to a comma that is not in brackets
    assert whole is not None
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", whole[0])
    host = environment.get("MASTER_ADDR", first)
    job = int(environment.get("SLURM_JOB_ID", "0"))
    port = environment.get("MASTER_PORT", str(_SLURM_PORTS[job % len(_SLURM_PORTS)]))
    return f"tcp://{host}:{port}"


def _workers_per_node(environment: "os._Environ[str] | dict[str, str]", size: int) -> tuple[int, ...]:
    """As the launcher says, Slurm in the manner of `2(x3),1`; all on one node, where nobody has said.

    >>> _workers_per_node({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, 7)
    (2, 2, 2, 1)
    >>> _workers_per_node({"LOCAL_WORLD_SIZE": "4"}, 8)
    (4, 4)
    """
    for key in ("LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        said = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get(key, ""))
        counts = [int(count) for count, times in said for _ in range(int(times or 1))]
        if counts and 0 < max(counts) <= size:  # else the group is a part of what was launched
            return tuple(counts) if len(set(counts)) > 1 else _evenly(counts[0], size)
    return (size,)


def _evenly(local_size: int, size: int) -> tuple[int, ...]:
    full, rest = divmod(size, local_size)
    return (local_size,) * full + (rest,) * (rest > 0)


def _alone() -> ProcessGroup:
    """A group of one that touches no global state: the same script runs by itself."""
    store = HashStore()
    group = ProcessGroup(store, 0, 1)
    backend = ProcessGroupGloo(PrefixStore("gloo", store), 0, 1)  # type: ignore[call-arg]
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    return group
