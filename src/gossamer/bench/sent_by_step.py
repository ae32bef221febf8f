"""What a training has sent, step by step: for methods that send at one step this and at another that."""

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.engines import Engine

Sent = list[float]
"""Bytes of all workers together: with neighbours and in averages over all, before the optimizer's step, and after."""


class SentByStep:
    """Looks at every step, between what is sent before it and after; `steps` are those of earlier, and grow."""

    def __init__(self, engine: Engine, steps: list[Sent]) -> None:
        self._engine, self.steps = engine, steps
        self._marks = [self._now()]
        engine.probes.append(self._look)

    def read(self) -> None:
        """Take in the steps since the last time. All holders of replicas must call it alike."""
        if len(self._marks) == 1:
            return
        marks = np.stack([*self._marks, self._now()], 1)  # [L, 2 + steps, 2, 2]
        self._marks = [marks[:, -1]]
        moved = np.diff(marks, axis=1)
        parts = np.stack([moved[:, :-1, 0], moved[:, 1:, 1]], 2)  # what went before each step, and after it
        everybody = self._engine.gather(torch.from_numpy(parts)).sum(0)
        self.steps += everybody.flatten(1).tolist()

    def _look(self, _: int) -> None:
        self._marks.append(self._now())

    def _now(self) -> NDArray[np.float64]:
        """So far, `[L, before or after, neighbours or all]`."""
        engine = self._engine
        all_sent = np.stack([engine.bytes_sent - engine.bytes_averaged, engine.bytes_averaged], -1)
        before = np.stack([engine.bytes_before_steps - engine.bytes_of_gradients, engine.bytes_of_gradients], -1)
        return np.stack([before, all_sent - before], 1)
