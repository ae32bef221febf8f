"""What to run: an `Experiment` is one task under several graphs and seeds; a `Run` is one training of it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Literal

import torch

from gossamer import __version__, topologies
from gossamer._names import Spec, lookup
from gossamer.algorithms import ALGORITHMS, Algorithm
from gossamer.tasks import TASKS, Task

EngineName = Literal["stacked", "processes"]
CENTRALIZED = "all-reduce"
"""The algorithm, and the label, of the centralized baseline."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, all settings resolved. On one machine with the same versions, equal settings give equal numbers."""

    task: str
    task_version: int
    graph: str
    algorithm: str
    workers: int
    epochs: int
    batch_size: int
    lr: float
    warmup_epochs: float
    seed: int
    engine: EngineName
    device: str

    @property
    def label(self) -> str:
        """What tables and plots call it: its graph, or that it is centralized."""
        return CENTRALIZED if self.algorithm == CENTRALIZED else self.graph

    @property
    def folder(self) -> str:
        """The name of its folder inside the experiment's."""
        return f"{self.label.replace(':', '-').replace('=', '')}-seed{self.seed}"

    @property
    def steps_per_epoch(self) -> int:
        return TASKS[self.task].load().num_train // self.workers // self.batch_size

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def schedule(self) -> topologies.Schedule:
        """The graph as a function of the step."""
        return topologies.build(
            self.graph, self.workers, steps_per_epoch=self.steps_per_epoch, epochs=self.epochs, seed=self.seed
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One task trained under several graphs, each with several seeds, and centralized as the yardstick.

    Validated when made: a setting that cannot work is a `ValueError` here, not a crash an hour later.

    >>> experiment = Experiment(graphs=("ring", "complete"), workers=4, seeds=2, epochs=1)
    >>> [run.folder for run in experiment.runs()][:3]
    ['all-reduce-seed0', 'all-reduce-seed1', 'ring-seed0']
    """

    task: str = "digits"
    """One of `gossamer.tasks.TASKS`."""
    workers: int = 16
    """Replicas of the model, each with a share of the data of its own."""
    graphs: tuple[str, ...] = ("complete", "exponential", "torus", "ring", "ada")
    """Graphs and schedules by name, with parameters as in `ring-lattice:k=4`."""
    algorithm: str = "d-psgd"
    """One of `gossamer.algorithms.ALGORITHMS`, with parameters as in `local-sgd:every=8`."""
    centralized: bool = True
    """Also run centralized all-reduce."""
    epochs: int | None = None
    """Passes over the data; the task's own number when not given."""
    seeds: int = 3
    """How often each training is repeated, with seeds 0, 1, 2, …"""
    engine: EngineName = "stacked"
    """`stacked`: all replicas in one process on one device; `processes`: one process each."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for the best there is."""

    def __post_init__(self) -> None:
        task = lookup("task", self.task, TASKS)
        make_algorithm(self.algorithm)
        object.__setattr__(self, "algorithm", Spec.parse("algorithm", self.algorithm).canonical)
        object.__setattr__(self, "graphs", tuple(Spec.parse("graph", graph).canonical for graph in self.graphs))
        for field, least in (("workers", 1), ("seeds", 1), ("epochs", 1)):
            value = getattr(self, field)
            if value is not None and value < least:
                raise ValueError(f"{field}={value}: must be {least} or more")
        if not self.graphs:
            raise ValueError("no graph is given: name at least one, such as 'ring'")
        if self.engine not in ("stacked", "processes"):
            raise ValueError(f"unknown engine {self.engine!r}: there are 'stacked' and 'processes'")
        num_train = task.load().num_train
        if self.workers > num_train:
            raise ValueError(
                f"{self.workers} workers cannot share the {num_train} training samples of {self.task!r}: "
                f"take at most {num_train} workers"
            )
        if self.engine == "processes" and self.resolved_device != "cpu":
            raise ValueError(
                f"the processes engine runs on the CPU, not on {self.resolved_device!r}: take --device cpu, or "
                "--engine stacked for a GPU"
            )
        for run in self.runs():
            run.schedule()

    @property
    def resolved_device(self) -> str:
        """The device that `auto` stands for here."""
        if self.device != "auto":
            try:
                kind = torch.device(self.device).type
            except RuntimeError:
                raise ValueError(f"unknown device {self.device!r}: there are 'cpu', 'cuda' and 'auto'") from None
            if kind == "cuda" and not torch.cuda.is_available():
                raise ValueError(f"device {self.device!r} is not to be had here: take 'cpu'")
            return self.device
        return "cuda" if self.engine == "stacked" and torch.cuda.is_available() else "cpu"

    def runs(self) -> list[Run]:
        """All trainings, the centralized ones first."""
        task = TASKS[self.task]
        batch_size = min(task.batch_size, task.load().num_train // self.workers)
        settings = [(graph, self.algorithm) for graph in dict.fromkeys(self.graphs)]
        if self.centralized or self.algorithm == CENTRALIZED:
            decentralized = [] if self.algorithm == CENTRALIZED else settings
            settings = [("complete", CENTRALIZED), *decentralized]
        return [
            Run(
                task=self.task,
                task_version=task.version,
                graph=graph,
                algorithm=algorithm,
                workers=self.workers,
                epochs=task.epochs if self.epochs is None else self.epochs,
                batch_size=batch_size,
                lr=task.lr * sqrt(self.workers * batch_size / task.lr_batch),
                warmup_epochs=task.warmup_epochs,
                seed=seed,
                engine=self.engine,
                device=self.resolved_device,
            )
            for graph, algorithm in settings
            for seed in range(self.seeds)
        ]

    @property
    def folder(self) -> str:
        """A name that says what it is, and differs whenever any setting or the version of Gossamer does."""
        settings = [__version__, *(asdict(run) for run in self.runs())]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.task}-{self.workers}-{Spec.parse('algorithm', self.algorithm).name}-{digest}"


def make_algorithm(spec: str) -> Algorithm:
    """An algorithm by name, with parameters as in `local-sgd:every=8`."""
    parsed = Spec.parse("algorithm", spec)
    return parsed.call(lookup("algorithm", parsed.name, ALGORITHMS))


def task_of(run: Run) -> Task:
    """The task of a run."""
    return TASKS[run.task]
