"""A replica that partners change while its worker computes."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .flat import FlatReplica
from .parcel import Parcel


class LiveReplica:
    """A worker's replica, apart from the copy that its model computes with.

    Forward and backward read the model's own parameters, which nobody else touches: a gradient is that of parameters as
    they were at one moment. The replica lies beside them. Partners average with it at any time, so a slow worker is
    mixed while it computes, and what it has not computed yet holds nobody up. When the worker's optimizer has stepped,
    what changed in the model since it was read is added to the replica, and the model reads again. That takes two more
    models of memory; mixing at the boundaries of steps only would save them, and make all wait for the slowest.

    Whatever a user does to the parameters between two steps counts as part of the step.

    >>> model = FlatReplica({"x": torch.nn.Parameter(torch.zeros(2))})
    >>> live = LiveReplica([model])
    >>> sent, received = Parcel(live.values), Parcel(live.values)
    >>> live.copy_to(sent)
    >>> model.params += 1  # a step, while the exchange is under way
    >>> live.take_in()
    0
    >>> received.tensors[0].fill_(4.0)
    tensor([4., 4.])
    >>> live.mix(sent, received)
    >>> live.values, model.params
    ([tensor([3., 3.])], tensor([1., 1.]))
    """

    def __init__(self, models: list[FlatReplica]) -> None:
        self.num_mixings = 0
        self._models = models
        self.values = [model.params.clone() for model in models]
        self._read = [model.params.clone() for model in models]
        """The values that the model was given last."""
        self._read_at = 0
        self._lock = threading.Lock()
        """Of the values, held for a few passes over them; never while waiting for anybody."""
        self._devices = {values.device: torch.get_device_module(values.device) for values in self.values}
        self._streams = {device: module.Stream(device) for device, module in self._devices.items()}
        """Where partners' values come and go, beside the worker's own computation."""
        self._last = {device: module.Event() for device, module in self._devices.items()}
        """The end of the last use of the values on a GPU: whoever is next there has to wait for it."""

    @torch.no_grad()
    def take_in(self) -> int:
        """Add what has changed in the model since it was read, and read again.

        Returns how stale the change is: the mixings that came in between.
        """
        with self._held():
            staleness = self.num_mixings - self._read_at
            for model, values, read in zip(self._models, self.values, self._read, strict=True):
                if staleness == 0:  # exactly what the optimizer has made
                    values.copy_(model.params)
                else:
                    values.sub_(read.sub_(model.params))
                    model.params.copy_(values)
                read.copy_(values)
            self._read_at = self.num_mixings
        return staleness

    @torch.no_grad()
    def restart(self) -> None:
        """Take the model's parameters for the replica's, as they are."""
        with self._held():
            for model, values, read in zip(self._models, self.values, self._read, strict=True):
                values.copy_(model.params)
                read.copy_(model.params)
            self._read_at = self.num_mixings

    @torch.no_grad()
    def copy_to(self, parcel: Parcel) -> None:
        """The values as they are now, on the host when this returns."""
        with self._beside():
            with self._held():
                parcel.fill(self.values)
            for event in self._last.values():
                event.synchronize()

    @torch.no_grad()
    def mix(self, sent: Parcel, received: Parcel) -> None:
        """Move by half of what a partner's values differ from one's own, as the two were sent to each other.

        The partner moves by exactly the opposite: x + (s' − s)/2 and x' + (s − s')/2 have the sum of x and x'.
        """
        with self._beside():
            differences = received.minus(sent, self.values)
            with self._held():
                for values, difference in zip(self.values, differences, strict=True):
                    values.add_(difference, alpha=0.5)
                self.num_mixings += 1
            for event in self._last.values():
                event.synchronize()  # what has arrived may be overwritten after this

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            for device, module in self._devices.items():
                module.current_stream(device).wait_event(self._last[device])
            yield
            self._last = {device: _mark(module, device) for device, module in self._devices.items()}

    @contextmanager
    def _beside(self) -> Iterator[None]:
        with ExitStack() as streams:
            for device, module in self._devices.items():
                streams.enter_context(module.stream(self._streams[device]))
            yield


def _mark(module: Any, device: torch.device) -> Any:
    event = module.Event()
    event.record(module.current_stream(device))
    return event
