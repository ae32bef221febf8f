"""A parameter server in virtual time, on stacked copies of its model."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.algorithms import ParameterServer
from gossamer.clock import Event

from .stacked import MakeOptimizer, mean_of_replicas
from .virtual import VirtualEngine


class VirtualServer(VirtualEngine):
    """A parameter server: one model, stepped with every worker's gradient as it arrives.

        gradient   x ← step(x, g_i(x̂_i))
        read       x̂_i ← x

    The replica of a worker is the copy that it computes with; the model is the server's. Its rate is what
    `ParameterServer.rate` makes of that of the training.
    """

    algorithm: ParameterServer

    def _make_optimizer(self, make: MakeOptimizer) -> Optimizer:
        self._server = [nn.Parameter(flat[0].clone()) for flat in self._read]
        return make(self._server)

    def set_lr(self, lr: float) -> None:
        self._lr = lr

    def _follow(self, event: Event) -> None:
        if event.kind == "gradient":
            rate = self.algorithm.rate(self._lr, num_workers=self.num_replicas, staleness=event.staleness)
            super().set_lr(rate)
            for mine, pending in zip(self._server, self._pending, strict=True):
                mine.grad = pending[event.worker]
            self.optimizer.step()
            self.bytes_sent[event.worker] += self._model_bytes
        else:
            for mine, flat, read in zip(self._server, self.flats(), self._read, strict=True):
                flat[event.worker] = read[event.worker] = mine.detach()

    @torch.no_grad()
    def averaged_outputs(self, inputs: Tensor) -> Tensor:
        mean = {name: mean_of_replicas(buffer) for name, buffer in self._buffers.items()}
        return self.gradient.outputs_of([mine.detach() for mine in self._server], self._frozen, mean, inputs)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"server": [mine.detach() for mine in self._server]}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        for mine, theirs in zip(self._server, saved["server"], strict=True):
            mine.copy_(theirs)
