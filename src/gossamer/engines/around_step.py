"""Hooks an algorithm around the step of a torch optimizer. Both synchronous engines stand on this."""

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.algorithms import Algorithm, Mix
from gossamer.topologies import Schedule

from .flat import FlatReplica

Probe = Callable[[int], None]
"""Called with the number of the step between the optimizer's step and the algorithm's `after_step`."""


class Mixer(Protocol):
    """How an engine mixes."""

    bytes_sent: NDArray[np.float64]
    """What each of the workers held here has sent for training so far, `[L]`."""
    bytes_averaged: NDArray[np.float64]
    """The part of it that went into means over all replicas."""

    def at(self, schedule: Schedule, step: int) -> Mix:
        """What an algorithm may call at a step of the schedule."""
        ...


def check_graph(algorithm: Algorithm, schedule: Schedule) -> None:
    """Refuse a graph on which a method cannot run."""
    if algorithm.needs_constant_graph and schedule.period != 1:
        raise ValueError(
            f"{type(algorithm).__name__} keeps what its neighbours have sent so far, so these must stay the same, and "
            f"those of {schedule.name!r} change; take a graph that stays, such as ring or exponential"
        )
    if not algorithm.averages_over_all and schedule.period == 1 and not schedule(0).is_connected:
        raise ValueError(
            f"{schedule.name!r} leaves some of its {schedule.n} workers apart for ever, and {type(algorithm).__name__} "
            "averages over that graph alone, so replicas never come together; take a graph that connects all, or "
            "listening-ada, which averages over everybody now and then"
        )
    mixings = dict.fromkeys(map(schedule, schedule.window)) if algorithm.needs_doubly_stochastic else {}
    if uneven := [mixing for mixing in mixings if not mixing.is_doubly_stochastic]:
        counts: NDArray[np.float64] = uneven[0].weights.sum(axis=0)
        raise ValueError(
            f"{type(algorithm).__name__} takes plain averages, and in those of {schedule.name!r} the model of rank "
            f"{counts.argmax()} counts {counts.max():.3g} times, that of rank {counts.argmin()} {counts.min():.3g} "
            "times, so replicas would agree on something that is not their mean; take push-sum, which makes up for it, "
            "or a graph where all are listened to alike, such as directed-exponential"
        )


class AroundStep:
    """While attached, `optimizer.step()` runs `before_step`, the step itself, the probes and `after_step`.

    The optimizer is the user's own: nothing is wrapped, and `close` takes the hooks off again. The parameters that it
    steps have their values in the flat buffers of `replicas`.
    """

    is_asynchronous = False
    """Whether it runs methods whose workers do not wait for each other."""

    def __init__(
        self,
        optimizer: Optimizer,
        replicas: list[FlatReplica],
        buffers: Callable[[], Mapping[str, Tensor]],
        *,
        algorithm: Algorithm,
        schedule: Schedule,
        mixer: Mixer,
    ) -> None:
        if algorithm.is_asynchronous and not self.is_asynchronous:
            raise ValueError(
                f"{type(algorithm).__name__} needs workers that do not wait for each other, and this engine takes all "
                "steps together: run it by gossamer.decentralize, a process a worker"
            )
        check_graph(algorithm, schedule)
        self.optimizer = optimizer
        self.replicas = replicas
        for replica in replicas:
            replica.stepped_by(optimizer)
        self.algorithm = algorithm
        self.schedule = schedule.per_round(algorithm.mixes_every)
        self.probes: list[Probe] = []
        self._grads_put_aside: dict[nn.Parameter, Tensor | None] = {}
        self._outermost: FrameType | None = None
        """Where the user's `step` was called; one that raised has left the stack, so nothing need be reset."""
        self.num_steps = 0
        self._num_stepped = sum(len(param_group["params"]) for param_group in optimizer.param_groups)
        self.tensor_names = tuple(name for replica in replicas for name in replica.names)
        self.buffers = buffers
        self.mixer = mixer
        self.bytes_before_steps = np.zeros_like(mixer.bytes_sent)
        self.bytes_of_gradients = np.zeros_like(mixer.bytes_averaged)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @property
    def bytes_sent(self) -> NDArray[np.float64]:
        return self.mixer.bytes_sent

    @property
    def bytes_averaged(self) -> NDArray[np.float64]:
        return self.mixer.bytes_averaged

    def set_lr(self, lr: float) -> None:
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = lr

    def _before(self, optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        caller = sys._getframe(1)
        if self._outermost is not None and self._outermost in _frames_from(caller):
            return  # an optimizer whose step calls that of its parent class: torch runs the hooks of both
        self._outermost = caller
        self._before_step(arguments, keywords)

    @torch.no_grad()
    def _before_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if any(callable(argument) for argument in (*arguments, *keywords.values())):
            raise ValueError(
                "optimizer.step(closure) makes its gradients inside the step, where no method can reach them: "
                "call backward() first, then step() without a closure"
            )
        if self.algorithm.takes_gradients and getattr(self.optimizer, "found_inf", None) is not None:
            raise ValueError(
                f"a GradScaler leaves it to a fused optimizer to unscale and to skip, after {self.algorithm!r} has had "
                "the gradients: make the optimizer with fused=False"
            )
        self._check_parameters()
        mix = self.mixer.at(self.schedule, self.num_steps)
        if len(self.replicas) > 1 and self.algorithm.steps_under_way and self._is_last_hook:
            self._step_one_by_one(mix)
            return
        sent, averaged = self.bytes_sent.copy(), self.bytes_averaged.copy()
        for replica in self.replicas:
            self.algorithm.before_step(replica, mix)
        self.bytes_before_steps += self.bytes_sent - sent
        self.bytes_of_gradients += self.bytes_averaged - averaged

    def _after(self, *_: Any) -> None:
        if sys._getframe(1) is self._outermost:
            self._outermost = None
            self._after_step()

    @torch.no_grad()
    def _after_step(self) -> None:
        step = self.num_steps
        mix = self.mixer.at(self.schedule, step)
        self.num_steps = step + 1
        for probe in self.probes:
            probe(step)
        if self._grads_put_aside:
            for parameter, grad in self._grads_put_aside.items():
                parameter.grad = grad
            self._grads_put_aside.clear()
            return
        for replica in self.replicas:
            replica.step = self.num_steps
            self.algorithm.after_step(replica, mix)

    @property
    def _is_last_hook(self) -> bool:
        """Whether no other of the user's has still to see the gradients of the whole model."""
        return bool(next(reversed(self.optimizer._optimizer_step_pre_hooks)) == self._hooks[0].id)

    def _step_one_by_one(self, mix: Mix) -> None:
        """Step one replica's parameters after the other's: each is on its way while the next is stepped.

        An optimizer leaves parameters without a gradient alone. So all gradients are put aside, those of one replica
        come back for a step, and the step that the user has called, which follows, finds none left to use. What an
        optimizer counts in its parameter groups, every part counts from the same number.
        """
        step = type(self.optimizer).step
        step = getattr(step, "__wrapped__", step)  # without the hooks: they are for the user's step
        parameters = [p for replica in self.replicas for p in replica.parameters.values()]
        grads = {parameter: parameter.grad for parameter in parameters}
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        for parameter in parameters:
            parameter.grad = None
        for replica in self.replicas:
            for parameter in replica.parameters.values():
                parameter.grad = grads[parameter]
            self.algorithm.before_step(replica, mix)
            step(self.optimizer)
            for group, setting in zip(self.optimizer.param_groups, settings, strict=True):
                group.update(setting)
            replica.step = self.num_steps + 1
            self.algorithm.after_step(replica, mix)
            for parameter in replica.parameters.values():
                grads[parameter], parameter.grad = parameter.grad, None
        self._grads_put_aside = grads

    def answer(self) -> None:
        """Take part in a step of the others without one's own: for a worker that has no data for it.

        An optimizer leaves parameters without a gradient alone, so this is a step that only mixes; where all replicas
        take every step together, one with a gradient of zero.
        """
        for replica in self.replicas:
            for parameter in replica.parameters.values():
                parameter.grad = None
        self.optimizer.step()

    def _check_parameters(self) -> None:
        """A parameter that has left its flat buffer, or came later, would be trained but never mixed: say so."""
        stepped = sum(len(param_group["params"]) for param_group in self.optimizer.param_groups)
        if stepped != self._num_stepped:
            raise ValueError(
                f"the optimizer steps {stepped} parameters, but had {self._num_stepped} when the engine was attached: "
                "add parameters first, then attach"
            )
        moved = [name for replica in self.replicas for name in replica.moved()]
        if moved:
            raise ValueError(
                f"parameter {moved[0]!r} was moved after the engine was attached (by .to(), .double() or .data): "
                "move the model first, then attach"
            )

    def state_dict(self) -> dict[str, Any]:
        """All that a later `load_state_dict` needs to go on as if nothing had happened.

        Waits for exchanges under way, so all ranks must call it, between the same steps.
        """
        return {
            "num_steps": self.num_steps,
            "bytes_sent": self.bytes_sent.tolist(),
            "bytes_averaged": self.bytes_averaged.tolist(),
            "bytes_before_steps": self.bytes_before_steps.tolist(),
            "bytes_of_gradients": self.bytes_of_gradients.tolist(),
            "replicas": [replica.state_dict() for replica in self.replicas],
            "buffers": dict(self.buffers()),
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.num_steps = saved["num_steps"]
        self.mixer.bytes_sent = np.array(saved["bytes_sent"])
        self.mixer.bytes_averaged = np.array(saved["bytes_averaged"])
        self.bytes_before_steps = np.array(saved["bytes_before_steps"])
        self.bytes_of_gradients = np.array(saved["bytes_of_gradients"])
        for replica, state in zip(self.replicas, saved["replicas"], strict=True):
            replica.load_state_dict(state)
        for name, buffer in self.buffers().items():
            buffer.copy_(saved["buffers"][name])
        self.optimizer.load_state_dict(saved["optimizer"])

    def close(self) -> None:
        """Take the hooks off; exchanges under way are waited for, so that no neighbour is left alone."""
        self.detach()
        for replica in self.replicas:
            replica.finish_pending()

    def detach(self) -> None:
        """Take the hooks off, and wait for nobody."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # waiting for neighbours could hide the error behind a timeout
            self.detach()


def _frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and all that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back
