"""Ada that listens: everybody averages with everybody while steps tear the replicas apart, ever more seldom later."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from torch import Tensor
from torch.linalg import vector_norm

from . import _steps_alone as steps_alone
from ._contract import Algorithm, Mix, Replica, SGDRule
from ._part_windows import allotted, in_turn, mean_before
from ._parts import Part, exchange, parts_of

_WINDOWS, _LEFT = "windows", "left"
"""Of each part: steps from one average over all to the next, and those still to come, `[parts]`."""
_DONE = "done"
"""Steps since the last."""
_NOISE = "noise"
"""The variance that a step left in each part when last heard, added up over its matrices; infinite before that."""
_RATE = "rate"
"""The learning rate when each part was last averaged: while it rises, a training has not settled."""
_HEARD = "heard"
"""Of a part whose gradients were averaged before the step: the variance of all that it has done since the last time."""
_WAITED = "waited"
"""Averages of gradients since models were tried, of each part, where gradients do not tell how far steps part it."""
_HARDLY = 1e-30
"""A variance that is small, but not none."""


@dataclass(frozen=True, kw_only=True)
class ListeningAda(Algorithm):
    r"""All-reduce at first; then each part of the model after every h-th step, h by the variance that steps leave.

    .. math:: a_p = \sum_{m \in p} \frac{\tfrac1n \sum_i \lVert \Delta_i^m - \bar\Delta^m \rVert^2}
                      {\lVert \bar x^m \rVert^2}, \qquad
              h = \arg\min \sum_p s_p / h_p \quad\text{where}\quad
              \tfrac1M \sum_p a_p \, D(h_p) \le \xi, \quad h_p \le 2 h_p^-

    Like Ada it begins with everybody averaging with everybody and thins out as training settles: between two averages
    over all gradients are averaged with the neighbours of the graph, as inside a node; with none the replicas step
    alone. Unlike Ada it goes by what it hears, not by the clock: steps Δ that are large beside the matrices m, as at
    high learning rates, tear replicas apart. While the learning rate rises it does not wait: small steps are then no
    sign of rest.

    A model is averaged in some parts of sizes s_p, in turn. Each has a window h_p of its own: D(h) is how far apart
    replicas are where they take their gradients, on the average over h steps, and what is allowed of that goes where
    it saves most. So what hardly moves, as the embedding of a language model, is averaged seldom, and an average of a
    half each time hides behind backward where one of all every other time does not.

    With SGD an average over all is one of gradients, whatever h: with the last of h steps a replica gives the gradient
    that would have taken it there in one (`_steps_alone.py`). The momentum of the mean is read off how far it has
    moved. So replicas begin every window alike in all that they step by, and noise parts them only as
    :math:`q_h = \sum_{k \le h} (1 + \mu + \dots + \mu^{k-1})^2`, of which averages with neighbours leave a share κ
    (`Mix.noise_kept`): :math:`D(h) = \tfrac{\kappa}{h} \sum_{k < h} q_k`. Where all h = 1 it is an all-reduce.

    With another optimizer it averages gradients where :math:`h = 1`, models after the h-th step elsewhere, and takes
    :math:`q_h = h^2`, since moments stay apart. Gradients then do not tell how far their steps part replicas: after
    so many as a window may have steps it tries h = 2, and if that is too far apart it averages the moments and goes
    back.

    All replicas hear the same, and for nearly nothing: two numbers a matrix in an all-reduce of their own.

    Reference: ours. Averages by need go back to Kamp et al., "Efficient decentralized deep learning by dynamic model
    averaging", ECML PKDD 2018, arXiv 1807.03210 (a bound on the distance itself, watched at every step); pauses that
    change to Wang & Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in
    local-update SGD", MLSys 2019, arXiv 1810.08313 (by the loss, and ever shorter); all-reduce first and pauses, or
    averages inside nodes, later to Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020, arXiv
    1808.07217 (by the clock); layers at intervals of their own to Lee et al., "Layer-wise adaptive model aggregation
    for scalable federated learning", AAAI 2023, arXiv 2110.10302.

    >>> ListeningAda(most=16)
    ListeningAda(apart=3e-05, most=16, parts=16)
    """

    apart: float = 3e-5
    """ξ, how far apart replicas may be where they take their gradients: of each matrix the mean squared distance over
    the mean's squared norm, on the average over steps and matrices."""
    most: int = 32
    """Steps from one average over all to the next at the most: so often somebody listens."""
    parts: int = 16
    """Of the model at the most. Where messages take longer to set out than to travel, 1 is best."""

    def __post_init__(self) -> None:
        if not self.apart > 0:
            raise ValueError(f"apart={self.apart}: replicas must be allowed to differ, give more than 0")
        if self.most < 2:
            raise ValueError(f"most={self.most}: give the steps from one average to the next, 2 or more")
        if self.parts < 1:
            raise ValueError(f"parts={self.parts}: give a number of parts, 1 for the whole model at once")

    @property
    def is_elementwise(self) -> bool:
        return False  # norms are those of whole matrices, and what is allowed is for all of them together

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
        state, parts = replica.state, parts_of(replica, self.parts)
        if not state:
            state |= _begun(len(parts))
        windows, left = state[_WINDOWS].tolist(), state[_LEFT].tolist()
        if waiting := [part.grads for part in parts if left[part.number] > 1]:
            exchange(waiting, replica.grads, mix)
        ready = []
        for part in parts:
            if left[part.number] == 1 and windows[part.number] == 1:
                ready.append(part)
            elif left[part.number] == 1 and steps_alone.can_become_a_gradient(part):
                steps_alone.become_a_gradient(part)
                ready.append(part)
        if ready:
            _average_gradients(ready, replica, mix)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        state, parts = replica.state, parts_of(replica, self.parts)
        state[_LEFT], state[_DONE] = state[_LEFT] - 1, state[_DONE] + 1
        for part in parts:
            steps_alone.count(part)
        due = [part for part, left in zip(parts, state[_LEFT].tolist(), strict=True) if not left]
        if due:
            self._listen(due, replica, mix)
            self._wait(due, parts, replica, mix)

    def _listen(self, due: list[Part], replica: Replica, mix: Mix) -> None:
        """How much noise a step leaves in the parts that have come together, now or before the step."""
        state = replica.state
        windows, done, noise, waited = (state[name].tolist() for name in (_WINDOWS, _DONE, _NOISE, _WAITED))
        if models := [part for part in due if windows[part.number] > 1 and _HEARD not in part.state]:
            _average_models(models, replica, mix)
        for part in due:
            number, heard = part.number, part.state.pop(_HEARD, None)
            if heard is None:  # nobody knows how far apart a step would have left it: little, now and then
                waited[number] = (waited[number] + 1) % self.most
                heard = _number(inf if waited[number] else _HARDLY)
            growth = 1 + mix.noise_kept * (steps_alone.spread(part.sgd, done[number]) - 1)
            noise[number] = float(heard) / growth
            steps_alone.follow(part)
        state[_NOISE], state[_WAITED] = torch.tensor(noise, dtype=torch.float64), torch.tensor(waited)

    def _wait(self, due: list[Part], parts: list[Part], replica: Replica, mix: Mix) -> None:
        """The windows that begin now, and where the first of them end."""
        state, rate = replica.state, _rate(replica)
        windows, left, rates, done = (state[name].tolist() for name in (_WINDOWS, _LEFT, _RATE, _DONE))
        following = self._next(parts, state[_NOISE].tolist(), mix.noise_kept)
        others = [(left[p.number], windows[p.number], p.size) for p in parts if left[p.number]]
        to_gradients: list[Part] = []
        for part in due:
            number, before = part.number, windows[part.number]
            window = 1 if rate > rates[number] else min(following[number], 2 * before)
            windows[number], rates[number], done[number] = window, rate, 0
            left[number] = in_turn(window, part.size, others)
            others.append((left[number], window, part.size))
            part.state.clear()
            if window > 1:
                part.state.update(steps_alone.begin(part))
            elif before > 1 and part.sgd is None:
                to_gradients.append(part)
        if to_gradients:
            for name, moments in replica.moments.items():
                exchange([part.moments[name] for part in to_gradients], moments, mix.mean)
        state |= {_WINDOWS: torch.tensor(windows), _LEFT: torch.tensor(left), _DONE: torch.tensor(done)}
        state[_RATE] = torch.tensor(rates, dtype=torch.float64)

    def _next(self, parts: list[Part], noise: list[float], kept: float) -> list[int]:
        """What each part may have."""
        if not any(noise):  # as with one worker: there is nobody to wait for
            return [1] * len(parts)
        allowed = self.apart * sum(len(part.matrices) for part in parts)
        return allotted(noise, [part.size for part in parts], _harm(parts[0].sgd, kept, self.most), allowed)


def _begun(num_parts: int) -> dict[str, Tensor]:
    ones = torch.ones(num_parts, dtype=torch.int64)
    rates = torch.zeros(num_parts, dtype=torch.float64)
    return {_WINDOWS: ones, _LEFT: ones, _DONE: 0 * ones, _NOISE: rates + inf, _RATE: rates, _WAITED: 0 * ones}


def _average_gradients(due: list[Part], replica: Replica, mix: Mix) -> None:
    listens = due[0].sgd is not None
    apart = [steps_alone.change(part) for part in due] if listens else []
    exchange([part.grads for part in due], replica.grads, mix.mean)
    if listens:
        _hear(due, [own - steps_alone.change(part) for part, own in zip(due, apart, strict=True)], mix)


def _average_models(due: list[Part], replica: Replica, mix: Mix) -> None:
    own = [part.params.clone() for part in due]
    exchange([part.params for part in due], replica.params, mix.mean)
    _hear(due, [values - part.params for part, values in zip(due, own, strict=True)], mix)


def _hear(due: list[Part], apart: Sequence[Tensor], mix: Mix) -> None:
    """What replicas have, less the mean over them, becomes a variance beside squared norms: one of a part."""
    squares = [_squared(values, part.matrices) for part, values in zip(due, apart, strict=True)]
    beside = [_squared(part.params, part.matrices) for part in due]
    relative = _relative(*mix.mean(torch.cat([*squares, *beside], -1)).chunk(2, -1))
    for part, mine in zip(due, torch.split(relative, [len(part.matrices) for part in due]), strict=True):
        part.state[_HEARD] = mine.sum()


def _squared(values: Tensor, matrices: Sequence[slice]) -> Tensor:
    """Squared norms of the matrices, `[..., M]`."""
    pieces = (values.narrow(-1, span.start, span.stop - span.start) for span in matrices)
    return torch.stack([vector_norm(piece, dim=-1) for piece in pieces], -1).square()


def _relative(variances: Tensor, weights: Tensor) -> Tensor:
    """`[M]`; infinite where it is no number. All replicas have the same, so that of the first held here will do."""
    mine, beside = (values.view(-1, values.shape[-1])[0].double() for values in (variances, weights))
    return torch.where(mine == 0, 0.0, mine / beside).nan_to_num(inf, posinf=inf).cpu()


@lru_cache(maxsize=64)
def _harm(rule: SGDRule | None, kept: float, most: int) -> list[float]:
    """D(h) for h = 1, 2, …"""
    return mean_before([kept * steps_alone.spread(rule, steps) for steps in range(most)])


def _rate(replica: Replica) -> float:
    lr = replica.lr
    return float(lr.max()) if isinstance(lr, Tensor) else lr


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
