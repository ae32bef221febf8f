"""Steps that replicas take alone, from one average to the next, and how they end in one model and one momentum.

Replicas that step alone for a while and then average hold the same model, but each a momentum of its own, which tears
them apart again in the very direction of its last noise. The momentum that belongs to the averaged model need not
travel: SGD's step, with memory μ and rate γ,

    v ← μ v + d,    x ← x − γ v

moves a model within h steps of a gradient d, which stays, by γ (Σ_j μʲ) v₀ + γ (Σ_j (1 − μʲ)/(1 − μ)) d. How far the
average has moved and the v₀ that it began with give d, the mean gradient of all replicas in these steps, and that gives
the momentum after them. For one step that is exact; for more, gradients count alike that momentum would weigh by age.

Nor need models travel. SGD's step is linear: there is one gradient that would take a replica from where the steps
began to where they end. These can be averaged in place of the last gradients, and hide behind the same backward pass.
"""

from collections.abc import Mapping, MutableMapping
from typing import Protocol

import torch
from torch import Tensor

from ._contract import SGDRule
from ._rates import per_rate

_ANCHOR, _VELOCITY = "anchor", "velocity"
"""Where the steps began: the model and its momentum."""
_KEPT, _FRESH = "kept", "fresh"
"""Now, of the momentum at the start and for a gradient of one: the shares of each in the momentum."""
_BY_VELOCITY, _BY_GRADIENT = "moved by velocity", "moved by gradient"
"""How far these have moved the model."""
_BUFFER = "momentum_buffer"


class Stepping(Protocol):
    """A replica, or a part of one: what `_contract.Replica` says of these."""

    params: Tensor

    @property
    def state(self) -> MutableMapping[str, Tensor]: ...
    @property
    def grads(self) -> Tensor: ...
    @property
    def lr(self) -> float | Tensor: ...
    @property
    def moments(self) -> Mapping[str, Tensor]: ...
    @property
    def sgd(self) -> SGDRule | None: ...


def begin(replica: Stepping) -> dict[str, Tensor]:
    """What is to be kept from here on, in `replica.state`; nothing where the optimizer is not SGD."""
    if replica.sgd is None:
        return {}
    memory, gain, _, _ = replica.sgd
    state = {_ANCHOR: replica.params.clone()}
    if not memory:
        return state
    velocity = replica.moments.get(_BUFFER)
    is_first = velocity is None  # torch takes the first gradient whole, whatever the gain
    return state | {
        _VELOCITY: torch.zeros_like(replica.params) if velocity is None else velocity.clone(),
        _KEPT: _number(1.0),
        _FRESH: _number((1 - gain) / memory if is_first else 0.0),
        _BY_VELOCITY: _number(0.0),
        _BY_GRADIENT: _number(0.0),
    }


def count(replica: Stepping) -> None:
    """The optimizer has taken a step."""
    state, lr = replica.state, replica.lr
    if _VELOCITY not in state or replica.sgd is None:
        return
    memory, gain, nesterov, _ = replica.sgd
    state[_KEPT] = memory * state[_KEPT]
    state[_FRESH] = memory * state[_FRESH] + gain
    kept, fresh = state[_KEPT], state[_FRESH]
    if nesterov:
        kept, fresh = memory * kept, memory * fresh + 1
    state[_BY_VELOCITY] = state[_BY_VELOCITY] + lr * kept
    state[_BY_GRADIENT] = state[_BY_GRADIENT] + lr * fresh


def follow(replica: Stepping) -> None:
    """The parameters have been averaged: their momentum becomes the optimizer's."""
    state, buffer = replica.state, replica.moments.get(_BUFFER)
    if _VELOCITY not in state or buffer is None:
        return
    by_velocity, by_gradient, kept, fresh = (
        _factor(state[name]) for name in (_BY_VELOCITY, _BY_GRADIENT, _KEPT, _FRESH)
    )
    moved = state[_ANCHOR] - replica.params
    gradient = per_rate(moved - by_velocity * state[_VELOCITY], by_gradient)
    buffer.copy_(kept * state[_VELOCITY] + fresh * gradient)


def can_become_a_gradient(replica: Stepping) -> bool:
    """Whether the next step, from where the steps began, can go wherever it is to go: not at a rate of zero."""
    lr = replica.lr
    return _ANCHOR in replica.state and bool((lr > 0).all() if isinstance(lr, Tensor) else lr > 0)


def become_a_gradient(replica: Stepping) -> None:
    """Go back to where the steps began, with the gradient that leads from there to where the next step would end."""
    state, rule, buffer = replica.state, replica.sgd, replica.moments.get(_BUFFER)
    assert rule is not None
    gain, of_velocity = _shares(rule)
    anchor = state[_ANCHOR]
    grads = replica.grads
    grads += (anchor - replica.params) * (1 / (gain * replica.lr) - rule.decay)
    replica.params.copy_(anchor)
    if _VELOCITY in state and buffer is not None:
        grads += (of_velocity / gain) * (buffer - state[_VELOCITY])
        buffer.copy_(state[_VELOCITY])


def change(replica: Stepping) -> Tensor:
    """How far the gradient alone would move the parameters in the next step of SGD."""
    assert replica.sgd is not None
    return replica.grads * (_shares(replica.sgd)[0] * replica.lr)


def spread(rule: SGDRule | None, num_steps: int) -> float:
    """By how much more than one step so many part replicas that began alike, in squares.

    Where the momentum is followed only what is fresh parts them: noise of the last step counts once, of the one before
    (1 + μ) times, and so on. Any other optimizer's memory goes on as it was, and adds up steps of one direction.

    >>> spread(SGDRule(0.5, 1.0, False, 0.0), 2), spread(SGDRule(0.5, 1.0, True, 0.0), 2), spread(None, 2)
    (3.25, 2.361..., 4.0)
    """
    if rule is None:
        return float(num_steps**2)
    share = float(rule.nesterov)  # which goes a step ahead with what is fresh, too
    total, first = 0.0, rule.memory * share + 1
    for _ in range(num_steps):
        share = rule.memory * share + 1
        total += share**2
    return total / first**2


def _shares(rule: SGDRule) -> tuple[float, float]:
    """Of the gradient and of the momentum before, in a step of SGD."""
    memory, gain, nesterov, _ = rule
    if not memory:
        return 1.0, 0.0
    return (1 + memory * gain, memory**2) if nesterov else (gain, memory)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _factor(values: Tensor) -> float | Tensor:
    """A number for all parameters, or one for each where their rates differ."""
    return values.item() if values.ndim == 0 else values
