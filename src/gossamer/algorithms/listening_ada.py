"""Ada that listens: sparse graphs where drifting apart does no harm, an average of all where it does."""

from dataclasses import dataclass
from math import inf, log

import torch

from ._contract import Algorithm, Mix, Replica

_PAUSE, _LEFT, _REST = "pause", "left", "rest"
_NEAR, _FAR, _HARM = "near", "far", "harm"
_MEMORY = 0.5
"""Of the harm that was found before, for as long as h stays the same."""


@dataclass(frozen=True, kw_only=True)
class ListeningAda(Algorithm):
    r"""D-PSGD with an average of all after every h sparse mixings, where h follows the harm that these do.

    .. math:: G = \frac{\sum_i \lVert \nabla F_i(x_i) \rVert^2 \text{ after the h sparse mixings}}
                       {\sum_i \lVert \nabla F_i(\bar x) \rVert^2 \text{ after the average}}, \qquad
              h \leftarrow \begin{cases} \lfloor h / 2 \rfloor & G > \tau \\ 2h + 1 & G < \sqrt\tau \end{cases}

    Replicas that have drifted apart do harm where the loss is curved between them: then gradients are larger where they
    are than at their mean. Early in training, and at large learning rates, one sparse mixing can double them; later
    many do nothing. So like Ada it begins with everybody averaging with everybody (h = 0) and thins out as training
    settles; unlike Ada it goes by what it hears, not by the clock, and thickens again where it thinned out too far.
    At h = 0 nothing is heard: after `rest` averages in a row one sparse mixing is tried.

    All replicas hear the same: both sums are two numbers more in an all-reduce that is due anyway. The dense phase
    costs what the best collective costs, twice a model; between two averages replicas mix over the schedule, so one
    with few neighbours and long links serves best, such as base-2. Gradients that are clipped tell less.

    Reference: ours. Sparse rounds with global averages between them: Chen et al., "Accelerating gossip SGD with
    periodic global averaging", ICML 2021, arXiv 2105.09080.

    >>> ListeningAda(tolerance=1.5)
    ListeningAda(tolerance=1.5, most=31, rest=8)
    """

    tolerance: float = 1.25
    """τ, how much larger the squared gradients may be where the replicas are than at their mean."""
    most: int = 31
    """h at the most: so often somebody listens."""
    rest: int = 8
    """Averages in a row before a sparser graph is tried again."""

    def __post_init__(self) -> None:
        if not self.tolerance > 1:
            raise ValueError(f"tolerance={self.tolerance}: gradients must be allowed to grow, give more than 1")
        if self.most < 1:
            raise ValueError(f"most={self.most}: give the sparse mixings between two averages of all, 1 or more")
        if self.rest < 1:
            raise ValueError(f"rest={self.rest}: give the averages in a row before a sparser graph is tried, 1 or more")

    @property
    def is_elementwise(self) -> bool:
        return False  # gradients are those of the whole model

    @property
    def usual_graph(self) -> str:
        return "base-2"

    def before_step(self, replica: Replica, mix: Mix) -> None:
        state = replica.state
        if not state:
            state |= {_PAUSE: torch.tensor(0), _LEFT: torch.tensor(0), _REST: torch.tensor(self.rest)}
        pause, left = int(state[_PAUSE]), int(state[_LEFT])
        if pause and left in (0, pause):
            state[_FAR if left == 0 else _NEAR] = replica.grads.square().sum(dim=-1, keepdim=True)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        state = replica.state
        if state[_LEFT]:
            replica.params.copy_(mix(replica.params))
            state[_LEFT] = state[_LEFT] - 1
            return
        replica.params.copy_(mix.mean(replica.params))
        pause = int(state[_PAUSE])
        pause = self._after_listening(pause, state, mix) if pause else self._after_rest(state)
        state[_PAUSE], state[_LEFT] = torch.tensor(pause), torch.tensor(pause)

    def _after_rest(self, state: dict[str, torch.Tensor]) -> int:
        state[_REST] = state[_REST] - 1
        return int(state[_REST] <= 0)

    def _after_listening(self, pause: int, state: dict[str, torch.Tensor], mix: Mix) -> int:
        near, far = mix.mean(torch.cat([state.pop(_NEAR), state.pop(_FAR)], -1)).view(-1, 2)[0].tolist()
        growth = far / near if near else 1.0
        found = torch.tensor(log(growth) if 0 < growth < inf else inf)
        harm = state[_HARM] = torch.lerp(found, state[_HARM], _MEMORY) if _HARM in state else found
        if harm > log(self.tolerance):
            pause //= 2
        elif harm < log(self.tolerance) / 2 and pause < self.most:
            pause = min(2 * pause + 1, self.most)
        else:
            return pause
        del state[_HARM]
        state[_REST] = torch.tensor(self.rest)
        return pause
