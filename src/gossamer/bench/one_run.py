"""A `Run`: one training, all settings resolved."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from gossamer import algorithms, topologies
from gossamer.clock import ALL_REDUCE, PARAMETER_SERVER, Cluster, Computation, Link
from gossamer.tasks import TASKS, Dataset, Decay, LrRule, Task

from .described import cluster_of

EngineName = Literal["stacked", "processes"]
CENTRALIZED = ALL_REDUCE
"""The algorithm, and the label, of the centralized baseline."""
CLOCK = ("slow", "jitter", "compute_s", "paced", "latency_s", "gbit_per_s", "profile")
"""The settings of time, virtual and real; the last is in place of the others."""
_EVALUATIONS = 30
"""About so many rows in the curves of a run, however many epochs it has."""
_PROBES = 150
"""At most so many looks inside the replicas in one run, unless asked otherwise."""
_PROBES_PER_EPOCH = 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, all settings resolved. On one machine with the same versions, equal settings give equal numbers."""

    task: str
    task_version: int
    graph: str
    algorithm: str
    workers: int
    epochs: int
    steps_per_epoch: int
    batch_size: int
    lr: float
    """The peak, after the rule."""
    lr_rule: LrRule
    decay: Decay
    warmup_epochs: float
    alpha: float | None
    """Concentration of the Dirichlet distribution that the classes of each shard follow; None for equal shards."""
    probe_every: int | None
    """Steps from one look inside the replicas to the next; None for three an epoch, at most 150 in all."""
    seed: int
    engine: EngineName
    device: str
    compiled: bool
    """Whether the stacked engine compiles the model."""
    data: str | None
    """The folder of the data. Where it lies is no setting: it does not change the name of the results."""
    data_digest: str = ""
    """What is in it: other data of the same size are another setting. Empty where a run of before did not keep it."""
    slow: str = ""
    """Of the clock, as all that follows: workers whose gradients take longer, as in `3=10,5=2`."""
    jitter: str = "constant"
    """How computation times vary."""
    compute_s: float = Computation.mean_s
    """What a gradient takes."""
    paced: bool = False
    """Whether real processes sleep until a gradient has taken that long; else it takes what it takes."""
    latency_s: float = Link.latency_s
    gbit_per_s: float = Link.bytes_per_s * 8 / 1e9
    profile: str = ""
    """The text of a profile, which then says all of this and how large a model is; empty for none."""

    @property
    def label(self) -> str:
        """What tables and plots call it: its graph, or its method where no graph plays a part."""
        is_its_own = self.algorithm == PARAMETER_SERVER or algorithms.build(self.algorithm).ignores_graph
        return self.algorithm if is_its_own else self.graph

    @property
    def is_asynchronous(self) -> bool:
        return algorithms.build(self.algorithm).is_asynchronous

    @property
    def num_processes(self) -> int:
        """What the processes engine needs: one a worker, and one that serves where the method has a server."""
        return self.workers + (self.algorithm == PARAMETER_SERVER)

    def cluster(self) -> Cluster:
        """The machines of its clock."""
        if self.profile:
            return cluster_of(self.profile, self.workers, self.seed)
        return Cluster(
            workers=self.workers,
            computation=Computation(mean_s=self.compute_s, jitter=self.jitter, slow=self.slow),
            link=Link(latency_s=self.latency_s, bytes_per_s=self.gbit_per_s * 1e9 / 8),
            seed=self.seed,
        )

    @property
    def folder(self) -> str:
        """The name of its folder inside the experiment's."""
        label = self.label.replace(":", "-").replace("=", "").replace(",", "-")
        return f"{label}-n{self.workers}-{self.lr_rule}-seed{self.seed}"

    @property
    def num_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def is_probed(self, step: int) -> bool:
        """Whether to look inside after this step: at even distances, and at the last step of the run."""
        if self.probe_every is not None:
            return (step + 1) % self.probe_every == 0 or step + 1 == self.num_steps
        probes = min(_PROBES_PER_EPOCH * self.epochs, _PROBES, self.num_steps)
        return probes * (step + 1) // self.num_steps > probes * step // self.num_steps

    def is_evaluated(self, epoch: int) -> bool:
        """Whether to test the models after this epoch, counted from 0: at even distances, and after the last."""
        return (epoch + 1) % max(self.epochs // _EVALUATIONS, 1) == 0 or epoch + 1 == self.epochs

    def schedule(self) -> topologies.Schedule:
        """The graph as a function of the step."""
        return topologies.build(
            self.graph,
            self.workers,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.epochs,
            local_size=self.cluster().local_size if self.profile else None,
            seed=self.seed,
        )

    def telling(self) -> dict[str, Any]:
        """The settings that tell it from other runs; those of the clock only where they are not the usual ones."""
        settings = asdict(self) | {"data": None}
        usual = {field.name: field.default for field in fields(self) if field.name in CLOCK}
        return {name: value for name, value in settings.items() if name not in usual or value != usual[name]}


def load_data(task: Task, data: str | None) -> Dataset:
    """The data of a task in a folder; kept, so that asking again costs nothing."""
    return task.load(None if data is None else Path(data))


def task_of(run: Run) -> Task:
    """The task of a run."""
    return TASKS[run.task]
