"""What an exchange takes of a core: the engine's own, each worker with one other, while they train. Imports torch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gossamer._decentralize import decentralize
from gossamer.algorithms import Mix, OverlappedDPSGD, Replica
from gossamer.topologies import Schedule, from_groups


@dataclass
class Spent:
    """Seconds of a core."""

    take_s: float = 0.0
    """To take in what the other has put up."""
    update_s: float = 0.0
    """For the optimizer's own step, which follows."""
    taken_at_s: float = 0.0

    def since_last(self) -> tuple[float, float]:
        """Of all parts of the model together, since this was last asked."""
        spent = self.take_s, self.update_s
        self.take_s = self.update_s = 0.0
        return spent


@dataclass(frozen=True, kw_only=True)
class _Timed(OverlappedDPSGD):
    spent: Spent = field(repr=False, compare=False)

    @property
    def averages_over_all(self) -> bool:
        return True  # not so, but nobody trains: that pairs stay apart does not matter

    def before_step(self, replica: Replica, mix: Mix) -> None:
        begun_s = time.thread_time()
        super().before_step(replica, mix)
        self.spent.taken_at_s = time.thread_time()
        self.spent.take_s += self.spent.taken_at_s - begun_s

    def after_step(self, replica: Replica, mix: Mix) -> None:
        self.spent.update_s += time.thread_time() - self.spent.taken_at_s
        super().after_step(replica, mix)


@contextmanager
def in_pairs(
    model: nn.Module, optimizer: Optimizer, group: ProcessGroup, local_size: int, bucket_mib: float
) -> Iterator[Spent]:
    """Meanwhile every worker averages with the one beside it; of an odd number, the last with nobody. All ranks."""
    n, spent = group.size(), Spent()
    pairs = from_groups(n, [(one, one + 1) for one in range(0, n - 1, 2)])
    with decentralize(
        model,
        optimizer,
        topology=Schedule("pairs", n, lambda _: pairs, period=1),  # they need not agree, as a training must
        algorithm=_Timed(spent=spent),
        group=group,
        local_size=local_size,
        bucket_mib=bucket_mib,
    ):
        yield spent
