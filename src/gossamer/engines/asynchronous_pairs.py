"""AD-PSGD: a computing and a mixing thread a worker, and true swaps of two replicas at a time."""

from typing import Any

from gossamer.topologies import Schedule, halves

from .asynchronous import Asynchronous
from .gossip import Gossip
from .live import LiveReplica

_NUM_NUMBERS = 1
"""A word is only what it is for."""


class AsynchronousPairs(Asynchronous):
    """Between its beginning and `close`, replicas average in pairs, in a thread of their own, while the loop trains.

    The model computes on a copy (`LiveReplica`): `optimizer.step()` steps it, the change is added to the replica, and
    the model gets the replica as it is by then. Momentum and the like stay with the worker. A swap keeps the sum of
    the two; so the mean of all replicas moves by gradients only, and `close` leaves it in every model.
    """

    def __init__(self, *arguments: Any, schedule: Schedule, **settings: Any) -> None:
        self._active, _ = halves(schedule)
        self._stages = [stage for _, stage in schedule.stages(schedule.window.stop)]
        super().__init__(*arguments, schedule=schedule, **settings)

    def _partners(self, rank: int) -> list[int]:
        return sorted({other for stage in self._stages for other in (*stage.neighbors(rank), *stage.listeners(rank))})

    def _begin(self) -> None:
        self.live = LiveReplica(self.replicas)
        self.gossip = Gossip(
            self.live,
            self._links(_NUM_NUMBERS),
            is_active=self.rank in self._active,
            wire=self.transport.wire,
            seed=f"{self.seed}/{self.rank}",
            on_sent=self._count,
            on_lost=self._lose,
        )

    def _before_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._check_threads()
        super()._before_step(arguments, keywords)

    def _after_step(self) -> None:
        super()._after_step()
        with self._termination.held():
            self._staleness.add(self.live.take_in())
        self.gossip.stepped()

    def _stand_still(self, at: str) -> None:
        """Swaps go on until all are here; then nobody begins any, and the last of them are waited for. Nor does anybody
        begin the next before all have read: a partner cannot refuse it."""
        self.gossip.pause()
        self.roll.meet(f"{at}, with the mixing at rest")
        self.gossip.wait_for_partners()
        self._check_threads()
        self.live.take_in()
        self.roll.meet(f"{at}, with all models read")

    def _go_on(self) -> None:
        if not self._is_closed:
            self.gossip.resume()

    def _leave(self) -> None:
        self.gossip.close()

    def _restart(self) -> None:
        self.live.restart()

    def _count(self, num_bytes: int) -> None:
        self.mixer.bytes_sent += num_bytes

    def metrics(self) -> dict[str, float]:
        """The same, and the swaps that this rank took part in."""
        return super().metrics() | {"mixings": self.live.num_mixings}

    def _check_threads(self) -> None:
        self._warn()
        if self.gossip.failure is not None:
            raise RuntimeError("the mixing thread has failed") from self.gossip.failure
