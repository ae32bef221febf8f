"""Engines hold the replicas and supply `mix`: stacked on one device, or one process each."""

from ._engine import Engine, Loss
from .memory import OutOfMemory
from .stacked import MakeOptimizer, StackedEngine
from .stacked_gradient import CannotStack, StackedGradient
from .synchronous import SynchronousEngine
from .transport import NeighborLost, Transport

__all__ = [
    "CannotStack",
    "Engine",
    "Loss",
    "MakeOptimizer",
    "NeighborLost",
    "OutOfMemory",
    "StackedEngine",
    "StackedGradient",
    "SynchronousEngine",
    "Transport",
]
