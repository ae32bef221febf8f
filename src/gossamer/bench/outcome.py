"""What a run has shown, as it grows."""

from dataclasses import dataclass, field
from typing import Any, Literal

Row = dict[str, Any]
Columns = dict[str, list[Any]]


@dataclass(kw_only=True)
class Outcome:
    """What a run has shown so far: all that a checkpoint keeps of it. The norms are too many; see `norm_parts`."""

    status: Literal["running", "finished", "diverged"] = "running"
    reason: str = ""
    """Why it stopped early, in a sentence."""
    num_epochs: int = 0
    """Epochs that are complete. Not all of them have a row: see `Run.is_evaluated`."""
    seconds: float = 0.0
    """What training has taken, without tests and checkpoints."""
    staleness: dict[int, int] = field(default_factory=dict)
    """How many gradients were so stale, where a method is asynchronous."""
    sent: list[list[float]] = field(default_factory=list)
    """What each step has sent, where a method decides that at every step: see `sent_by_step`."""
    epochs: list[Row] = field(default_factory=list)
    """A row for each epoch after which the models were tested: accuracy, loss, consensus, dispersion, bytes."""
    probes: list[Row] = field(default_factory=list)
    """A row for each look inside: consensus distance of all parameters, dispersion averaged over the tensors."""
    tensors: Columns = field(default_factory=dict)
    """An entry for each (probe, tensor): dispersion and consensus distance across replicas."""
