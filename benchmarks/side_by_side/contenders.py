"""How each contender is driven: the same model, the same AdamW, the same loop; only what it needs around them."""

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gossamer

from .cases import TOPOLOGIES, Case

SYNCHRONIZE_EVERY = 4
"""Steps between the averages of post-local SGD."""


@dataclass(frozen=True)
class Place:
    """Where a worker is."""

    rank: int
    case: Case
    address: str
    """At which other workers reach it."""


@dataclass(frozen=True)
class Training:
    """What a loop calls: `zero_grad`, then forward and backward of the model, then `step`."""

    model: nn.Module
    zero_grad: Callable[[], object]
    step: Callable[[], object]


Attach = Callable[[nn.Module, Place, str], AbstractContextManager[Training]]
"""A fresh model, where this is, the topology → the training, for as long as the context is open."""


@dataclass(frozen=True)
class Contender:
    """A method to train with, on a topology where it has one."""

    name: str
    topology: str = ""

    @property
    def attach(self) -> Attach:
        return _ATTACH[self.name]

    @property
    def missing(self) -> str | None:
        """The package that would have to be installed for it."""
        package = _PACKAGES.get(self.name)
        return package if package and importlib.util.find_spec(package.replace("-", "_")) is None else None

    def __str__(self) -> str:
        return f"{self.name}:{self.topology}" if self.topology else self.name


def chosen(names: list[str]) -> list[Contender]:
    """Contenders by name: `gossamer` with all topologies, `gossamer:ring` with one."""
    found: dict[str, Contender] = {}
    for name in names:
        fitting = [c for c in CONTENDERS if name in (str(c), c.name)]
        if not fitting:
            raise ValueError(
                f"no contender {name!r}: take of {', '.join(_ATTACH)}, or one topology as in gossamer:ring"
            )
        found |= {str(contender): contender for contender in fitting}
    return list(found.values())


def _adamw(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=1e-3)


@contextmanager
def _alone(model: nn.Module, place: Place, topology: str) -> Iterator[Training]:
    """No communication at all: the floor."""
    optimizer = _adamw(model)
    yield Training(model, optimizer.zero_grad, optimizer.step)


@contextmanager
def _gossamer(model: nn.Module, place: Place, topology: str, behind: int = 1) -> Iterator[Training]:
    optimizer, algorithm = _adamw(model), f"d-psgd-overlapped:behind={behind}"
    where = {"topology": TOPOLOGIES[topology], "local_size": place.case.local_size}
    with gossamer.decentralize(model, optimizer, algorithm=algorithm, **where):
        yield Training(model, optimizer.zero_grad, optimizer.step)


@contextmanager
def _ddp(model: nn.Module, place: Place, topology: str) -> Iterator[Training]:
    wrapped, optimizer = DistributedDataParallel(model), _adamw(model)
    yield Training(wrapped, optimizer.zero_grad, optimizer.step)


@contextmanager
def _post_local_sgd(model: nn.Module, place: Place, topology: str) -> Iterator[Training]:
    """Local steps from the first one on, and the mean of all models every fourth."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    alone, _ = dist.new_subgroups(1)
    wrapped = DistributedDataParallel(model)
    state = hook.PostLocalSGDState(dist.group.WORLD, alone, start_localSGD_iter=0)
    wrapped.register_comm_hook(state, hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=SYNCHRONIZE_EVERY, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(_adamw(model), averager)
    yield Training(wrapped, optimizer.zero_grad, optimizer.step)
    dist.destroy_process_group(alone)


@contextmanager
def _torchft(model: nn.Module, place: Place, topology: str) -> Iterator[Training]:
    """Fault-tolerant DDP: each worker is a replica group of its own, rank 0 hosts the lighthouse that all report to."""
    import torchft
    from torchft.coordination import LighthouseServer

    logging.getLogger("torchft").setLevel(logging.ERROR)
    logging.getLogger("torchft.manager").setLevel(logging.ERROR)
    lighthouse = LighthouseServer("[::]:0", min_replicas=place.case.workers) if place.rank == 0 else None
    told = [f"http://{place.address}:{lighthouse.address().rsplit(':', 1)[1]}" if lighthouse else ""]
    dist.broadcast_object_list(told)
    store = TCPStore(place.address, 0, is_master=True, wait_for_workers=False)
    group = torchft.ProcessGroupGloo(timeout=timedelta(seconds=60))
    manager = torchft.Manager(
        pg=group,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=place.case.workers,
        rank=0,
        world_size=1,
        store_addr=place.address,
        store_port=store.port,
        lighthouse_addr=told[0],
        hostname=place.address,
        replica_id=f"worker_{place.rank}",
        init_sync=False,  # all begin with the same seed
    )
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, _adamw(model))
    yield Training(wrapped, optimizer.zero_grad, optimizer.step)
    dist.barrier()  # the lighthouse goes last
    manager.shutdown()
    group.shutdown()
    dist.barrier()
    if lighthouse is not None:
        lighthouse.shutdown()


@contextmanager
def _decent_dp(model: nn.Module, place: Place, topology: str) -> Iterator[Training]:
    """It makes and steps an optimizer for each bucket inside backward, and sets gradients to none there."""
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.disable("decent_dp")
    wrapped = DecentralizedDataParallel(
        model,
        optim_fn=lambda named: AdamW([parameter for _, parameter in named], lr=1e-3),
        topology=_DECENT_DP_TOPOLOGIES[topology],
        _local_world_size=place.case.local_size,
    )
    yield Training(wrapped, _nothing, _nothing)
    for work in wrapped._comm_ops:
        work.wait()
    for group in wrapped._topo._registry.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def _nothing() -> None:
    pass


_DECENT_DP_TOPOLOGIES = {
    "complete": "complete",
    "ring": "ring",
    "one-peer-exp": "one-peer-exp",
    "aer": "alternating-exp-ring",
}
_ATTACH: dict[str, Attach] = {
    "none": _alone,
    "ddp": _ddp,
    "post-local-sgd": _post_local_sgd,
    "torchft": _torchft,
    "decent-dp": _decent_dp,
    "gossamer": _gossamer,
    "gossamer-2-behind": partial(_gossamer, behind=2),
}
_PACKAGES = {"torchft": "torchft", "decent-dp": "decent-dp"}
CONTENDERS = [
    Contender(name, topology)
    for name in _ATTACH
    for topology in (TOPOLOGIES if name.startswith(("decent-dp", "gossamer")) else ("",))
]
