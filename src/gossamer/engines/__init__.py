"""Engines hold the replicas and supply `mix`: stacked on one device, or one process each."""

from ._engine import Engine
from .memory import OutOfMemory
from .stacked import StackedEngine
from .stacked_gradient import CannotStack, StackedGradient
from .synchronous import SynchronousEngine
from .transport import NeighborLost, Transport

__all__ = [
    "CannotStack",
    "Engine",
    "NeighborLost",
    "OutOfMemory",
    "StackedEngine",
    "StackedGradient",
    "SynchronousEngine",
    "Transport",
]
