"""Ada that listens: everybody averages with everybody while steps tear the replicas apart, ever more seldom later."""

from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from torch.linalg import vector_norm

from ._contract import Algorithm, Mix, Replica

_PAUSE, _LEFT, _PEAK = "pause", "left", "peak"
_SETTLED = 0.5
"""Of the largest variance so far: below it the training has begun to settle."""


@dataclass(frozen=True, kw_only=True)
class ListeningAda(Algorithm):
    r"""An average of all after h steps alone, where h follows the variance that these steps leave across the replicas.

    .. math:: \Xi = \frac{\tfrac1n \sum_i \lVert x_i - \bar x \rVert^2}{\lVert \bar x \rVert^2}, \qquad
              x_i \leftarrow \bar x, \qquad
              h + 1 \leftarrow \min\left((h + 1) \sqrt{\xi / \Xi},\; 2\,(h + 1)\right)

    Like Ada it begins with everybody averaging with everybody (h = 0) and thins out as training settles. Unlike Ada it
    goes by what it hears, not by the clock: steps that are large beside the weights, as at high learning rates, tear
    replicas apart, and it averages after each of them; small ones do not, and it waits. It waits for the first time
    when the variance has passed its peak and fallen to half of it: while a learning rate warms up, small steps are no
    sign of rest. Where it has waited too long it comes back at once. The square root: steps of one direction, as
    momentum makes them, part replicas by the square of their number.

    All replicas hear the same, and for nothing: the mean of the squared norms is one number more in an all-reduce that
    is due anyway, and what is left of it beside the squared norm of the mean is the variance.

    Averages were chosen over sparse graphs for the steps between: one costs as much as two mixings with one neighbour,
    and leaves no variance at all.

    Reference: ours. Averages by need go back to Kamp et al., "Efficient decentralized deep learning by dynamic model
    averaging", ECML PKDD 2018, arXiv 1807.03210 (a bound on the distance itself, watched at every step); pauses that
    change to Wang & Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in
    local-update SGD", MLSys 2019, arXiv 1810.08313 (by the loss, and ever shorter).

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
    def ignores_graph(self) -> bool:
        return True

    def after_step(self, replica: Replica, mix: Mix) -> None:
        state, params = replica.state, replica.params
        if not state:
            state |= {_PAUSE: torch.tensor(0), _LEFT: torch.tensor(0), _PEAK: torch.tensor(0.0, dtype=torch.float64)}
        if state[_LEFT]:
            state[_LEFT] = state[_LEFT] - 1
            return
        of_each = mix.mean(vector_norm(params, dim=-1, keepdim=True).square())
        params.copy_(mix.mean(params))
        of_mean = vector_norm(params, dim=-1, keepdim=True).square()
        variance = _relative(*torch.stack([of_each, of_mean]).view(2, -1)[:, 0].tolist())
        pause = self._next(int(state[_PAUSE]), variance, float(state[_PEAK]))
        state[_PEAK] = state[_PEAK].clamp(min=variance if isfinite(variance) else 0.0)
        state[_PAUSE] = state[_LEFT] = torch.tensor(pause)

    def _next(self, pause: int, variance: float, peak: float) -> int:
        """h after an average that found a variance Ξ, where Ξ was `peak` at the most before."""
        if pause == 0 and variance >= _SETTLED * peak:
            return 0
        wanted = (pause + 1) * sqrt(self.apart / variance) if variance > 0 else inf
        return max(int(min(wanted, 2 * (pause + 1), self.most + 1)) - 1, 0)


def _relative(of_each: float, of_mean: float) -> float:
    """Ξ from the mean of the squared norms and the squared norm of the mean; infinite where it is no number."""
    variance = of_each - of_mean
    if variance <= 0:  # none, but for rounding
        return 0.0
    return variance / of_mean if of_mean and variance < inf else inf
