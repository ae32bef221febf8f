"""What a run has shown, as it grows."""

from dataclasses import dataclass, field
from typing import Any, Literal

Row = dict[str, Any]
Columns = dict[str, list[Any]]


@dataclass(kw_only=True)
class Outcome:
    """What a run has shown so far."""

    status: Literal["running", "finished", "diverged"] = "running"
    reason: str = ""
    """Why it stopped early, in a sentence."""
    epochs: list[Row] = field(default_factory=list)
    """One row an epoch: accuracy, loss, consensus, dispersion, bytes."""
    tensors: Columns = field(default_factory=dict)
    """One entry for each (probe, tensor): dispersion and consensus distance across replicas."""
    norms: Columns = field(default_factory=dict)
    """One entry for each (probe, tensor, replica): the L2 norm before mixing."""
