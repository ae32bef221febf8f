"""Engines hold the replicas and supply `mix`: stacked on one device, or one process each."""

from ._engine import Engine
from .stacked import StackedEngine
from .synchronous import SynchronousEngine
from .transport import NeighborLost, Transport

__all__ = ["Engine", "NeighborLost", "StackedEngine", "SynchronousEngine", "Transport"]
