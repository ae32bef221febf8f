"""What `gossamer.decentralize` returns: training in a loop of the user's own, and what can be asked of it."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from gossamer.algorithms import Algorithm
from gossamer.topologies import Schedule

from .attendance import Attendance, Meetings
from .blame import NeighborLost
from .saving import SavedEngine
from .scalars import ScalarWriter, scalar_probe
from .termination import Termination
from .wire import Wire
from .world import World

T = TypeVar("T")


class Decentralized(SavedEngine):
    """Between its beginning and `close`, each `optimizer.step()` of the user's loop also averages with neighbours.

    As a context manager it closes itself. All that says "all ranks" has to be called by all of them, in the same order;
    a rank that has made fewer steps by then first takes part in those of the others, without a gradient of its own.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        algorithm: Algorithm,
        schedule: Schedule,
        world: World,
        wire: Wire,
        bucket_mib: float | None = None,
        timeout_s: float | None = None,
        rescue: Path | None = None,
    ) -> None:
        self._rescue = rescue
        self._aside = {}
        self._is_rescued = False
        self._is_closed = False
        self._first_step = 0
        self._termination = Termination(self._rescue_in_time)
        self._started = time.monotonic()
        super().__init__(
            model,
            optimizer,
            algorithm=algorithm,
            schedule=schedule,
            group=world.group,
            local_size=world.local_size,
            timeout_s=timeout_s,
            wire=wire,
            bucket_mib=bucket_mib,
        )
        self._store = PrefixStore(f"gossamer/{self.transport.serial}", world.group.get_group_store())
        self._attendance = self._attend()
        self._run = _same_number(self._store, self.rank)
        if rescue is not None:
            self._termination.watch()

    def _attend(self) -> Meetings:
        return Attendance(self._store, self.rank, self.size)

    # ---- around the step --------------------------------------------------------------------------------

    def _before_step(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._aside:
            raise ValueError(
                "optimizer.step() inside averaged(): the model holds the average of all replicas there, and gets its "
                "own parameters back at the end; train outside of it"
            )
        self._check_unchanged()
        self._attendance.reach(self._num_taken + 1)
        self._termination.change_begins(self._outermost)
        with self._rescuing():
            super()._before_step(arguments, keywords)

    def _after_step(self) -> None:
        with self._rescuing():
            super()._after_step()
        for replica in self.replicas:
            replica.watch()
        self._termination.change_ends()

    def _check_unchanged(self) -> None:
        """A change while an exchange is under way reaches neighbours or not, and is gone when the result arrives."""
        changed = [name for replica in self.replicas if replica.pending for name in replica.changed()]
        if changed:
            raise ValueError(
                f"parameter {changed[0]!r} was changed after the last step, while it was being averaged with those of "
                "neighbours: call settle() before the change, or take an algorithm that does not overlap ('d-psgd')"
            )

    @torch.no_grad()
    def settle(self) -> None:
        """Wait for the averages with the neighbours that are under way, and take them in. All ranks.

        Until the next step nobody reads the parameters then, and they may be changed.
        """
        with self._rescuing(), self._together("settle()"):
            mix = self.mixer.at(self.schedule, self.num_steps)
            self._termination.change_begins(sys._getframe())
            for replica in self.replicas:
                if replica.pending:
                    self.algorithm.settle(replica, mix)
            self._termination.change_ends()

    @property
    def _num_taken(self) -> int:
        """Steps since the start, whatever was loaded meanwhile: those that neighbours have taken part in."""
        return self.num_steps - self._first_step

    def _meet(self, at: str) -> None:
        """Come together with all ranks, after as many steps; whoever is there first answers the others' steps."""
        self._attendance.reach(self._num_taken)
        furthest = self._attendance.meet(at, self.answer, self.transport.timeout_s)
        if furthest is not None and self.algorithm.steps_together:
            for replica in self.replicas:  # those who answered do not know a learning rate that has changed since
                self.transport.broadcast(replica.params, source=furthest)

    @contextmanager
    def _together(self, at: str) -> Iterator[None]:
        """All ranks have come here, and the parameters stand still."""
        self._meet(at)
        yield

    @contextmanager
    def _rescuing(self) -> Iterator[None]:
        """A lost neighbour ends the training, but not what this rank has learned."""
        try:
            yield
        except NeighborLost as lost:
            self._give_up(lost)
            if self._rescue is not None and not self._is_rescued:
                self._is_rescued = True
                lost.add_note(self._rescue_to(self._rescue))
            raise

    def _rescue_to(self, folder: Path) -> str:
        path = self._write(folder, self._own_state())
        return f"the state of rank {self.rank} after step {self.num_steps} is in {path}"

    def _rescue_in_time(self) -> None:
        """Before SIGTERM ends this process; said at once, since nobody will see an exception."""
        assert self._rescue is not None
        try:
            said = self._rescue_to(self._rescue)
        except Exception as error:
            said = f"the state of rank {self.rank} could not be saved: {error}"
        os.write(2, f"SIGTERM: {said}\n".encode())  # print may be what the signal has interrupted

    # ---- the average ------------------------------------------------------------------------------------

    @contextmanager
    @torch.no_grad()
    def averaged(self) -> Iterator[nn.Module]:
        """The model with the average of all replicas in it, statistics of batch norm included: to evaluate and to save.

        All ranks. Afterwards it has its own parameters back, and the training goes on as if nothing had been.
        """
        with self._rescuing():
            was_aside = self._aside
            own: dict[Tensor, Tensor] = {}
            try:
                with self._together("averaged()"):
                    for replica in self.replicas:
                        replica.finish_pending()  # neighbours may still be reading the parameters
                    tensors = (*(replica.params for replica in self.replicas), *self.buffers().values())
                    own.update((tensor, tensor.clone()) for tensor in tensors)
                    self._aside = was_aside or own
                    self._average(tensors)
                yield self.model
            finally:
                for tensor, values in own.items():
                    tensor.copy_(values)
                self._aside = was_aside

    def _average(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their average over all ranks."""
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.copy_(self._mean(tensor))

    def _mean(self, values: Tensor) -> Tensor:
        """Over all ranks, and not in half precision, where sums lose what the values have."""
        return self.transport.start_mean(values if values.itemsize > 2 else values.float(), exact=True).wait()

    def consensus_distance(self) -> float:
        """How far the replicas are apart, (1/n) Σ‖xᵢ − x̄‖² / ‖x̄‖², over all trained parameters. All ranks."""
        with self._rescuing(), self._together("consensus_distance()"):
            return self._consensus_distance()

    @torch.no_grad()
    def _consensus_distance(self) -> float:
        spread, norm = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for replica in self.replicas:
            mean = self._mean(replica.params).double()
            spread += (replica.params - mean).square().sum().cpu()
            norm += mean.square().sum().cpu()
        spread = self._mean(spread.reshape(1)).squeeze()
        return float(spread / norm) if spread > 0 else 0.0

    # ---- work -------------------------------------------------------------------------------------------

    @overload
    def share(self, batches: int) -> Iterator[int]: ...
    @overload
    def share(self, batches: Sequence[T]) -> Iterator[T]: ...
    def share(self, batches: int | Sequence[T]) -> Iterator[int] | Iterator[T]:
        """Those batches of an epoch that this rank is to do: of a sequence of batches, or of so many numbers from 0 on.

        Over all ranks each batch comes up once. Ranks that wait for each other get equal shares; asynchronous ones get
        the next batch when they ask for it, so a slow worker does less, and the epoch is over when nothing is left.
        The sequence must be the same on all ranks, which call this as often as each other:

            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).split(32)
            for rows in training.share(order):
                loss = criterion(model(data[rows]), targets[rows])

        A `DataLoader` takes it as its batch sampler: `DataLoader(data, batch_sampler=training.share(order))`.
        """
        if isinstance(batches, DataLoader):
            raise ValueError(
                f"a DataLoader makes its {len(batches)} batches one after the other and cannot leave any to other "
                "ranks: share lists of rows, alike on all ranks, and give it batch_sampler=training.share(lists)"
            )
        if isinstance(batches, int) and batches < 0:
            raise ValueError(f"share({batches}): give the number of batches in an epoch, 0 or more")
        items = range(batches) if isinstance(batches, int) else batches
        return (items[number] for number in self._claims(len(items)))  # type: ignore[return-value] # as overloaded

    def _claims(self, num_batches: int) -> Iterator[int]:
        return iter(range(self.rank, num_batches, self.size))

    # ---- figures ----------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Of this rank so far: steps, seconds, seconds waited for neighbours, bytes sent, the timeout of now."""
        return {
            "steps": self.num_steps,
            "seconds": time.monotonic() - self._started,
            "waited_s": self.transport.waited_s,
            "bytes_sent": float(self.bytes_sent[0]),
            "timeout_s": self.transport.timeout_s,
        }

    def report_to(self, writer: ScalarWriter | None, *, every: int = 100) -> None:
        """Write consensus distance, waiting and bytes as scalars, every so many steps, before the mixing.

        All ranks; those that do not write give None. The consensus distance costs an all-reduce of the model.
        """
        self.probes.append(
            scalar_probe(
                writer,
                ("consensus_distance", "waited_s", "bytes_sent"),
                lambda: self.metrics() | {"consensus_distance": self._consensus_distance()},
                every=every,
            )
        )

    # ---- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop averaging; a worker with fewer steps than others first answers until all are done. All ranks."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with self._rescuing():
                self._meet("close()")
                super().close()
        finally:
            self.detach()
            self._attendance.close()
            self._termination.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._is_closed = True
            self._give_up(error)
            self._termination.close()
        super().__exit__(kind, error, trace)

    def _give_up(self, error: BaseException) -> None:
        """Tell those who wait for this rank, at a meeting or in an exchange, whom to look at."""
        culprit = error.rank if isinstance(error, NeighborLost) else self.rank
        why = str(error) if isinstance(error, NeighborLost) else f"{type(error).__name__}: {error}".rstrip(": ")
        self._attendance.fail(culprit, why)
        self.transport.blame.put_on(culprit, why)
        self.transport.leave_boards()


def _same_number(store: PrefixStore, rank: int) -> int:
    """A random number, not 0, that all ranks have: one training is told from another by it."""
    if rank == 0:
        store.set("number", str(uuid4().int >> 66 | 1))  # fits in 63 bits
    return int(store.get("number"))
