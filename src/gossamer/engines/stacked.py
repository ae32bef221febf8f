"""The stacked engine: N replicas of any `nn.Module` on one device, in one tensor each."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.algorithms import Algorithm
from gossamer.topologies import Schedule

from ._engine import Loss
from .around_step import AroundStep
from .cuda_graph import Replayed
from .flat import FlatReplica
from .memory import OutOfMemory, check_memory, replicas_that_fit
from .numbers import check_numbers
from .stacked_gradient import Gradient, Layout, StackedGradient
from .stacked_mix import StackedMix

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

_NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch that look at a tensor as a whole: over stacked parameters they would mix the replicas."""


class StackedEngine(AroundStep):
    """Trains `num_replicas` copies of `model`, each on data of its own, as one program.

    All trained parameters of a dtype lie in one buffer `[N, P]`, and the optimizer steps that buffer: an elementwise
    optimizer over it *is* N optimizers, so nothing but `mix` lets one replica see another. `model` is the template: it
    is moved to the device, its values are copied N times at the start, and training leaves them as they are. Random
    numbers (dropout) differ from replica to replica.

    `compute` casts parameters and inputs to that dtype for the model's computation. `compiled` hands it to
    `torch.compile`; on a CPU it is only traced. `one_by_one` runs models that cannot be stacked, replica by replica. On
    a GPU the computation is recorded and replayed as a CUDA graph. Where the activations of all replicas do not fit
    into memory, they are computed some replicas at a time. `gradient` is that of an earlier engine with the same model
    and settings, to be spared compiling it again.
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
        compute: torch.dtype | None = None,
        compiled: bool = False,
        one_by_one: bool = False,
        gradient: StackedGradient | None = None,
    ) -> None:
        if schedule.n != num_replicas:
            raise ValueError(
                f"{schedule.name} is for {schedule.n} workers, but there are {num_replicas} replicas: "
                f"build it for {num_replicas}"
            )
        self.model = model.to(device)
        self._n = num_replicas
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        check_memory(num_replicas, trained.values(), torch.device(device))
        check_numbers(self.model)
        self._frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self._buffers = {name: _stack(buffer, num_replicas) for name, buffer in model.named_buffers()}
        layouts, replicas = [], []
        for dtype in dict.fromkeys(p.dtype for p in trained.values()):
            group = {name: p for name, p in trained.items() if p.dtype == dtype}
            shapes = {name: p.shape for name, p in group.items()}
            layouts.append(Layout(tuple(shapes), tuple(shapes.values())))
            flat = _stack(layouts[-1].flatten({name: p.detach() for name, p in group.items()}), num_replicas)
            replicas.append(FlatReplica({f"all {dtype}": nn.Parameter(flat)}, (num_replicas,), shapes))
        self._flats = [parameter for replica in replicas for parameter in replica.parameters.values()]
        stepper = optimizer(self._flats)
        if type(stepper).__name__ in _NOT_ELEMENTWISE:
            raise ValueError(
                f"{type(stepper).__name__} looks at whole tensors, so stacked replicas would see each other: "
                "take an elementwise optimizer (SGD, Adam, AdamW, …) or the processes engine"
            )
        super().__init__(
            stepper,
            replicas,
            lambda: self._buffers,
            algorithm=algorithm,
            schedule=schedule,
            mixer=StackedMix(num_replicas),
        )
        self.gradient = gradient or StackedGradient(
            self.model, loss, layouts, compute=compute, compiled=compiled, one_by_one=one_by_one
        )
        self._at_once = num_replicas
        self._fits = False
        self._gradients = self._prepared()
        self._say = Replayed(self._outputs) if self._is_recorded and not compiled else self._outputs

    @property
    def num_replicas(self) -> int:
        return self._n

    @property
    def local(self) -> slice:
        return slice(0, self._n)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name, as views `[N, ...]`."""
        flats = (replica.params for replica in self.replicas)
        return {
            n: p
            for layout, flat in zip(self.gradient.layouts, flats, strict=True)
            for n, p in layout.views(flat).items()
        }

    @property
    def replicas_at_once(self) -> int:
        """How many replicas are computed in one call: all of them, or as many as memory holds."""
        return self._at_once

    def flats(self) -> list[Tensor]:
        return [replica.params for replica in self.replicas]

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        for what, batches in (("inputs", inputs), ("targets", targets)):
            if len(batches) != self._n:
                raise ValueError(
                    f"{what} {list(batches.shape)} are for {len(batches)} replicas, but there are {self._n}: give a "
                    f"batch for each, [{self._n}, batch, ...]"
                )
        grads, losses = self._within_memory(inputs, targets)
        for flat, grad in zip(self._flats, grads, strict=True):
            flat.grad = grad
        self.optimizer.step()
        return losses.clone()  # the next step may overwrite them

    def _within_memory(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        while True:
            try:
                result = self._gradients(inputs, targets)
                self._fits = True
                return result
            except torch.OutOfMemoryError as error:
                if self._at_once == 1:
                    raise OutOfMemory(
                        f"the device is out of memory with {self._n} replicas, even computing one at a time: about "
                        f"{replicas_that_fit(self._n, torch.device(inputs.device))} would fit"
                    ) from error
            self._at_once = -(-self._at_once // 2)
            self._gradients = self._prepared()
            torch.cuda.empty_cache()

    def _prepared(self) -> Callable[[Tensor, Tensor], tuple[list[Tensor], Tensor]]:
        return Replayed(self._compute) if self._is_recorded else self._compute

    @property
    def _is_recorded(self) -> bool:
        """Whether kernels are launched as a CUDA graph; a model that is run replica by replica may ask for values on
        the way, which no recording can answer."""
        return self.flats()[0].is_cuda and not self.gradient.one_by_one

    @torch.no_grad()
    def _compute(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        """Gradients `[N, P]` for each dtype, and losses `[N]`; the buffers are brought up to date."""
        if self._at_once == self._n and self._fits:
            found = self.gradient(self._points(), self._frozen, self._buffers, inputs, targets)
            self._keep(found.buffers, slice(None))
            return found.flats, found.losses
        grads, losses, done = [torch.empty_like(flat) for flat in self.flats()], [], []
        for start in range(0, self._n, self._at_once):
            some = slice(start, start + self._at_once)
            found = self._of_some(some, inputs, targets)
            for grad, of_some in zip(grads, found.flats, strict=True):
                grad[some] = of_some
            losses.append(found.losses)
            done.append((some, found.buffers))
        for some, buffers in done:  # not before all is computed: memory may run out on the way, and all begins anew
            self._keep(buffers, some)
        return grads, torch.cat(losses)

    def _of_some(self, some: slice, inputs: Tensor, targets: Tensor) -> Gradient:
        flats = [flat[some] for flat in self._points()]
        buffers = {name: buffer[some].clone() for name, buffer in self._buffers.items()}
        return self.gradient(flats, self._frozen, buffers, inputs[some], targets[some])

    def _points(self) -> list[Tensor]:
        """Where gradients are taken, `[N, P]` for each dtype."""
        return self.flats()

    def _keep(self, buffers: Mapping[str, Tensor], some: slice) -> None:
        """Take over what a layer (batch norm) has written into its buffers during the forward pass."""
        for name, buffer in buffers.items():
            if buffer.data_ptr() != self._buffers[name].data_ptr():
                self._buffers[name][some].copy_(buffer)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        said = self._say(inputs)
        return said.clone() if isinstance(self._say, Replayed) else said  # the next call overwrites them

    def _outputs(self, inputs: Tensor) -> Tensor:
        return self.gradient.outputs(self.flats(), self._frozen, self._buffers, inputs)

    @torch.no_grad()
    def averaged_outputs(self, inputs: Tensor) -> Tensor:
        mean = {name: mean_of_replicas(buffer) for name, buffer in self._buffers.items()}
        return self.gradient.outputs_of([flat.mean(0) for flat in self.flats()], self._frozen, mean, inputs)

    def gather(self, local: Tensor) -> Tensor:
        return local

    def mean(self, local: Tensor) -> Tensor:
        return local.mean(0)


def _stack(tensor: Tensor, num_replicas: int) -> Tensor:
    return tensor.detach().expand(num_replicas, *tensor.shape).clone()


def mean_of_replicas(stacked: Tensor) -> Tensor:
    """Of a buffer; what counts (batches seen) is the same everywhere."""
    return stacked.mean(0) if stacked.is_floating_point() else stacked[0]
