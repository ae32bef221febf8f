"""Exchanges of values on a GPU, beside its computation: by NCCL, or by way of the host."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .exchange import ProcessExchange

if TYPE_CHECKING:
    from .transport import Transport


class _Beside(ProcessExchange):
    """An exchange on a stream of its own: the worker's stream waits for nothing before `wait`."""

    def __init__(self, transport: "Transport", values: Tensor, stream: Any) -> None:
        super().__init__(transport, values)
        self._stream = stream
        self._device = torch.get_device_module(values.device)
        self._mixed = transport.buffers.lend_like(values)

    def _mark(self, stream: Any) -> Any:
        event = self._device.Event()
        event.record(stream)
        return event

    def _take(self, out: Tensor, is_mixed: Any) -> None:
        self._device.current_stream().wait_event(is_mixed)
        out.copy_(self._mixed)
        self.transport.buffers.give_back(self._mixed)


class Streamed(_Beside):
    """Made by the GPU itself, where the process group sends from there. Nothing in it waits on the host."""

    def __init__(
        self, transport: "Transport", values: Tensor, exchange: Callable[[Tensor], ProcessExchange], stream: Any
    ) -> None:
        super().__init__(transport, values, stream)
        self._on_stream = exchange(values)
        self.bytes_sent = self._on_stream.bytes_sent

    def begin(self) -> None:
        is_written = self._mark(self._device.current_stream())
        with self._device.stream(self._stream):
            self._stream.wait_event(is_written)
            self._on_stream.begin()
            self._on_stream.wait(self._mixed)
            self._is_mixed = self._mark(self._stream)

    def finish(self, out: Tensor) -> None:
        self._take(out, self._is_mixed)


class Staged(_Beside):
    """Made in pinned memory of the host, where the process group sends from there: workers may share a GPU that way.

    The courier takes the values down, makes the exchange there and brings the result up again.
    """

    def __init__(
        self, transport: "Transport", values: Tensor, exchange: Callable[[Tensor], ProcessExchange], stream: Any
    ) -> None:
        super().__init__(transport, values, stream)
        self._host = transport.host_buffers.lend(values.shape, values.dtype, torch.device("cpu"))
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

    def finish(self, out: Tensor) -> None:
        self._take(out, self.transport.wait_until(self._is_up))
        self.transport.host_buffers.give_back(self._host)
