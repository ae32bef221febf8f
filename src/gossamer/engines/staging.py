"""Values on a GPU over a process group that sends from the host: several workers may share one GPU that way."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .exchange import ProcessExchange

if TYPE_CHECKING:
    from .transport import Transport


class Staged(ProcessExchange):
    """An exchange of values that lie on a GPU, made in pinned memory of the host.

    The courier takes them down, makes the exchange there and brings the result up again, on a stream of its own:
    neither the worker's thread nor its stream waits for anything before `wait`.
    """

    def __init__(
        self, transport: "Transport", values: Tensor, exchange: Callable[[Tensor], ProcessExchange], stream: Any
    ) -> None:
        super().__init__(transport, values)
        self._stream = stream
        self._device = torch.get_device_module(values.device)
        self._host = transport.host_buffers.lend(values.shape, values.dtype, torch.device("cpu"))
        self._mixed = transport.buffers.lend_like(values)
        self._on_host = exchange(self._host)
        self.bytes_sent = self._on_host.bytes_sent

    def begin(self) -> None:
        is_written = self._mark(self._device.current_stream())
        self._is_up: Future[Any] = self.transport.courier.send(self._carry, is_written)

    def _carry(self, is_written: Any) -> Any:
        with self._device.stream(self._stream):
            self._stream.wait_event(is_written)
            self._host.copy_(self.values, non_blocking=True)
            self._mark(self._stream).synchronize()
            self._on_host.begin()
            self._on_host.wait(self._host)
            self._mixed.copy_(self._host, non_blocking=True)
            return self._mark(self._stream)

    def _mark(self, stream: Any) -> Any:
        event = self._device.Event()
        event.record(stream)
        return event

    def finish(self, out: Tensor) -> None:
        is_up = self.transport.wait_until(self._is_up)
        self._device.current_stream().wait_event(is_up)
        out.copy_(self._mixed)
        self.transport.host_buffers.give_back(self._host)
        self.transport.buffers.give_back(self._mixed)
