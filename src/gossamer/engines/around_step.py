"""Hooks an algorithm around the step of a torch optimizer. Both synchronous engines stand on this."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.algorithms import Algorithm, Mix
from gossamer.topologies import Mixing, Schedule

from .flat import flatten

Probe = Callable[[int], None]
"""Called with the number of the step between the optimizer's step and the algorithm's `after_step`."""


class Mixer(Protocol):
    """How an engine mixes."""

    bytes_sent: float
    """What a worker has sent for training so far."""

    def at(self, mixing: Mixing) -> Mix:
        """What an algorithm may call at a step with these weights."""
        ...


class AroundStep:
    """While attached, `optimizer.step()` runs `before_step`, the step itself, the probes and `after_step`.

    The optimizer is the user's own and stays untouched: nothing is wrapped, `close` takes the hooks off again.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, Tensor],
        *,
        algorithm: Algorithm,
        schedule: Schedule,
        mixer: Mixer,
        lead: tuple[int, ...] = (),
    ) -> None:
        self.optimizer = optimizer
        self.replicas = flatten(parameters.values(), lead)
        self.algorithm = algorithm
        self.schedule = schedule.per_round(algorithm.mixes_every)
        self.probes: list[Probe] = []
        self.num_steps = 0
        names = {id(parameter): name for name, parameter in parameters.items()}
        self.tensor_names = tuple(names[id(p)] for replica in self.replicas for p in replica.parameters)
        self.buffers = buffers
        self.mixer = mixer
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @property
    def bytes_sent(self) -> float:
        return self.mixer.bytes_sent

    def set_lr(self, lr: float) -> None:
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = lr

    @torch.no_grad()
    def _before(self, *_: Any) -> None:
        mix = self.mixer.at(self.schedule(self.num_steps))
        for replica in self.replicas:
            self.algorithm.before_step(replica, mix)

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        step = self.num_steps
        mix = self.mixer.at(self.schedule(step))
        self.num_steps = step + 1
        for probe in self.probes:
            probe(step)
        for replica in self.replicas:
            replica.step = self.num_steps
            self.algorithm.after_step(replica, mix)

    def state_dict(self) -> dict[str, Any]:
        """All that a later `load_state_dict` needs to go on as if nothing had happened."""
        return {
            "num_steps": self.num_steps,
            "bytes_sent": self.bytes_sent,
            "replicas": [replica.state_dict() for replica in self.replicas],
            "buffers": dict(self.buffers),
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.num_steps = saved["num_steps"]
        self.mixer.bytes_sent = saved["bytes_sent"]
        for replica, state in zip(self.replicas, saved["replicas"], strict=True):
            replica.load_state_dict(state)
        for name, buffer in self.buffers.items():
            buffer.copy_(saved["buffers"][name])
        self.optimizer.load_state_dict(saved["optimizer"])

    def close(self) -> None:
        """Take the hooks off; exchanges under way are waited for, so that no neighbour is left alone."""
        for hook in self._hooks:
            hook.remove()
        for replica in self.replicas:
            for exchange in replica.pending.values():
                exchange.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # waiting for neighbours could hide the error behind a timeout
            for hook in self._hooks:
                hook.remove()
