"""The least time that waiting for neighbours allows, with the jitter that was really drawn.

A worker may change its parameters for the (t+1)-th time when it has its own gradient, and what its neighbours of step t
have made of theirs, or those of an earlier step: whatever the software, if it computes the same.
"""

from collections.abc import Sequence
from statistics import fmean

from gossamer.topologies import Schedule


def least_waiting_ms(
    schedule: Schedule, sleeps_ms: Sequence[Sequence[float]], computation_ms: float, timed: range, behind: int = 1
) -> float:
    """Mean over the workers of an iteration among `timed`; `sleeps_ms` by worker and iteration.

    Neighbours are heard as they were `behind` iterations before.

    Two workers that always wait for each other's last step, one of which sleeps 30 ms every other iteration:

    >>> from gossamer import topologies
    >>> pair = topologies.build("complete", 2)
    >>> least_waiting_ms(pair, [[0.0] * 8, [30.0, 0.0] * 4], 10.0, range(2, 6))
    25.0

    Neither waits at all where each hears what the other did the time before, and they are as fast on average:

    >>> least_waiting_ms(pair, [[0.0, 30.0] * 4, [30.0, 0.0] * 4], 10.0, range(2, 6), behind=2)
    25.0
    """
    steps_done = [[0.0] * schedule.n]
    for iteration in range(timed.stop):
        computed = [
            done + sleeps[iteration] + computation_ms for done, sleeps in zip(steps_done[-1], sleeps_ms, strict=True)
        ]
        if iteration < behind:
            steps_done.append(computed)
            continue
        mixing, heard = schedule(iteration - behind), steps_done[1 + iteration - behind]
        steps_done.append([max([computed[i], *(heard[j] for j in mixing.neighbors(i))]) for i in range(schedule.n)])
    return (fmean(steps_done[timed.stop]) - fmean(steps_done[timed.start])) / len(timed)
