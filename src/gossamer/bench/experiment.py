"""What to run: an `Experiment` is one task under several graphs and seeds, each training a `Run`."""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import isfinite
from typing import TypeVar

import torch

from gossamer import __version__, algorithms
from gossamer._names import Spec, lookup
from gossamer.clock import AD_PSGD, PARAMETER_SERVER, Computation, Link, asynchronous, slow_workers
from gossamer.engines import check_graph
from gossamer.tasks import TASKS, Dataset, Decay, LrRule

from .described import profile_text
from .learning_rate import DECAYS, LR_RULES, scaled
from .one_run import CENTRALIZED, CLOCK, EngineName, Run, load_data

T = TypeVar("T")
GRAPHS = ("complete", "exponential", "torus", "ring", "ada")
"""What is compared when no graph is named."""
PAIRED_GRAPHS = ("bipartite-exponential", "ring")
"""The same for AD-PSGD, whose workers must fall into two halves."""
_APART = "nodes"
"""A graph for methods that average over everybody anyway: these are not compared on others unless somebody asks."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One task trained under several graphs, each with several seeds, and centralized as the yardstick.

    Several sizes and learning-rate rules may be given: every graph is trained with each of them.
    Validated when made: a setting that cannot work is a `ValueError` here, not a crash an hour later.

    >>> experiment = Experiment(graphs=("ring", "complete"), workers=4, seeds=2, epochs=1)
    >>> [run.folder for run in experiment.runs()][:3]
    ['all-reduce-n4-sqrt-seed0', 'all-reduce-n4-sqrt-seed1', 'ring-n4-sqrt-seed0']
    """

    task: str = "digits"
    """One of `gossamer.tasks.TASKS`."""
    data: str | None = None
    """The folder of the data, for tasks that do not bring their own."""
    workers: int | tuple[int, ...] = 16
    """Replicas of the model, each with a share of the data of its own; several numbers to compare sizes."""
    graphs: tuple[str, ...] = GRAPHS
    """Graphs and schedules by name, with parameters as in `ring-lattice:k=4`. AD-PSGD has a default of its own."""
    algorithm: str = "d-psgd"
    """One of `gossamer.algorithms.ALGORITHMS` or `ASYNCHRONOUS`, with parameters as in `local-sgd:every=8`."""
    centralized: bool = True
    """Also run centralized all-reduce."""
    epochs: int | None = None
    """Passes over the data; the task's own number when not given."""
    batch_size: int | None = None
    """Samples of one worker and step; the task's own number when not given."""
    lr: float | None = None
    """Peak learning rate for a global batch of the task's `lr_batch`; the task's own when not given."""
    lr_rules: tuple[LrRule, ...] = ()
    """How the rate follows the global batch: `linear`, `sqrt`, `none`; the task's own rule when not given."""
    decay: Decay | None = None
    """`cosine` or `step`; the task's own when not given."""
    warmup_epochs: float | None = None
    """Epochs in which the learning rate rises to its peak; the task's own number when not given."""
    alpha: float | None = None
    """Heterogeneous shards: concentration of the Dirichlet distribution of their classes; None for equal shards."""
    probe_every: int | None = None
    """Steps from one look inside the replicas to the next; None for three an epoch, at most 150 in all."""
    seeds: int = 3
    """How often each training is repeated, with seeds 0, 1, 2, …"""
    slow: str = ""
    """Workers whose gradients take longer, `RANK=FACTOR`, several with commas."""
    jitter: str = "constant"
    """How computation times vary, one of `gossamer.clock.JITTERS`, as in `lognormal:spread=0.3`."""
    compute_s: float | None = None
    """Seconds that a gradient takes. Not given: 0.01 in virtual time; on real processes what it takes."""
    latency_s: float = Link.latency_s
    """Virtual time: seconds until a message arrives, however small."""
    gbit_per_s: float = Link.bytes_per_s * 8 / 1e9
    """Virtual time: bandwidth of a worker's link."""
    profile: str = ""
    """Virtual time: a file that `gossamer calibrate` has written, in place of all this; empty for none."""
    engine: EngineName = "stacked"
    """`stacked`: all replicas in one process on one device; `processes`: one process each."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for the best there is."""

    def __post_init__(self) -> None:
        lookup("task", self.task, TASKS)
        method = algorithms.build(self.algorithm)
        object.__setattr__(self, "algorithm", Spec.parse("algorithm", self.algorithm).canonical)
        if self.graphs is GRAPHS:
            object.__setattr__(self, "graphs", PAIRED_GRAPHS if self.algorithm == AD_PSGD else _graphs_for(method))
        object.__setattr__(self, "graphs", tuple(Spec.parse("graph", graph).canonical for graph in self.graphs))
        self._check_numbers()
        if not self.graphs:
            raise ValueError("no graph is given: name at least one, such as 'ring'")
        if self.engine not in ("stacked", "processes"):
            raise ValueError(f"unknown engine {self.engine!r}: there are 'stacked' and 'processes'")
        if self.engine == "processes" and self.algorithm in algorithms.ASYNCHRONOUS and self.probe_every is not None:
            raise ValueError(
                f"probe_every={self.probe_every}: processes of {self.algorithm} have no step in common, and are looked "
                "into when they meet, at the ends of epochs; leave --probe-every out, or take --engine stacked"
            )
        if self.engine == "processes" and len(self.sizes) > 1:
            raise ValueError(f"the processes engine takes one number of workers, not {len(self.sizes)}: run each alone")
        for rule in self.lr_rules:
            lookup("learning-rate rule", rule, LR_RULES)
        if self.decay is not None:
            lookup("decay", self.decay, DECAYS)
        if self.engine == "processes" and self.resolved_device != "cpu":
            raise ValueError(
                f"the processes engine runs on the CPU, not on {self.resolved_device!r}: take --device cpu, or "
                "--engine stacked for a GPU"
            )
        self._check_shards()
        for run in {(run.graph, run.workers, run.seed): run for run in self.runs()}.values():
            schedule = run.schedule()
            check_graph(algorithms.build(run.algorithm), schedule)
            if run.is_asynchronous:
                asynchronous(run.algorithm, run.cluster(), schedule, 0)

    def _check_numbers(self) -> None:
        if not self.sizes:
            raise ValueError("no number of workers is given: name at least one, such as 16")
        if min(self.sizes) < 1:
            raise ValueError(f"workers={min(self.sizes)}: must be 1 or more")
        for field in ("seeds", "epochs", "batch_size", "probe_every"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}={value}: must be 1 or more")
        for field in ("lr", "alpha"):
            value = getattr(self, field)
            if value is not None and not (value > 0 and isfinite(value)):
                raise ValueError(f"{field}={value}: must be a number above 0")
        slow = slow_workers(self.slow, min(self.sizes))
        object.__setattr__(self, "slow", ",".join(f"{rank}={factor:g}" for rank, factor in sorted(slow.items())))
        Computation(mean_s=_given(self.compute_s, Computation.mean_s), jitter=self.jitter)
        object.__setattr__(self, "jitter", Spec.parse("jitter", self.jitter).canonical)
        if not (self.gbit_per_s > 0 and isfinite(self.gbit_per_s)):
            raise ValueError(f"gbit_per_s={self.gbit_per_s}: must be a number above 0")
        Link(latency_s=self.latency_s)
        usual = {field.name: field.default for field in fields(self) if field.name in CLOCK and field.name != "profile"}
        said = [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        if self.profile and said:
            raise ValueError(f"{', '.join(said)} and a profile, which says that itself: give the one or the other")
        if self.profile and self.engine == "processes":
            raise ValueError(
                "a profile is for virtual time, and processes run at a pace of their own: take --engine stacked"
            )
        if self.warmup_epochs is not None and not (self.warmup_epochs >= 0 and isfinite(self.warmup_epochs)):
            raise ValueError(f"warmup_epochs={self.warmup_epochs}: must be a number, 0 or more")

    def _check_shards(self) -> None:
        """Whether the data are there, and can be dealt out as asked."""
        dataset, most = self.dataset(), max(self.sizes)
        if most > dataset.num_train:
            raise ValueError(
                f"{most} workers cannot share the {dataset.num_train} training samples of {self.task!r}: "
                f"take at most {dataset.num_train} workers"
            )
        if self.batch_size is not None and self.batch_size > dataset.num_train // most:
            raise ValueError(
                f"batch_size={self.batch_size}: each of {most} workers has only {dataset.num_train // most} training "
                f"samples of {self.task!r}; take smaller batches or fewer workers"
            )
        if self.alpha is not None and dataset.labels is None:
            raise ValueError(
                f"alpha={self.alpha}: the samples of {self.task!r} have no classes to draw shards by; leave --alpha out"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of workers."""
        return (self.workers,) if isinstance(self.workers, int) else tuple(dict.fromkeys(self.workers))

    def dataset(self) -> Dataset:
        """The data of the task."""
        return load_data(TASKS[self.task], self.data)

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
        """All trainings, by size and rule; of each the centralized ones first."""
        graphs = ("star",) if self.algorithm == PARAMETER_SERVER else self.graphs
        if algorithms.build(self.algorithm).ignores_graph:
            graphs = ("complete",)
        settings = [(graph, self.algorithm) for graph in dict.fromkeys(graphs)]
        if self.centralized or self.algorithm == CENTRALIZED:
            decentralized = [] if self.algorithm == CENTRALIZED else settings
            settings = [("complete", CENTRALIZED), *decentralized]
        dataset, device = self.dataset(), self.resolved_device
        profile = profile_text(self.profile) if self.profile else ""
        return [
            replace(
                self._run(graph, algorithm, workers=workers, rule=rule, seed=seed, dataset=dataset, device=device),
                profile=profile,
            )
            for workers in self.sizes
            for rule in dict.fromkeys(self.lr_rules or (TASKS[self.task].lr_rule,))
            for graph, algorithm in settings
            for seed in range(self.seeds)
        ]

    def _run(
        self, graph: str, algorithm: str, *, workers: int, rule: LrRule, seed: int, dataset: Dataset, device: str
    ) -> Run:
        task, num_train = TASKS[self.task], dataset.num_train
        batch_size = min(_given(self.batch_size, task.batch_size), num_train // workers)
        return Run(
            task=self.task,
            task_version=task.version,
            graph=graph,
            algorithm=algorithm,
            workers=workers,
            epochs=_given(self.epochs, task.epochs),
            steps_per_epoch=num_train // workers // batch_size,
            batch_size=batch_size,
            lr=scaled(_given(self.lr, task.lr), rule, ratio=workers * batch_size / task.lr_batch),
            lr_rule=rule,
            decay=_given(self.decay, task.decay),
            warmup_epochs=_given(self.warmup_epochs, task.warmup_epochs),
            alpha=self.alpha,
            probe_every=self.probe_every,
            seed=seed,
            engine=self.engine,
            device=device,
            compiled=task.compiles and self.engine == "stacked",
            data=self.data,
            data_digest=_digest(dataset),
            slow=self.slow,
            jitter=self.jitter,
            compute_s=_given(self.compute_s, Computation.mean_s),
            paced=self.engine == "processes" and self.compute_s is not None,
            latency_s=self.latency_s,
            gbit_per_s=self.gbit_per_s,
        )

    @property
    def folder(self) -> str:
        """A name that says what it is, and differs whenever any setting or the version of Gossamer does."""
        settings = [__version__, *(run.telling() for run in self.runs())]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        sizes = "-".join(str(size) for size in self.sizes)
        return f"{self.task}-{sizes}-{Spec.parse('algorithm', self.algorithm).name}-{digest}"


def _graphs_for(method: algorithms.Algorithm) -> tuple[str, ...]:
    """What is compared when no graph is named: the graphs that a method can run on, first one that is made for it."""
    own = method.usual_graph
    if own == _APART:
        return (own,)
    made_for_it = () if own in (*GRAPHS, algorithms.DPSGD().usual_graph) else (own,)
    return (*made_for_it, *(graph for graph in GRAPHS if not (method.needs_constant_graph and graph == "ada")))


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


@lru_cache(maxsize=8)
def _digest(dataset: Dataset) -> str:
    return dataset.digest()
