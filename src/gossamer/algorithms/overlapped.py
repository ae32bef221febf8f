"""D-PSGD with the exchange hidden behind the forward and backward passes that follow."""

from dataclasses import dataclass
from math import pi, sin

import torch
from torch import Tensor

from ._contract import Algorithm, Exchange, Mix, Replica

_WHOLE = "exchange"
"""The name of an exchange whose result takes the place of the parameters."""


@dataclass(frozen=True, kw_only=True)
class OverlappedDPSGD(Algorithm):
    r"""Combine then adapt, with the exchange started as soon as the parameters stand still.

    .. math:: x_i^{t+1} = \sum_j W_{ij} x_j^t - \gamma\, d_i(x_i^t)

    After step t the parameters set out; the next gradient is computed at the unmixed ones meanwhile; just
    before step t+1 the mixed ones arrive and the optimizer's step lands on them. With Adam this is the
    "decentralized Adam" of the reference: moments stay local, decoupled weight decay acts on the mixed parameters.

    That waits for the last step of the neighbours. With b = `behind` above 1 a worker goes on while a neighbour is
    late: what has set out after a step is awaited before the b-th that follows, and moves the parameters a share θ
    (`theta`) of the way:

    .. math:: x_i^{t+1} = x_i^t + \theta \Big(\sum_j W_{ij} x_j^s - x_i^s\Big) - \gamma\, d_i(x_i^t), \; s = t + 1 - b

    The mean is kept; replicas come together more slowly. Where W has the eigenvalue λ, their differences go with the
    roots of z^b − z^(b−1) + θ(1 − λ) = 0, which lie inside the unit circle just if 0 < θ(1 − λ) < 2 sin(π/(4b − 2)).
    Since λ ≥ −1, θ = sin(π/(4b − 2)) is the largest with which no undirected graph that stays can be unstable: the
    default, 1 for one step behind, 1/2 for two, 0.31 for three. From twice that on even averages of all (λ = 0) do not
    settle, and θ is refused.

    To be more than one step behind takes memory: a copy of the model for each, since what has set out must stay as it
    was, and one for what arrives; and where workers of a host read each other's models in shared memory, room there for
    two for each.

    Reference: Wang et al., "From promise to practice: realizing high-performance decentralized training",
    ICLR 2025, arXiv 2410.11998. For the roots: Levin and May, "A note on difference-delay equations", Theoretical
    Population Biology 9, 1976.

    >>> [round(OverlappedDPSGD(behind=behind).share, 3) for behind in (1, 2, 3)]
    [1.0, 0.5, 0.309]
    """

    behind: int = 1
    """Steps after which an exchange is awaited: more of them, and a late neighbour delays a worker less."""
    theta: float | None = None
    """θ; by default the largest that is stable on every graph that stays."""

    def __post_init__(self) -> None:
        if self.behind < 1:
            raise ValueError(
                f"an exchange cannot be awaited {self.behind} steps behind: give 1 or more, or take d-psgd, which "
                "awaits it in the same step"
            )
        limit = 2 * _stable_share(self.behind)
        if self.theta is not None and not 0 < self.theta < limit:
            raise ValueError(
                f"theta={self.theta:g}: replicas that are {self.behind} steps behind come together for more than 0 and "
                f"less than {limit:.3g}; take {limit / 2:.3g}, the default"
            )

    @property
    def share(self) -> float:
        """θ, as it was given or by default."""
        return _stable_share(self.behind) if self.theta is None else self.theta

    @property
    def steps_under_way(self) -> int:
        return self.behind

    @property
    def _takes_all(self) -> bool:
        """Whether what arrives simply takes the place of the parameters, which have stood still meanwhile."""
        return self.behind == 1 and self.share == 1

    def before_step(self, replica: Replica, mix: Mix) -> None:
        # Fewer are pending in the first steps and after `settle`; more, or a whole model, where a training that was
        # another number of steps behind was saved and goes on here.
        while len(replica.pending) >= self.behind or _WHOLE in replica.pending:
            self._take_in_oldest(replica)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if self._takes_all:
            replica.pending[_WHOLE] = mix.start(replica.params)
        else:
            sent = replica.lend().copy_(replica.params)
            replica.pending[f"pull {replica.step}"] = _Pull(mix.start(sent), sent, replica)

    def settle(self, replica: Replica, mix: Mix) -> None:
        while replica.pending:
            self._take_in_oldest(replica)

    def _take_in_oldest(self, replica: Replica) -> None:
        name = next(iter(replica.pending))
        exchange = replica.pending.pop(name)
        if name == _WHOLE:
            exchange.wait(replica.params)
        else:
            pull = exchange.wait()
            replica.params.add_(pull, alpha=self.share)
            if isinstance(exchange, _Pull):  # else it is what a checkpoint has brought
                replica.give_back(pull)


@dataclass(frozen=True)
class _Pull:
    """What an exchange pulls a replica by, Wx − x, where x is what has set out.

    An exchange itself, so that engines wait for it and save its result as they do for any other.
    """

    exchange: Exchange
    sent: Tensor
    replica: Replica

    def wait(self, out: Tensor | None = None) -> Tensor:
        mixed = self.exchange.wait(self.replica.lend())
        pull = torch.sub(mixed, self.sent, out=self.sent if out is None else out)  # nobody reads it any more
        self.replica.give_back(mixed)
        return pull


def _stable_share(behind: int) -> float:
    return sin(pi / (4 * behind - 2))
