"""What a process that holds one replica can be asked, by itself and together with those that hold the others."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ._engine import Loss, evaluating
from .flat import FlatReplica
from .transport import Transport


class OneReplica:
    """The model of one replica, and a transport that reaches the holders of all of them."""

    model: nn.Module
    optimizer: Optimizer
    loss: Loss | None
    replicas: list[FlatReplica]
    transport: Transport

    @property
    def num_replicas(self) -> int:
        return self.transport.size

    @property
    def local(self) -> slice:
        return slice(self.transport.rank, self.transport.rank + 1)

    def flats(self) -> list[Tensor]:
        return [replica.params.unsqueeze(0) for replica in self.replicas]

    def backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The gradients of batches `[1, B, ...]`, for the step that is to follow; the loss `[1]`."""
        if self.loss is None:
            raise ValueError("the engine was made without a loss, for a loop of your own: call optimizer.step() there")
        self.optimizer.zero_grad()
        loss = self.loss(self.model(inputs[0]), targets[0])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach().unsqueeze(0)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        with evaluating(self.model):
            said: Tensor = self.model(inputs[0])
        return said.unsqueeze(0)

    @torch.no_grad()
    def averaged_outputs(self, inputs: Tensor) -> Tensor:
        averaged = {
            name: self.mean(tensor.detach().unsqueeze(0)) if tensor.is_floating_point() else tensor
            for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers())
        }
        with evaluating(self.model):
            said: Tensor = torch.func.functional_call(self.model, averaged, (inputs,))
        return said

    def gather(self, local: Tensor) -> Tensor:
        return self.transport.gather(local[0])

    def mean(self, local: Tensor) -> Tensor:
        return self.transport.start_mean(local[0], exact=True).wait()
