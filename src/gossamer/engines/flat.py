"""Flat buffers: many parameters, one tensor, no copy between the two views of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms import Exchange


class FlatReplica:
    """Parameters of one dtype and device, re-homed in a single buffer; what an algorithm calls a replica.

    Each parameter's `.data` becomes a view of `params`, so an optimizer that steps the parameters and an algorithm
    that mixes the buffer see the same memory, and names and `state_dict` keys stay the user's.
    `lead` is the shape in front: `()` for one replica, `(N,)` for N of them stacked.

    >>> weight, bias = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(3))
    >>> replica = FlatReplica([weight, bias])
    >>> replica.params += 1
    >>> weight.sum().item(), bias.sum().item()
    (12.0, 3.0)
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], lead: tuple[int, ...] = ()) -> None:
        first = parameters[0]
        self.parameters = list(parameters)
        self.lead = lead
        self.spans = _spans(prod(p.shape[len(lead) :]) for p in parameters)
        self.step = 0
        self.state: dict[str, Tensor] = {}
        self.pending: dict[str, Exchange] = {}
        self.params = torch.empty(*lead, self.spans[-1].stop, dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters, self._views(self.params), strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]
        self._grads: Tensor | None = None
        self._grad_views: list[Tensor] = []

    @property
    def grads(self) -> Tensor:
        """All gradients in one buffer `[..., P]`, gathered on demand; a parameter without one gets zeros.

        Only methods that touch gradients pay for the copy. Afterwards each `.grad` is a view of the buffer, so what
        the algorithm writes the optimizer reads.
        """
        if self._grads is None:
            self._grads = torch.zeros_like(self.params)
            self._grad_views = self._views(self._grads)
        for parameter, view in zip(self.parameters, self._grad_views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                view.copy_(parameter.grad)
            parameter.grad = view
        return self._grads

    def in_place(self) -> list[bool]:
        """For each parameter, whether it still lies where it was put."""
        return [p.data_ptr() == there for p, there in zip(self.parameters, self._addresses, strict=True)]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[..., span].view(parameter.shape) for parameter, span in zip(self.parameters, self.spans, strict=True)
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

    def wait(self) -> Tensor:
        return self.values


def flatten(parameters: Iterable[torch.nn.Parameter], lead: tuple[int, ...] = ()) -> list[FlatReplica]:
    """One `FlatReplica` for each (dtype, device) among the parameters; a parameter given twice counts once."""
    by_kind: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for parameter in dict.fromkeys(parameters):
        by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return [FlatReplica(group, lead) for group in by_kind.values()]


def _spans(sizes: Iterable[int]) -> list[slice]:
    spans, start = [], 0
    for size in sizes:
        spans.append(slice(start, start + size))
        start += size
    return spans
