"""Gossamer: decentralized deep learning. Many workers, one model, each averaging with a few neighbours.

topologies   who averages with whom, with which weights, when (no torch)
algorithms   what one replica does around its optimizer's step
engines      hold the replicas and mix them: stacked on one device, or a process each
metrics      how far the replicas are apart
tasks        data, model, loss
bench        experiments, results, reports
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"

_PARTS = ("algorithms", "bench", "engines", "metrics", "tasks", "topologies")


def __getattr__(name: str) -> ModuleType:
    """Import a part when it is first used: `gossamer topo` must answer without waiting for torch."""
    if name in _PARTS:
        return importlib.import_module(f"gossamer.{name}")
    raise AttributeError(f"module 'gossamer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_PARTS, "__version__"]
