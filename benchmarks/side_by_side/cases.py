"""What is measured: models, topologies, jitter, numbers of workers, links between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import topologies
from gossamer.topologies import Schedule

LOCAL_SIZE = 2
"""Workers a node, for the alternating exponential ring."""
TOPOLOGIES = {
    "complete": "complete",
    "ring": "alternating-ring",
    "one-peer-exp": "one-peer-exponential",
    "aer": "alternating-exponential-ring",
}
"""Short name → Gossamer's name. Periodic groups all: what Decent-DP calls a ring are alternating pairs too."""
DEVICES = ("cpu", "cuda")
_INPUTS, _CLASSES = 784, 10


@dataclass(frozen=True, kw_only=True)
class Model:
    """A perceptron; `iterations` of it make up a turn: whole periods of all topologies."""

    width: int
    hidden: int
    batch: int
    iterations: int

    def build(self) -> nn.Module:
        widths = [_INPUTS, *[self.width] * self.hidden]
        layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(self.width, _CLASSES))

    def batches(self, seed: int, count: int = 4) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [
            (
                torch.randn(self.batch, _INPUTS, generator=generator),
                torch.randint(_CLASSES, (self.batch,), generator=generator),
            )
            for _ in range(count)
        ]

    @property
    def num_bytes(self) -> int:
        with torch.device("meta"):
            return sum(parameter.nbytes for parameter in self.build().parameters())


MODELS = {
    "tiny": Model(width=32, hidden=1, batch=16, iterations=4),
    "small": Model(width=256, hidden=2, batch=64, iterations=36),  # 0.27 million parameters
    "middle": Model(width=1024, hidden=6, batch=32, iterations=24),  # 6.1 million
    "large": Model(width=1024, hidden=24, batch=32, iterations=12),  # 24.9 million
}


@dataclass(frozen=True, kw_only=True)
class Links:
    """Hosts on switches: what the link of a host carries, each way, and what joins the switches."""

    switches: tuple[tuple[int, ...], ...]
    host_mbit: float
    trunk_mbit: float | None = None
    workers_per_host: int = 1

    @property
    def workers(self) -> int:
        return sum(map(len, self.switches))

    def switch_of(self, worker: int) -> int:
        return next(number for number, members in enumerate(self.switches) if worker in members)

    def host_of(self, worker: int) -> int:
        return worker // self.workers_per_host

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Workers that reach each other faster than others."""
        size = self.workers_per_host
        return self.switches if size == 1 else tuple(zip(*[iter(range(self.workers))] * size, strict=True))


LINKS = {
    "100mbit": Links(switches=((0, 1, 2, 3),), host_mbit=100),
    "100mbit-8": Links(switches=(tuple(range(8)),), host_mbit=100),
    "1gbit": Links(switches=((0, 1, 2, 3),), host_mbit=1000),
    "1gbit-2": Links(switches=((0, 1),), host_mbit=1000),
    "2x2": Links(switches=((0, 1), (2, 3)), host_mbit=1000, trunk_mbit=100),
    "2-hosts": Links(switches=((0, 1, 2, 3),), host_mbit=100, workers_per_host=2),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison. All contenders of it are measured in turns, round by round."""

    workers: int
    model: str
    jitter_ms: float = 0.0
    links: str = ""
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ValueError(f"{self.workers} workers: a comparison needs 2 or more")
        if self.model not in MODELS:
            raise ValueError(f"no model {self.model!r}: take of {', '.join(MODELS)}")
        if self.jitter_ms < 0:
            raise ValueError(f"a jitter of {self.jitter_ms:g} ms: give the mean of the sleeps, 0 or more")
        if self.links and self.links not in LINKS:
            raise ValueError(f"no links {self.links!r}: take of {', '.join(LINKS)}")
        if self.device not in DEVICES:
            raise ValueError(f"no device {self.device!r}: take of {', '.join(DEVICES)}")

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Case":
        """The case that a row belongs to."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    @property
    def local_size(self) -> int:
        return LOCAL_SIZE if self.workers > LOCAL_SIZE else 1

    def schedule(self, topology: str) -> Schedule:
        return topologies.build(TOPOLOGIES[topology], self.workers, local_size=self.local_size)

    def __str__(self) -> str:
        parts = [f"{self.workers} workers", self.model, *(["sharing a GPU"] if self.device == "cuda" else [])]
        parts += [f"jitter {self.jitter_ms:g} ms"] if self.jitter_ms else []
        return ", ".join([*parts, *([self.links] if self.links else [])])


def grid(workers: Sequence[int], models: Sequence[str], jitters_ms: Sequence[float], device: str = "cpu") -> list[Case]:
    """All combinations on one machine."""
    return [Case(workers=n, model=m, jitter_ms=j, device=device) for n in workers for m in models for j in jitters_ms]


def linked(names: Iterable[str], models: Sequence[str] = ()) -> list[Case]:
    """Cases across hosts: with models whose exchange takes a tenth of a second or so, when none are given."""
    for name in names:
        if name not in LINKS:
            raise ValueError(f"no links {name!r}: take of {', '.join(LINKS)}")
    suited = {"1gbit": ("small", "middle")}
    return [
        Case(workers=LINKS[name].workers, model=model, links=name)
        for name in names
        for model in models or suited.get(name, ("small",))
    ]
