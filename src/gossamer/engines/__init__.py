"""Engines hold the replicas and supply `mix`: stacked on one device, in virtual time too, or one process each."""

from ._engine import Engine, Loss
from .blame import NeighborLost
from .decentralized import Decentralized
from .memory import OutOfMemory
from .stacked import MakeOptimizer, StackedEngine
from .stacked_gradient import CannotStack, StackedGradient
from .synchronous import SynchronousEngine
from .transport import Transport
from .virtual import Batches, Ticket, VirtualEngine, VirtualPairs, VirtualServer
from .wire import Wire
from .world import World, join_world

__all__ = [
    "Batches",
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
    "Ticket",
    "Transport",
    "VirtualEngine",
    "VirtualPairs",
    "VirtualServer",
    "Wire",
    "World",
    "join_world",
]
