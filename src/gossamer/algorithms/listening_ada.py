"""Ada that listens: everybody averages with everybody while steps tear the replicas apart, ever more seldom later."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor
from torch.linalg import vector_norm

from . import _steps_alone as steps_alone
from ._contract import Algorithm, Mix, Replica, SGDRule

_WINDOW, _LEFT = "window", "left"
"""Steps from one average over all to the next, and those still to come."""
_RATE = "rate"
"""The learning rate of the last step: while it rises, a training has not settled, however little its steps do."""
_APART = "apart"
"""What was heard before the last step of a window, whose gradients were averaged: its variance."""
_WAITED = "waited"
"""Averages of gradients since models were tried, where gradients do not tell how far steps will part replicas."""
_HARDLY = 1e-30
"""A variance that is small, but not none."""


@dataclass(frozen=True, kw_only=True)
class ListeningAda(Algorithm):
    r"""All-reduce at first; then an average of all after every h-th step, h by the variance that h steps leave.

    .. math:: \Xi_h = \frac1M \sum_m \frac{\tfrac1n \sum_i \lVert x_i^m - \bar x^m \rVert^2}
                      {\lVert \bar x^m \rVert^2}, \qquad
              x_i \leftarrow \bar x, \qquad
              h \leftarrow \max \{ h' \le 2h : \; \Xi_h \, q_{h'} / q_h \le \xi \}

    Like Ada it begins with everybody averaging with everybody and thins out as training settles: between two averages
    over all gradients are averaged with the neighbours of the graph, as inside a node; with none the replicas step
    alone. Unlike Ada it goes by what it hears, not by the clock: steps that are large beside the weights, as at high
    learning rates, tear replicas apart, and it averages after each of them; small ones do not, and it waits. While the
    learning rate rises it does not wait: small steps are then no sign of rest.

    With SGD an average over all is one of gradients, and hides behind backward, whatever h: with the last of h steps a
    replica gives the gradient that would have taken it there in one (`_steps_alone.py`). The momentum of the mean is
    read off how far it has moved. So replicas begin every window alike in all that they step by, and noise parts them
    only as :math:`q_h = \sum_{k \le h} (1 + \mu + \dots + \mu^{k-1})^2`. Where :math:`h = 1` it is an all-reduce.

    With another optimizer it averages gradients where :math:`h = 1`, models after the h-th step elsewhere, and takes
    :math:`q_h = h^2`, since moments stay apart. Gradients then do not tell how far their steps part replicas: after
    so many as a window may have steps it tries h = 2, and if that is too far apart it averages the moments and goes
    back.

    All replicas hear the same, and for nearly nothing: Ξ is M numbers more in an all-reduce that is due anyway.

    Reference: ours. Averages by need go back to Kamp et al., "Efficient decentralized deep learning by dynamic model
    averaging", ECML PKDD 2018, arXiv 1807.03210 (a bound on the distance itself, watched at every step); pauses that
    change to Wang & Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in
    local-update SGD", MLSys 2019, arXiv 1810.08313 (by the loss, and ever shorter); all-reduce first and pauses, or
    averages inside nodes, later to Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020, arXiv
    1808.07217 (by the clock).

    >>> ListeningAda(most=16)
    ListeningAda(apart=0.002, most=16)
    """

    apart: float = 0.002
    """ξ, how far apart replicas may be when they average: of each matrix the mean squared distance over the mean's
    squared norm, on the average over matrices."""
    most: int = 32
    """Steps from one average over all to the next at the most: so often somebody listens."""

    def __post_init__(self) -> None:
        if not self.apart > 0:
            raise ValueError(f"apart={self.apart}: replicas must be allowed to differ, give more than 0")
        if self.most < 2:
            raise ValueError(f"most={self.most}: give the steps from one average to the next, 2 or more")

    @property
    def is_elementwise(self) -> bool:
        return False  # norms are those of whole matrices, and the average is over all of them

    @property
    def takes_gradients(self) -> bool:
        return True

    @property
    def averages_over_all(self) -> bool:
        return True

    @property
    def usual_graph(self) -> str:
        return "nodes"

    def before_step(self, replica: Replica, mix: Mix) -> None:
        state = replica.state
        if not state:
            state |= {_RATE: _number(0.0), _WAITED: _number(0.0)} | _window(replica, 1)
        if state[_LEFT] > 1:
            replica.grads.copy_(mix(replica.grads))
            return
        if state[_WINDOW] > 1:
            if not steps_alone.can_become_a_gradient(replica):
                return
            steps_alone.become_a_gradient(replica)
        grads = replica.grads
        if replica.sgd is None:
            grads.copy_(mix.mean(grads))
            return
        weights = _squared(replica.params, replica)
        apart = steps_alone.change(replica)
        grads.copy_(mix.mean(grads))
        apart -= steps_alone.change(replica)
        state[_APART] = _number(_relative(mix.mean(_squared(apart, replica)), weights))

    def after_step(self, replica: Replica, mix: Mix) -> None:
        state = replica.state
        steps_alone.count(replica)
        state[_LEFT] = state[_LEFT] - 1
        if state[_LEFT]:
            return
        is_rising, state[_RATE] = self._rises(replica), _rate(replica)
        window = int(state[_WINDOW])
        if _APART in state:
            variance = float(state.pop(_APART))
        elif window > 1:
            variance = _average_models(replica, mix)
        else:
            variance = self._guessed(state)
        steps_alone.follow(replica)
        following = 1 if is_rising else self._next(window, variance, replica.sgd)
        if replica.sgd is None and following == 1 < window:
            for moment in replica.moments.values():
                moment.copy_(mix.mean(moment))
        replica.state = {_RATE: state[_RATE], _WAITED: state[_WAITED]} | _window(replica, following)

    def _rises(self, replica: Replica) -> bool:
        return bool(_rate(replica) > replica.state[_RATE])

    def _guessed(self, state: dict[str, Tensor]) -> float:
        """Where nobody knows how far apart a step would have left replicas: little, now and then, so that they try."""
        state[_WAITED] = (state[_WAITED] + 1) % self.most
        return inf if state[_WAITED] else _HARDLY

    def _next(self, window: int, variance: float, rule: SGDRule | None) -> int:
        """h after a window that left a variance Ξ."""
        if not variance:  # as with one worker: there is nobody to wait for
            return 1
        of_one = variance / steps_alone.spread(rule, window)
        most = min(2 * window, self.most)
        return max((h for h in range(2, most + 1) if of_one * steps_alone.spread(rule, h) <= self.apart), default=1)


def _window(replica: Replica, steps: int) -> dict[str, Tensor]:
    kept = steps_alone.begin(replica) if steps > 1 else {}
    return {_WINDOW: torch.tensor(steps), _LEFT: torch.tensor(steps), **kept}


def _average_models(replica: Replica, mix: Mix) -> float:
    """The variance that they had."""
    mean = mix.mean(replica.params)
    variances = mix.mean(_squared(replica.params - mean, replica))
    replica.params.copy_(mean)
    return _relative(variances, _squared(mean, replica))


def _rate(replica: Replica) -> Tensor:
    lr = replica.lr
    return lr.max().double().cpu() if isinstance(lr, Tensor) else _number(lr)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _squared(values: Tensor, replica: Replica) -> Tensor:
    """Squared norms of the matrices, `[..., M]`."""
    pieces = (values.narrow(-1, span.start, span.stop - span.start) for span in replica.matrices)
    return torch.stack([vector_norm(piece, dim=-1) for piece in pieces], -1).square()


def _relative(variances: Tensor, weights: Tensor) -> float:
    """Ξ from the variances of the matrices and their squared norms; infinite where it is no number. All replicas have
    the same, so that of the first which is held here will do."""
    mine, beside = (values.view(-1, values.shape[-1])[0].double() for values in (variances, weights))
    apart = float(torch.where(mine == 0, 0.0, mine / beside).mean())
    return apart if apart < inf else inf
