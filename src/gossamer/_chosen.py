"""What a user's choice of a topology and an algorithm means: names become schedules and methods."""

from gossamer import algorithms, topologies
from gossamer.algorithms import Algorithm
from gossamer.topologies import Mixing, Schedule


def chosen_algorithm(algorithm: str | Algorithm) -> Algorithm:
    """An algorithm by name, or as it is."""
    made = algorithms.build(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(made, Algorithm):
        raise ValueError(
            f"algorithm={made!r}: give a name, such as 'd-psgd', or what gossamer.algorithms.DPSGD() returns"
        )
    return made


def chosen_schedule(
    topology: str | Mixing | Schedule,
    n: int,
    *,
    steps_per_epoch: int | None,
    epochs: int | None,
    seed: int,
    local_size: int | None = None,
) -> Schedule:
    """A schedule by name, a graph that stays, or one as it is; where it changes by the epoch, it must know epochs."""
    if isinstance(topology, Mixing):
        return topologies.constant(topology)
    if isinstance(topology, Schedule):
        return topology
    if not isinstance(topology, str):
        raise ValueError(
            f"topology={topology!r}: give a name, such as 'ring', or what gossamer.topologies.ring(8) returns"
        )
    epoch = 1 if steps_per_epoch is None else steps_per_epoch
    schedule = topologies.build(topology, n, steps_per_epoch=epoch, epochs=epochs, local_size=local_size, seed=seed)
    follows_epochs = schedule.period is None and schedule.per_round(2) is schedule
    needed = {"steps_per_epoch": steps_per_epoch, "epochs": epochs}
    if follows_epochs and any(value is None and f"{key}=" not in topology for key, value in needed.items()):
        raise ValueError(
            f"{topology} changes from epoch to epoch: give steps_per_epoch, of one worker, as len(loader) has it, and "
            f"epochs; got {steps_per_epoch} and {epochs}"
        )
    return schedule
