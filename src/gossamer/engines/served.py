"""Asynchronous SGD with a parameter server: one rank holds the parameters and steps, the others bring it gradients."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.algorithms import ParameterServer

from .asynchronous import Asynchronous
from .blame import NeighborLost
from .link import Link, LinkBroken, Word, farewell
from .parcel import Parcel

_PUSH = 1.0


class Served(Asynchronous):
    """Between its beginning and `close`, `optimizer.step()` of a worker is one step of the server.

    It sends its gradients, and its learning rates with them; the server's optimizer steps, at the rate that
    `ParameterServer.rate` makes of these, and the worker gets the parameters as they are then. The worker's own
    optimizer steps nothing. The server makes one step after the other, in the order in which gradients arrive, in
    threads that listen to the workers; its own loop gets no batches (`share`), and it waits where all ranks meet. A
    worker that dies is left behind; without the server nobody goes on.
    """

    algorithm: ParameterServer

    def __init__(self, *arguments: Any, server: int = 0, **settings: Any) -> None:
        """`server` is the rank that serves."""
        self.server = server
        super().__init__(*arguments, **settings)

    def _partners(self, rank: int) -> list[int]:
        return [self.server] if rank != self.server else [other for other in range(self.size) if other != self.server]

    def _begin(self) -> None:
        self._version = 0
        """Steps that the server has made; on a worker, when it last read the parameters."""
        self._turn = threading.Condition()
        """Of the server's parameters: one step at a time, and none while the server stands still."""
        self._is_still = False
        self._has_ended = False
        self._server_thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        self.links = self._links(2 + len(self.optimizer.param_groups))
        self._gradients = {other: Parcel(self._params, self.transport.wire) for other in self.links}
        self._parameters = {other: Parcel(self._served(), self.transport.wire) for other in self.links}
        self._all_links = tuple(self.links.values())
        for link in self._all_links:
            link.listen(self._serve, self._on_end)

    @property
    def _params(self) -> list[Tensor]:
        return [replica.params for replica in self.replicas]

    def _served(self) -> list[Tensor]:
        return [*self._params, torch.tensor([self._version])]

    @property
    def is_server(self) -> bool:
        """Whether this rank only serves; one alone trains."""
        return self.rank == self.server and self.size > 1

    # ---- the worker -------------------------------------------------------------------------------------

    def _before_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self.is_server and threading.current_thread() is not self._server_thread:
            raise ValueError(
                f"rank {self.server} serves the parameters and steps with the gradients of others only: take the "
                "batches from training.share(...), which leaves them to the other ranks"
            )
        super()._before_step(arguments, keywords)
        if self.size > 1 and not self.is_server:
            with self._rescuing():
                self._push()
            for replica in self.replicas:
                for parameter in replica.parameters.values():  # so that the step that follows has nothing to do
                    self._grads_put_aside[parameter], parameter.grad = parameter.grad, None

    @torch.no_grad()
    def _push(self) -> None:
        link, began = self.links.get(self.server), time.monotonic()
        if link is None:
            raise self._lost_server(self._lost.get(self.server, "it has left"))
        gradients, parameters = self._gradients[self.server], self._parameters[self.server]
        rates = [float(param_group["lr"]) for param_group in self.optimizer.param_groups]
        try:
            gradients.fill([replica.grads for replica in self.replicas])
            self._synchronize()
            link.tell(_PUSH, self._version, *rates)
            link.send(gradients)
            link.receive(parameters)
        except LinkBroken as error:
            raise NeighborLost(
                self.server, f"rank {self.server}, which served the parameters, is lost: {error}"
            ) from error
        self.mixer.bytes_sent += gradients.nbytes
        read, self._version = self._version, self._take(parameters)
        self._staleness.add(self._version - 1 - read)
        self.transport.waited_s += time.monotonic() - began

    def _lost_server(self, why: str) -> NeighborLost:
        return NeighborLost(self.server, f"rank {self.server}, which served the parameters, is lost: {why}")

    def _take(self, parameters: Parcel) -> int:
        version = torch.zeros(1, dtype=torch.int64)
        parameters.empty_into([*self._params, version])
        return int(version)

    def _synchronize(self) -> None:
        for device in {params.device for params in self._params}:
            torch.get_device_module(device).synchronize(device)

    # ---- the server -------------------------------------------------------------------------------------

    @torch.no_grad()
    def _serve(self, link: Link, word: Word) -> None:
        gradients, parameters = self._gradients[link.other], self._parameters[link.other]
        _, read, *rates = word
        link.receive(gradients)
        with self._turn:
            self._turn.wait_for(lambda: not (self._is_still or self._aside))
            self._server_thread = threading.current_thread()
            staleness = self._version - int(read)
            for param_group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                _set_rate(param_group, self.algorithm.rate(rate, num_workers=self.size - 1, staleness=staleness))
            gradients.empty_into([replica.grads for replica in self.replicas])
            with self._termination.held():
                self.optimizer.step()
            self._staleness.add(staleness)
            self._version += 1
            parameters.fill(self._served())
            self._synchronize()
        link.send(parameters)
        self.mixer.bytes_sent += parameters.nbytes

    def _on_end(self, link: Link, error: BaseException | None) -> None:
        self.links.pop(link.other, None)
        if error is not None and not isinstance(error, LinkBroken):
            self.failure = error
            self.roll.fail(self.rank, f"{type(error).__name__}: {error}")
        elif not self._has_ended:
            self._lose(link.other, None if error is None else str(error))

    def _claims(self, num_batches: int) -> Iterator[int]:
        return iter(()) if self.is_server else super()._claims(num_batches)

    # ---- coming together --------------------------------------------------------------------------------

    def _meet(self, at: str) -> None:
        try:
            super()._meet(at)
        except NeighborLost:
            if self.failure is None:
                raise
            raise NeighborLost(
                self.rank, f"the server, rank {self.rank}, has failed, and nobody goes on"
            ) from self.failure

    def _stand_still(self, at: str) -> None:
        """Nobody is in the middle of a step when all are here: everybody gets the server's parameters."""
        with self._turn:
            self._is_still = True
        version = torch.tensor([self._version])
        everything = [*self._params, version]
        for values, served in zip(everything, self._jointly(lambda: self._from_server(everything)), strict=True):
            values.copy_(served)
        self._version = int(version)

    def _from_server(self, tensors: list[Tensor]) -> list[Tensor]:
        """Sums in which all others are zero."""
        if self.server not in self.roll.members:
            raise self._lost_server("it is not among those who have come")
        return [self._sum(values, is_counted=self.is_server) for values in tensors]

    def _go_on(self) -> None:
        with self._turn:
            self._is_still = False
            self._turn.notify_all()

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """As for all methods; the server's steps wait until it has its own parameters back."""
        try:
            with super().averaged() as model:
                yield model
        finally:
            self._go_on()

    @property
    def _num_counted(self) -> int:
        return max(1, len(self.roll.members) - 1)

    @property
    def _counts(self) -> bool:
        return not self.is_server

    def _restart(self) -> None:
        pass

    def _leave(self) -> None:
        self._has_ended = True
        farewell(self._all_links)


def _set_rate(param_group: dict[str, Any], rate: float) -> None:
    if isinstance(param_group["lr"], Tensor):
        param_group["lr"].fill_(rate)
    else:
        param_group["lr"] = rate
