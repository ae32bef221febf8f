"""The stacked engine: N replicas of any `nn.Module` on one device, in one tensor each."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import Optimizer

from gossamer.algorithms import Algorithm
from gossamer.topologies import Schedule

from ._engine import Loss, evaluating
from .around_step import AroundStep
from .stacked_mix import StackedMix

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

_NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch that look at a tensor as a whole: over stacked parameters they would mix the replicas."""


class StackedEngine(AroundStep):
    """Trains `num_replicas` copies of `model`, each on data of its own, as one program.

    Every parameter and buffer gets a leading axis of N. The gradient of the sum of N losses is N separate gradients,
    and an elementwise optimizer over stacked parameters *is* N optimizers, so nothing but `mix` lets one replica
    see another. `model` is the template: it is moved to the device, its values are copied N times at the start, and
    training leaves them as they are. Random numbers (dropout) differ from replica to replica.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: MakeOptimizer,
        *,
        num_replicas: int,
        algorithm: Algorithm,
        schedule: Schedule,
        loss: Loss,
        device: torch.device | str = "cpu",
    ) -> None:
        if schedule.n != num_replicas:
            raise ValueError(
                f"{schedule.name} is for {schedule.n} workers, but there are {num_replicas} replicas: "
                f"build it for {num_replicas}"
            )
        self.model = model.to(device)
        self.loss = loss
        self._n = num_replicas
        self.parameters: dict[str, nn.Parameter] = {
            name: nn.Parameter(_stack(p, num_replicas)) for name, p in model.named_parameters() if p.requires_grad
        }
        self._frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self._buffers = {name: _stack(buffer, num_replicas) for name, buffer in model.named_buffers()}
        stepper = optimizer(self.parameters.values())
        if type(stepper).__name__ in _NOT_ELEMENTWISE:
            raise ValueError(
                f"{type(stepper).__name__} looks at whole tensors, so stacked replicas would see each other: "
                "take an elementwise optimizer (SGD, Adam, AdamW, …) or the processes engine"
            )
        super().__init__(
            stepper,
            self.parameters,
            lambda: self._buffers,
            algorithm=algorithm,
            schedule=schedule,
            mixer=StackedMix(num_replicas),
            lead=(num_replicas,),
        )

    @property
    def num_replicas(self) -> int:
        return self._n

    @property
    def local(self) -> slice:
        return slice(0, self._n)

    def flats(self) -> list[Tensor]:
        return [replica.params for replica in self.replicas]

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        losses, buffers = vmap(self._loss_of_one, randomness="different")(
            self.parameters, self._buffers, inputs, targets
        )
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._keep(buffers)
        self.optimizer.step()
        return losses.detach()

    def _loss_of_one(
        self, trained: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        everything = {**self._frozen, **trained, **buffers}
        said = functional_call(self.model, everything, (inputs,))
        # functional_call writes buffers that the model has replaced, not only changed, back into the dict
        return self.loss(said, targets), {name: everything[name] for name in buffers}

    @torch.no_grad()
    def _keep(self, buffers: Mapping[str, Tensor]) -> None:
        """Take over what a layer (batch norm) has written into its buffers during the forward pass."""
        for name, buffer in buffers.items():
            if buffer.data_ptr() != self._buffers[name].data_ptr():
                self._buffers[name].copy_(buffer)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        with evaluating(self.model):
            said: Tensor = vmap(self._output_of_one)(self.parameters, self._buffers, inputs)
        return said

    @torch.no_grad()
    def averaged_outputs(self, inputs: Tensor) -> Tensor:
        mean = {name: _mean_of_replicas(tensor) for name, tensor in {**self.parameters, **self._buffers}.items()}
        with evaluating(self.model):
            return self._output_of_one(mean, {}, inputs)

    def _output_of_one(self, trained: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        said: Tensor = functional_call(self.model, {**self._frozen, **trained, **buffers}, (inputs,))
        return said

    def gather(self, local: Tensor) -> Tensor:
        return local

    def mean(self, local: Tensor) -> Tensor:
        return local.mean(0)


def _stack(tensor: Tensor, num_replicas: int) -> Tensor:
    return tensor.detach().expand(num_replicas, *tensor.shape).clone()


def _mean_of_replicas(stacked: Tensor) -> Tensor:
    return stacked.mean(0) if stacked.is_floating_point() else stacked[0]
