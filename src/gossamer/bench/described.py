"""The cluster that a profile describes, as the clock of a run needs it."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossamer.clock import Cluster, Rounds, Traffic
from gossamer.plan import AllReduce, Decentralized, Gradients, Profile
from gossamer.topologies import Mixing, Schedule


def profile_text(path: str) -> str:
    """What a run keeps of the profile in a file: results say by themselves what their clock was."""
    return replace(Profile.load(Path(path)), pairs=()).to_json()


@lru_cache(maxsize=64)
def profile_for(text: str, workers: int) -> Profile:
    """The profile that a run keeps, for its number of workers."""
    return Profile.from_json(text).resized(workers)


def cluster_of(text: str, workers: int, seed: int) -> Cluster:
    """The machines; a gradient takes what forward, backward and the optimizer's step take together."""
    profile = profile_for(text, workers)
    mean_s = profile.work.computation_s + sum(profile.work.update_s)
    computation = replace(profile.cluster.computation, mean_s=mean_s)
    return replace(profile.cluster, computation=computation, seed=seed)


class PlannedRounds:
    """The planner's recurrences as the clock of a training: bucket by bucket, behind backward or the next gradient."""

    def __init__(
        self, text: str, workers: int, seed: int, schedule: Schedule | None, *, steps_under_way: int = 1
    ) -> None:
        """`schedule` is that of overlapped D-PSGD; None is all-reduce."""
        profile = profile_for(text, workers)
        cluster = replace(profile.cluster, seed=seed)
        self._times, self._mean_s = cluster.times(), cluster.computation.mean_s
        self._recurrence = (
            AllReduce(profile.work, cluster, slowed=profile.collective)
            if schedule is None
            else Decentralized(profile.work, cluster, schedule, steps_under_way=steps_under_way)
        )

    @property
    def now_s(self) -> float:
        return float(self._recurrence.ready_s.max())

    @property
    def num_steps(self) -> int:
        return self._recurrence.num_steps

    def bytes_of(self, step: int) -> float:
        """Nothing to compare with: the methods that it is for send just what the recurrences have."""
        return 0.0

    def advance(self, volume: float = 1.0) -> None:
        assert volume == 1.0
        self._recurrence.advance(self._times.of_all() / self._mean_s)


class RoundsBehindBackward(Rounds):
    """Gradients are exchanged behind backward, models after the step: for methods that exchange both, as they like."""

    def __init__(self, text: str, workers: int, seed: int, schedule: Schedule | None) -> None:
        profile, cluster = profile_for(text, workers), cluster_of(text, workers, seed)
        super().__init__(cluster, schedule, profile.work.model_bytes)
        self._mean_s = cluster.computation.mean_s
        self._gradients = Gradients(profile.work, cluster, slowed=profile.collective)

    def _with_gradients(self, mixing: Mixing | None, traffic: Traffic) -> NDArray[np.float64]:
        return self._gradients.done(self.ready_s, self._times.of_all() / self._mean_s, mixing, traffic)
