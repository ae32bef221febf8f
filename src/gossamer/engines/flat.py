"""Flat buffers: many parameters, one tensor, no copy between the two views of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from gossamer.algorithms import Exchange, SGDRule

from .wire import Buffers

_TAIL = 1 / 16
"""By so much of its size a part may be larger than it should be."""


class FlatReplica:
    """Parameters of one dtype and device, re-homed in a single buffer; what an algorithm calls a replica.

    Each parameter's `.data` becomes a view of `params`, so an optimizer that steps the parameters and an algorithm
    that mixes the buffer see the same memory, and names and `state_dict` keys stay the user's.
    `lead` is the shape in front: `()` for one replica, `(N,)` for N of them stacked. `shapes` names the tensors in the
    buffer where they are not the parameters themselves: the stacked engine's optimizer steps the whole buffer as one.

    >>> weight, bias = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(3))
    >>> replica = FlatReplica({"weight": weight, "bias": bias})
    >>> replica.params += 1
    >>> weight.sum().item(), bias.sum().item()
    (12.0, 3.0)
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        lead: tuple[int, ...] = (),
        shapes: Mapping[str, torch.Size] | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self.lead = lead
        self._homes = _spans(prod(p.shape[len(lead) :]) for p in parameters.values())
        named = {name: p.shape[len(lead) :] for name, p in parameters.items()} if shapes is None else shapes
        self.names = tuple(named)
        self.spans = _spans(map(prod, named.values()))
        matrices = [span for span, shape in zip(self.spans, named.values(), strict=True) if len(shape) > 1]
        self.matrices = matrices or self.spans
        first = next(iter(parameters.values()))
        self.step = 0
        self.state: dict[str, Tensor] = {}
        self.pending: dict[str, Exchange] = {}
        self.params = torch.empty(*lead, self._homes[-1].stop, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters.values(), self._views(self.params), strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self._addresses = {name: parameter.data_ptr() for name, parameter in self.parameters.items()}
        self.watch()
        self._grads: Tensor | None = None
        self._grad_views: list[Tensor] = []
        self._optimizer: Optimizer | None = None
        self._moments: dict[str, tuple[Tensor, list[Tensor]]] = {}
        self._buffers = Buffers()

    def stepped_by(self, optimizer: Optimizer) -> None:
        """From here on `lr` and `moments` are those of this optimizer."""
        self._optimizer = optimizer

    @property
    def grads(self) -> Tensor:
        """All gradients in one buffer `[..., P]`, gathered on demand; a parameter without one gets zeros.

        Only methods that touch gradients pay for the copy. Afterwards each `.grad` is a view of the buffer, so what
        the algorithm writes the optimizer reads.
        """
        if len(self.parameters) == 1:  # the optimizer's gradient is the buffer
            (parameter,) = self.parameters.values()
            if parameter.grad is not None and parameter.grad.shape == self.params.shape:
                return parameter.grad
        if self._grads is None:
            self._grads = torch.zeros_like(self.params)
            self._grad_views = self._views(self._grads)
        for parameter, view in zip(self.parameters.values(), self._grad_views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                view.copy_(parameter.grad)
            if parameter.requires_grad:  # a frozen one must not decay
                parameter.grad = view
        return self._grads

    @property
    def lr(self) -> float | Tensor:
        """The learning rate of the optimizer; `[P]` where parameter groups have different ones."""
        assert self._optimizer is not None
        groups = self._optimizer.param_groups
        rates = {id(parameter): float(group["lr"]) for group in groups for parameter in group["params"]}
        mine = [rates[id(parameter)] for parameter in self.parameters.values()]
        if len(set(mine)) == 1:
            return mine[0]
        lr = torch.empty_like(self.params)
        for home, rate in zip(self._homes, mine, strict=True):
            lr[..., home] = rate
        return lr

    @property
    def moments(self) -> dict[str, Tensor]:
        """What the optimizer keeps of every parameter, each kind in one buffer `[..., P]`, gathered on demand.

        As with gradients, the optimizer's own tensors become views of the buffer.
        """
        assert self._optimizer is not None
        states = [self._optimizer.state.get(parameter, {}) for parameter in self.parameters.values()]
        shapes = [parameter.shape for parameter in self.parameters.values()]
        names = {
            name: None
            for state, shape in zip(states, shapes, strict=True)
            for name, values in state.items()
            if isinstance(values, Tensor) and values.shape == shape and name != "step"
        }
        return {name: self._gathered(name, states) for name in names}

    @property
    def sgd(self) -> SGDRule | None:
        """How the optimizer steps, where it is SGD and does so alike for all parameters."""
        if not isinstance(self._optimizer, SGD):
            return None
        mine = {id(parameter) for parameter in self.parameters.values()}
        groups = [
            group
            for group in self._optimizer.param_groups
            if any(id(parameter) in mine for parameter in group["params"])
        ]
        kinds = {
            SGDRule(
                float(group["momentum"]), 1 - float(group["dampening"]), group["nesterov"], float(group["weight_decay"])
            )
            for group in groups
        }
        return kinds.pop() if len(kinds) == 1 and not any(group["maximize"] for group in groups) else None

    def _gathered(self, name: str, states: list[dict[str, Any]]) -> Tensor:
        if len(states) == 1:  # the optimizer's tensor is the buffer
            values: Tensor = states[0][name]
            return values
        if name not in self._moments:
            buffer = torch.zeros_like(self.params)
            self._moments[name] = buffer, self._views(buffer)
        buffer, views = self._moments[name]
        for state, view in zip(states, views, strict=True):
            if name in state and state[name] is not view:
                state[name] = view.copy_(state[name])
        return buffer

    def lend(self) -> Tensor:
        """Memory for values like the parameters, whatever is in it."""
        return self._buffers.lend_like(self.params)

    def give_back(self, memory: Tensor) -> None:
        """What was lent is needed no more."""
        self._buffers.give_back(memory)

    def moved(self) -> list[str]:
        """The parameters that no longer lie where they were put."""
        return [name for name, p in self.parameters.items() if p.data_ptr() != self._addresses[name]]

    def watch(self) -> None:
        """From here on `changed` tells which parameters were written to; writing to the buffer does not count."""
        self._versions = [parameter._version for parameter in self.parameters.values()]

    def changed(self) -> list[str]:
        versions = zip(self.parameters.items(), self._versions, strict=True)
        return [name for (name, parameter), version in versions if parameter._version != version]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[..., home].view(parameter.shape)
            for parameter, home in zip(self.parameters.values(), self._homes, strict=True)
        ]

    def finish_pending(self) -> dict[str, Tensor]:
        """Wait for the exchanges under way, once: what has arrived stays for the step that will ask for it."""
        arrived = {name: exchange.wait() for name, exchange in self.pending.items()}
        self.pending = {name: Arrived(values) for name, values in arrived.items()}
        return arrived

    def state_dict(self) -> dict[str, Any]:
        """Everything a later `load_state_dict` needs to go on as if nothing had happened."""
        arrived = self.finish_pending()
        return {"step": self.step, "params": self.params, "state": dict(self.state), "arrived": arrived}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.finish_pending()  # neighbours may still be reading the parameters
        device = self.params.device
        self.step = saved["step"]
        self.params.copy_(saved["params"])
        self.state = {name: values.to(device) for name, values in saved["state"].items()}
        self.pending = {name: Arrived(values.to(device)) for name, values in saved["arrived"].items()}


@dataclass(frozen=True)
class Arrived:
    """An exchange whose result is there already."""

    values: Tensor = field(repr=False)
    bytes_sent: float = 0.0

    def wait(self, out: Tensor | None = None) -> Tensor:
        return self.values if out is None else out.copy_(self.values)


def flatten(parameters: Mapping[str, torch.nn.Parameter], *, bucket_bytes: float | None = None) -> list[FlatReplica]:
    """One `FlatReplica` for each (dtype, device) among the parameters; a parameter given twice counts once.

    With `bucket_bytes`, as many as it takes for none to be larger than that, unless a single parameter is; but what is
    small beside it goes with what is before it, so that a bias does not travel alone.
    """
    by_kind: dict[tuple[torch.dtype, torch.device], list[dict[str, torch.nn.Parameter]]] = {}
    once = {id(parameter): (name, parameter) for name, parameter in parameters.items()}
    for name, parameter in once.values():
        if parameter.is_complex():
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}, but replicas exchange real numbers: keep torch.view_as_real "
                "of it as the parameter"
            )
        buckets = by_kind.setdefault((parameter.dtype, parameter.device), [{}])
        if bucket_bytes is not None and buckets[-1]:
            size = sum(p.nbytes for p in buckets[-1].values()) + parameter.nbytes
            if size > bucket_bytes * (1 + _TAIL):
                buckets.append({})
        buckets[-1][name] = parameter
    return [FlatReplica(bucket) for buckets in by_kind.values() for bucket in buckets]


def _spans(sizes: Iterable[int]) -> list[slice]:
    spans, start = [], 0
    for size in sizes:
        spans.append(slice(start, start + size))
        start += size
    return spans
