"""Engines hold the replicas and supply `mix`: stacked on one device, or one process each."""

from ._engine import Engine, Loss
from .agreement import check_same, outline
from .blame import NeighborLost
from .decentralized import Decentralized
from .memory import OutOfMemory
from .stacked import MakeOptimizer, StackedEngine
from .stacked_gradient import CannotStack, StackedGradient
from .synchronous import SynchronousEngine
from .transport import Transport
from .wire import Wire
from .world import World, join_world

__all__ = [
    "CannotStack",
    "Decentralized",
    "Engine",
    "Loss",
    "MakeOptimizer",
    "NeighborLost",
    "OutOfMemory",
    "StackedEngine",
    "StackedGradient",
    "SynchronousEngine",
    "Transport",
    "Wire",
    "World",
    "check_same",
    "join_world",
    "outline",
]
