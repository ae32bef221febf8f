"""Ada that listens: everybody averages with everybody while steps tear the replicas apart, ever more seldom later."""

from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from torch import Tensor
from torch.linalg import vector_norm

from ._contract import Algorithm, Mix, Replica

_STEP, _PEAK = "step", "peak"
"""The squared length of a step beside the weights, smoothed, and its largest; while gradients are averaged."""
_PAUSE, _LEFT, _HEARD = "pause", "left", "heard"
"""Steps alone between two averages of models, those still to come, and the averages of a trial that were heard."""
_MEMORY = 0.9
"""Of the last steps, in what is heard of this one: batches differ."""
_SETTLED = 0.5
"""Of the largest: below it the training has begun to settle."""
_TRIAL = 8
"""Averages of models in a row before the first pause: momentum needs some steps to part the replicas by all it can."""


@dataclass(frozen=True, kw_only=True)
class ListeningAda(Algorithm):
    r"""All-reduce at first; then an average of all after h steps alone, h by the variance that these steps leave.

    .. math:: \Xi = \frac{\tfrac1n \sum_i \lVert x_i - \bar x \rVert^2}{\lVert \bar x \rVert^2}, \qquad
              x_i \leftarrow \bar x, \qquad
              h + 1 \leftarrow \min\left((h + 1) \sqrt{\xi / \Xi},\; 2\,(h + 1)\right)

    Like Ada it begins with everybody averaging with everybody and thins out as training settles. Unlike Ada it goes by
    what it hears, not by the clock: steps that are large beside the weights, as at high learning rates, tear replicas
    apart, and it averages after each of them; small ones do not, and it waits. The square root: steps of one
    direction, as momentum makes them, part replicas by the square of their number.

    It begins with gradients, whose average hides behind backward and leaves replicas equal, and listens to the length
    of the steps that each would take alone,

    .. math:: s = \tfrac1n \sum_i \frac{\lVert \gamma g_i \rVert^2}{\lVert x_i \rVert^2}.

    When that, smoothed, has fallen to half of its peak it tries models: while a learning rate warms up, small steps are
    no sign of rest. A trial is eight averages of models in a row. If the variance then allows no pause it averages the
    optimizer's moments too and takes gradients again, until s has fallen to half once more.

    All replicas hear the same, and for nothing: s is one number more in an all-reduce that is due anyway, and so is the
    mean of the squared norms, of which the variance is what is left beside the squared norm of the mean.

    Averages were chosen over sparse graphs for the steps between: one costs as much as two mixings with one neighbour,
    and leaves no variance at all.

    Reference: ours. Averages by need go back to Kamp et al., "Efficient decentralized deep learning by dynamic model
    averaging", ECML PKDD 2018, arXiv 1807.03210 (a bound on the distance itself, watched at every step); pauses that
    change to Wang & Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in
    local-update SGD", MLSys 2019, arXiv 1810.08313 (by the loss, and ever shorter); all-reduce first and pauses later
    to Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020, arXiv 1808.07217 (by the clock).

    >>> ListeningAda(most=15)
    ListeningAda(apart=0.003, most=15)
    """

    apart: float = 0.003
    """ξ, how far apart replicas may be when they average: mean squared distance over the mean's squared norm."""
    most: int = 31
    """Steps alone at the most: so often somebody listens."""

    def __post_init__(self) -> None:
        if not self.apart > 0:
            raise ValueError(f"apart={self.apart}: replicas must be allowed to differ, give more than 0")
        if self.most < 1:
            raise ValueError(f"most={self.most}: give the steps alone between two averages, 1 or more")

    @property
    def is_elementwise(self) -> bool:
        return False  # norms are those of the whole model

    @property
    def takes_gradients(self) -> bool:
        return True

    @property
    def ignores_graph(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        state = replica.state
        if not state:
            state |= _with_gradients()
        if _PEAK not in state:
            return
        grads = replica.grads
        heard = mix.mean(_squared(grads * replica.lr) / _squared(replica.params))
        grads.copy_(mix.mean(grads))
        step = _MEMORY * float(state[_STEP]) + (1 - _MEMORY) * heard.flatten()[0].item()
        if isfinite(step):
            state |= {_STEP: _number(step), _PEAK: _number(max(step, float(state[_PEAK])))}

    def after_step(self, replica: Replica, mix: Mix) -> None:
        state, params = replica.state, replica.params
        if _PEAK in state:
            if 0 < state[_STEP] <= _SETTLED * state[_PEAK]:
                replica.state = _with_models()
            return
        if state[_LEFT]:
            state[_LEFT] = state[_LEFT] - 1
            return
        of_each = mix.mean(_squared(params))
        params.copy_(mix.mean(params))
        variance = _relative(*torch.stack([of_each, _squared(params)]).view(2, -1)[:, 0].tolist())
        pause = self._next(int(state[_PAUSE]), variance)
        if not state[_PAUSE]:
            state[_HEARD] = state[_HEARD] + 1
            if state[_HEARD] < _TRIAL:
                return
            if not pause:
                for moment in replica.moments.values():
                    moment.copy_(mix.mean(moment))
                replica.state = _with_gradients()
                return
        replica.state = _with_models(pause)

    def _next(self, pause: int, variance: float) -> int:
        """h after an average that found a variance Ξ."""
        wanted = (pause + 1) * sqrt(self.apart / variance) if variance > 0 else inf
        return max(int(min(wanted, 2 * (pause + 1), self.most + 1)) - 1, 0)


def _with_gradients() -> dict[str, Tensor]:
    return {_STEP: _number(0.0), _PEAK: _number(0.0)}


def _with_models(pause: int = 0) -> dict[str, Tensor]:
    return {_PAUSE: torch.tensor(pause), _LEFT: torch.tensor(pause), _HEARD: torch.tensor(0)}


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _squared(values: Tensor) -> Tensor:
    norm: Tensor = vector_norm(values, dim=-1, keepdim=True)
    return norm.square()


def _relative(of_each: float, of_mean: float) -> float:
    """Ξ from the mean of the squared norms and the squared norm of the mean; infinite where it is no number."""
    variance = of_each - of_mean
    if variance <= 0:  # none, but for rounding
        return 0.0
    return variance / of_mean if of_mean and variance < inf else inf
