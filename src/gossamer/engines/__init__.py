"""Engines hold the replicas and supply `mix`: stacked on one device, or one process each, in step or out of it."""

from ._engine import Engine, Loss
from .agreement import check_same, outline
from .asynchronous import Asynchronous
from .asynchronous_pairs import AsynchronousPairs
from .blame import NeighborLost
from .decentralized import Decentralized
from .memory import OutOfMemory
from .served import Served
from .stacked import MakeOptimizer, StackedEngine
from .stacked_gradient import CannotStack, StackedGradient
from .synchronous import SynchronousEngine
from .transport import Transport
from .wire import Wire
from .world import World, join_world

__all__ = [
    "Asynchronous",
    "AsynchronousPairs",
    "CannotStack",
    "Decentralized",
    "Engine",
    "Loss",
    "MakeOptimizer",
    "NeighborLost",
    "OutOfMemory",
    "Served",
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
