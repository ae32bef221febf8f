"""The contract between a method and the engine that runs it.

An algorithm says what *one replica* does around its optimizer's step; the only thing it may ask of the
others is `mix`. Everything else is elementwise over the last axis, so the same code serves one replica
(tensors `[P]`, one process each) and all of them stacked on one device (tensors `[N, P]`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

Unpack = Callable[[Tensor], Tensor]
"""Makes values `[..., P]` of what was sent of them, bytes `[..., B]`."""


class Exchange(Protocol):
    """A mixing under way."""

    def wait(self, out: Tensor | None = None) -> Tensor:
        """The mixed values, in `out` where that is given. What `Mix.start` was given may be changed only after this, or
        be `out` itself."""
        ...


class Mix(Protocol):
    """What a replica may ask of the others at one step of the schedule."""

    def __call__(self, values: Tensor) -> Tensor:
        """`sum_j W_ij values_j` with the weights of this step; `values` stays as it is."""
        ...

    def start(self, values: Tensor) -> Exchange:
        """Begin the same and return at once, so that it overlaps what comes until `Exchange.wait`."""
        ...

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all replicas, whatever the graph: an all-reduce, at an all-reduce's cost."""
        ...

    def packed(self, payload: Tensor, unpack: Unpack) -> Tensor:
        """`sum_j W_ij unpack(payload_j)`: the bytes `[..., B]` travel as they are, to each listener."""
        ...

    @property
    def noise_kept(self) -> float:
        """The share of their variance about the mean that a mixing leaves to numbers that are unrelated."""
        ...

    @property
    def push(self) -> "Mix":
        """The same with the weights of push-sum, whose columns sum to one: what all hold together is kept, whatever
        the graph. The same weights where these keep it already."""
        ...

    @property
    def following(self) -> "Mix":
        """The mix of the step that follows in the schedule: for methods that mix several times in one step."""
        ...


class SGDRule(NamedTuple):
    """SGD's step: d = g + decay · x, v ← memory · v + gain · d, and x moves by v, with Nesterov by d + memory · v."""

    memory: float
    gain: float
    nesterov: bool
    decay: float


class Replica(Protocol):
    """One replica (or all of them, stacked) as an algorithm sees it."""

    step: int
    """Steps of the optimizer that are complete."""
    params: Tensor
    """All trained parameters, `[..., P]`; writing into it changes the model."""
    matrices: list[slice]
    """Where in the last axis the tensors of two dimensions and more lie, one after the other; all, where none has two.
    For norms of their own: a bias, or the gain of a norm, is not what its layer is measured by."""
    state: dict[str, Tensor]
    """What the method keeps from step to step. Engines save and restore it."""
    pending: dict[str, Exchange]
    """Exchanges that outlive the step that started them. Engines wait for them before they save."""

    @property
    def grads(self) -> Tensor:
        """All gradients, `[..., P]`; writing into it changes what the optimizer sees."""
        ...

    @property
    def lr(self) -> float | Tensor:
        """The learning rate of the optimizer; `[P]` where parameter groups have different ones."""
        ...

    @property
    def moments(self) -> Mapping[str, Tensor]:
        """What the optimizer keeps of every parameter, `[..., P]`, by its name there (`momentum_buffer`, `exp_avg`);
        writing into it changes the next step. Empty before the first."""
        ...

    @property
    def sgd(self) -> SGDRule | None:
        """How the optimizer steps, where it is SGD and does so alike for all parameters; it then may have a
        `momentum_buffer` among its moments."""
        ...

    def lend(self) -> Tensor:
        """Memory for values like the parameters, whatever is in it, for a step or some: were it fresh each time, it
        would have to be mapped each time."""
        ...

    def give_back(self, memory: Tensor) -> None:
        """What was lent is needed no more."""
        ...


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """A method: two functions around the step of any elementwise `torch.optim` optimizer.

    Frozen: hyperparameters only. What changes during training lives in `Replica.state`.
    """

    @property
    def mixes_every(self) -> int:
        """Steps from one mixing to the next. A cyclic schedule then moves on once a mixing, not once a step."""
        return 1

    @property
    def steps_under_way(self) -> int:
        """How many steps after the one that starts an exchange it is awaited; 0: in that step itself. From 1 on parts
        of a model can be stepped and sent one after the other, each on its way while the next is stepped."""
        return 0

    @property
    def steps_together(self) -> bool:
        """Whether replicas stay equal because they take every step with the same gradient."""
        return False

    @property
    def takes_gradients(self) -> bool:
        """Whether it looks at gradients, or changes them, before the optimizer has them."""
        return False

    @property
    def is_elementwise(self) -> bool:
        """Whether parts of a model may be treated one by one: not where a norm, or the largest values, of the whole
        count."""
        return True

    @property
    def needs_constant_graph(self) -> bool:
        """Whether replicas keep what their neighbours have sent, so that neighbours must not change."""
        return False

    @property
    def needs_doubly_stochastic(self) -> bool:
        """Whether replicas take plain averages: where these count some models more than others, they agree on something
        that is not the mean. Not where a method makes up for that, as by `mix.push`."""
        return not (self.ignores_graph or self.is_asynchronous)

    @property
    def ignores_graph(self) -> bool:
        """Whether replicas exchange nothing but means over all of them."""
        return False

    @property
    def averages_over_all(self) -> bool:
        """Whether replicas come together by means over all of them, so that the graph need not connect them."""
        return self.ignores_graph

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers do not wait for each other: then an asynchronous engine mixes beside the steps."""
        return False

    @property
    def usual_graph(self) -> str:
        """What a user who names no graph gets."""
        return "alternating-exponential-ring"

    def before_step(self, replica: Replica, mix: Mix) -> None:  # noqa: B027 - empty by default, not abstract
        """Called when the gradients are there and the optimizer has not used them yet."""

    def settle(self, replica: Replica, mix: Mix) -> None:
        """Take in what is pending ahead of its time: somebody wants to change the parameters by hand."""
        self.before_step(replica, mix)

    @abstractmethod
    def after_step(self, replica: Replica, mix: Mix) -> None:
        """Called when the optimizer has changed the parameters."""
