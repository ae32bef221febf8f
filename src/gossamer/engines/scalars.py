"""Figures of a training as scalars, for TensorBoard and its like."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class ScalarWriter(Protocol):
    """As `torch.utils.tensorboard.SummaryWriter` does it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


def scalar_probe(
    writer: ScalarWriter | None, names: Sequence[str], figures: Callable[[], Mapping[str, float]], *, every: int
) -> Callable[[int], None]:
    """What to call after each step, counted from 0: every so many it takes the figures, and writes those named.

    Without a writer they are taken all the same: other ranks may be waiting for this one's part in them.
    """
    if every < 1:
        raise ValueError(f"every={every}: give a number of steps, 1 or more")

    def probe(step: int) -> None:
        if (step + 1) % every:
            return
        now = figures()
        if writer is not None:
            for name in names:
                writer.add_scalar(f"gossamer/{name}", now[name], step + 1)

    return probe
