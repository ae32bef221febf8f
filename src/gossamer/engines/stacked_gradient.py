"""Losses and gradients of N replicas of any `nn.Module` in one call: `vmap` of the gradient of one loss."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _NormBase

from ._engine import Loss, evaluating
from .stacked_trace import Traced

Named = Mapping[str, Tensor]

_TUNED_UP_TO = 150
"""So many parameters may a model have for its kernels to be chosen by timing them: with more it takes minutes."""


@dataclass(frozen=True)
class Layout:
    """Where the parameters of one dtype lie in a flat buffer `[..., P]`.

    The filters `[Q, C, K, K]` of a convolution lie there as `[K, K, C, Q]`, which is how kernels read and write them:
    turning them around took a large model (VGG) a quarter of its time. Those of one pixel lie as they are.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Every parameter, as a view `[..., *shape]` of the buffer."""
        parts = torch.split(flat, [prod(shape) for shape in self.shapes], -1)  # its gradient is one concatenation
        return {n: _view(part, shape) for n, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def flatten(self, parameters: Named) -> Tensor:
        """The buffer `[P]` for parameters of one replica."""
        return torch.cat([_turned(parameters[name]).flatten() for name in self.names])


def _turned(parameter: Tensor) -> Tensor:
    return parameter.permute(2, 3, 1, 0) if _are_filters(parameter.shape) else parameter


def _are_filters(shape: torch.Size) -> bool:
    return len(shape) == 4 and prod(shape[2:]) > 1


def _view(part: Tensor, shape: torch.Size) -> Tensor:
    lead = part.shape[:-1]
    if not _are_filters(shape):
        return part.view(*lead, *shape)
    q, c, *sides = shape
    return part.view(*lead, *sides, c, q).movedim((-1, -2), (-4, -3))


class Gradient(NamedTuple):
    """What one pass over a batch of every replica gives."""

    flats: list[Tensor]
    """The gradients, `[N, P]` for each dtype."""
    losses: Tensor
    """`[N]`"""
    buffers: dict[str, Tensor]
    """What the layers (batch norm) have made of their buffers."""


class CannotStack(ValueError):
    """A layer of the model does something that `vmap` cannot do for all replicas at once."""


class StackedGradient:
    """The gradient as a function of all its tensors; keeps none, so engines with the same model may share one.

    With `compute`, parameters and inputs are cast to that dtype and the loss is taken in float32; layers with running
    statistics stay in float32, where a small momentum still counts. `compiled` hands the whole to `torch.compile` on a
    GPU; on a CPU it notes the operations at the first call, and repeats them. `one_by_one` does without `vmap`: slower,
    and runs any model.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        layouts: Sequence[Layout],
        *,
        compute: torch.dtype | None = None,
        compiled: bool = False,
        one_by_one: bool = False,
    ) -> None:
        if compute is not None:
            model = deepcopy(model)  # the casts around its layers are no business of its owner
            _keep_statistics_in_float32(model, compute)
        self.model, self.loss, self.layouts = model, loss, tuple(layouts)
        self.compute = compute
        self.one_by_one = one_by_one
        self._in_full = _names_with_statistics(model) if compute is not None else set()
        self._slopes = grad_and_value(self._loss_of_one, has_aux=True)
        gradient: Callable[..., Any] = vmap(self._gradient_of_one, in_dims=(0, None, 0, 0, 0), randomness="different")
        outputs: Callable[..., Any] = vmap(self._outputs_of_one, in_dims=(0, None, 0, 0))
        self._plain_gradient = self._gradient = self._of_flats(gradient)
        self._outputs = self._of_flats(outputs)
        if compiled and not one_by_one:
            if any(tensor.is_cuda for tensor in model.parameters()):
                from .stacked_compile import compile_stacked

                tuned = sum(len(layout.names) for layout in self.layouts) <= _TUNED_UP_TO
                self._gradient = self._of_flats(compile_stacked(gradient, tuned=tuned))
                self._outputs = self._of_flats(compile_stacked(outputs, tuned=tuned))
            else:
                self._gradient = Traced(self._gradient)

    def _of_flats(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of parameters by name as one of flat buffers. A compiler gets them one by one: if it cut them out
        of the buffer itself, where they lie would be part of its kernels, and layers of one shape could not share."""
        return lambda flats, *rest: function(self._trained(flats), *rest)

    @torch.no_grad()
    def __call__(self, flats: list[Tensor], frozen: Named, buffers: Named, inputs: Tensor, targets: Tensor) -> Gradient:
        if self.one_by_one:
            return self._one_by_one(flats, frozen, buffers, inputs, targets)
        try:
            grads, (losses, changed) = self._gradient(flats, frozen, buffers, inputs, targets)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            if _is_of_vmap(error):
                with self._naming_the_layer():  # not from the start: to the compiler that would be another model
                    self._plain_gradient(flats, frozen, buffers, inputs, targets)
            raise
        return Gradient(grads, losses, changed)

    @torch.no_grad()
    def outputs(self, flats: list[Tensor], frozen: Named, buffers: Named, inputs: Tensor) -> Tensor:
        """What each replica says to its inputs, `[N, B, ...]`, in evaluation mode."""
        with evaluating(self.model):
            if self.one_by_one:
                trained = self._trained(flats)
                said = [
                    self._outputs_of_one(_of_one(trained, i), frozen, _of_one(buffers, i), inputs[i])
                    for i in range(len(inputs))
                ]
                return torch.stack(said)
            all_said: Tensor = self._outputs(flats, frozen, buffers, inputs)
            return all_said

    @torch.no_grad()
    def outputs_of(self, flats: list[Tensor], frozen: Named, buffers: Named, inputs: Tensor) -> Tensor:
        """What a single model says, in evaluation mode."""
        with evaluating(self.model):
            return self._outputs_of_one(self._trained(flats), frozen, buffers, inputs)

    def _trained(self, flats: list[Tensor]) -> dict[str, Tensor]:
        return {n: p for layout, flat in zip(self.layouts, flats, strict=True) for n, p in layout.views(flat).items()}

    def _gradient_of_one(
        self, trained: Named, frozen: Named, buffers: Named, inputs: Tensor, targets: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, dict[str, Tensor]]]:
        """Flat gradients, and what `_loss_of_one` gives."""
        found, rest = self._slopes(trained, frozen, buffers, inputs, targets)
        return [layout.flatten(found) for layout in self.layouts], rest

    def _loss_of_one(
        self, trained: Named, frozen: Named, buffers: Named, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        everything = self._everything(trained, frozen, buffers)
        said = functional_call(self.model, everything, (self._cast(inputs),))
        # functional_call writes buffers that the model has replaced, not only changed, back into the dict
        return self.loss(self._in_float(said), targets), {name: everything[name] for name in buffers}

    def _outputs_of_one(self, trained: Named, frozen: Named, buffers: Named, inputs: Tensor) -> Tensor:
        everything = self._everything(trained, frozen, buffers)
        return self._in_float(functional_call(self.model, everything, (self._cast(inputs),)))

    def _everything(self, trained: Named, frozen: Named, buffers: Named) -> dict[str, Tensor]:
        parameters = {
            name: parameter if name in self._in_full else self._cast(parameter)
            for name, parameter in {**frozen, **trained}.items()
        }
        return {**parameters, **buffers}

    def _cast(self, values: Tensor) -> Tensor:
        return values if self.compute is None or not values.is_floating_point() else values.to(self.compute)

    def _in_float(self, values: Tensor) -> Tensor:
        return values if self.compute is None else values.float()

    def _one_by_one(
        self, flats: list[Tensor], frozen: Named, buffers: Named, inputs: Tensor, targets: Tensor
    ) -> Gradient:
        grads, losses, changed = [torch.empty_like(flat) for flat in flats], [], []
        for i in range(len(inputs)):
            mine = [flat[i].detach().requires_grad_() for flat in flats]
            with torch.enable_grad():
                copies = {n: b.clone() for n, b in _of_one(buffers, i).items()}
                loss, after = self._loss_of_one(self._trained(mine), frozen, copies, inputs[i], targets[i])
                found = torch.autograd.grad(loss, mine, materialize_grads=True)
            for grad, of_mine in zip(grads, found, strict=True):
                grad[i] = of_mine
            losses.append(loss.detach())
            changed.append({name: buffer.detach() for name, buffer in after.items()})
        stacked = {name: torch.stack([one[name] for one in changed]) for name in buffers}
        return Gradient(grads, torch.stack(losses), stacked)

    @contextmanager
    def _naming_the_layer(self) -> Iterator[None]:
        """Turns what `vmap` says of a layer that it cannot do into an error that names the layer."""
        entered: list[str] = []
        names = {module: name for name, module in self.model.named_modules()}

        def enter(module: nn.Module, *_: Any) -> None:
            entered.append(names[module])

        def leave(*_: Any) -> None:
            entered.pop()

        hooks = [module.register_forward_pre_hook(enter) for module in names]
        hooks += [module.register_forward_hook(leave) for module in names]
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if not _is_of_vmap(error) or not entered:
                raise
            name = entered[-1]
            kind = type(self.model.get_submodule(name)).__name__
            layer = f"the layer {name!r} ({kind})" if name else f"the model itself ({kind})"
            raise CannotStack(
                f"{layer} cannot be stacked: {str(error).strip().splitlines()[0]} Write that part with tensor "
                "operations, or give one_by_one=True to run it replica by replica, slower"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()


def _is_of_vmap(error: Exception) -> bool:
    """Whether an error is about stacking, and not the model's own (a wrong shape)."""
    text = str(error)
    return any(
        word in text for word in ("vmap", "functorch", "batching rule", "BatchedTensor", "_rnn", "_lstm", "_gru")
    )


def _of_one(stacked: Named, i: int) -> dict[str, Tensor]:
    return {name: tensor[i] for name, tensor in stacked.items()}


def _names_with_statistics(model: nn.Module) -> set[str]:
    return {
        f"{name}.{parameter}" if name else parameter
        for name, module in model.named_modules()
        if isinstance(module, _NormBase)
        for parameter, _ in module.named_parameters(recurse=False)
    }


def _keep_statistics_in_float32(model: nn.Module, compute: torch.dtype) -> None:
    for module in model.modules():
        if isinstance(module, _NormBase):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
            module.register_forward_hook(lambda _, inputs, output: output.to(compute))
