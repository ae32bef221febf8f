"""The least time that waiting for neighbours allows, with the jitter that was really drawn.

A worker may change its parameters for the (t+1)-th time when it has its own gradient, and what its neighbours of step t
have made of theirs: whatever the software, if it computes the same.
"""

from collections.abc import Sequence
from statistics import fmean

from gossamer.topologies import Schedule


def least_waiting_ms(
    schedule: Schedule, sleeps_ms: Sequence[Sequence[float]], computation_ms: float, timed: range
) -> float:
    """Mean over the workers of an iteration among `timed`; `sleeps_ms` by worker and iteration.

    Two workers that always wait for each other's last step, one of which sleeps 30 ms every other iteration:

    >>> from gossamer import topologies
    >>> pair = topologies.build("complete", 2)
    >>> least_waiting_ms(pair, [[0.0] * 8, [30.0, 0.0] * 4], 10.0, range(2, 6))
    25.0
    """
    steps_done = [0.0] * schedule.n
    for iteration in range(timed.stop):
        if iteration == timed.start:
            begun = fmean(steps_done)
        heard = [schedule(iteration - 1).neighbors(i) if iteration else () for i in range(schedule.n)]
        steps_done = [
            max([done + sleeps[iteration] + computation_ms, *(steps_done[j] for j in neighbors)])
            for done, sleeps, neighbors in zip(steps_done, sleeps_ms, heard, strict=True)
        ]
    return (fmean(steps_done) - begun) / len(timed)
