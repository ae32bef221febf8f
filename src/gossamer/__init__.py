"""Gossamer: decentralized deep learning. Many workers, one model, each averaging with a few neighbours.

topologies   who averages with whom, with which weights, when (no torch)
clock        when workers compute, exchange and wait: virtual time (no torch)
algorithms   what one replica does around its optimizer's step
engines      hold the replicas and mix them: stacked on one device, or a process each
metrics      how far the replicas are apart
optim        optimizers made for small local batches
tasks        data, model, loss
bench        experiments, results, reports
recipes      experiments that make a published comparison again

decentralize averages a model with its neighbours' around every step of a training loop of your own
join_world   the workers that take part, for scripts that must know their number before that
simulate     decentralized training of a model of your own, all replicas on one device
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PARTS = ("algorithms", "bench", "clock", "engines", "metrics", "optim", "recipes", "tasks", "topologies")
_FUNCTIONS = {"decentralize": "_decentralize", "join_world": "engines", "simulate": "_simulate"}

if TYPE_CHECKING:
    from ._decentralize import decentralize as decentralize
    from ._simulate import simulate as simulate
    from .engines import join_world as join_world


def __getattr__(name: str) -> Any:
    """Import a part when it is first used: `gossamer topo` must answer without waiting for torch."""
    if name in _PARTS:
        return importlib.import_module(f"gossamer.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"gossamer.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'gossamer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_PARTS, *_FUNCTIONS, "__version__"]
