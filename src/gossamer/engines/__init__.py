"""Engines hold the replicas and supply `mix`: stacked on one device, in virtual time too, or a process each."""

from ._engine import Engine, Loss
from .agreement import all_say, check_same, outline
from .around_step import check_graph
from .asynchronous import Asynchronous
from .asynchronous_pairs import AsynchronousPairs
from .blame import NeighborLost
from .board import host
from .decentralized import Decentralized
from .memory import OutOfMemory
from .one_replica import OneReplica
from .served import Served
from .stacked import MakeOptimizer, StackedEngine
from .stacked_gradient import CannotStack, StackedGradient
from .synchronous import SynchronousEngine
from .transport import Transport
from .virtual import Batches, Ticket, VirtualEngine
from .virtual_pairs import VirtualPairs
from .virtual_server import VirtualServer
from .wire import Wire
from .world import World, join_world

__all__ = [
    "Asynchronous",
    "AsynchronousPairs",
    "Batches",
    "CannotStack",
    "Decentralized",
    "Engine",
    "Loss",
    "MakeOptimizer",
    "NeighborLost",
    "OneReplica",
    "OutOfMemory",
    "Served",
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
    "all_say",
    "check_graph",
    "check_same",
    "host",
    "join_world",
    "outline",
]
