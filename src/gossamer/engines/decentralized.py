"""What `gossamer.decentralize` returns: training in a loop of the user's own, and what can be asked of it."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from gossamer._files import write_whole
from gossamer.algorithms import Algorithm
from gossamer.topologies import Schedule

from .attendance import Attendance, Meetings
from .blame import NeighborLost
from .moments import common_step
from .synchronous import SynchronousEngine
from .termination import Termination
from .wire import Wire
from .world import World

T = TypeVar("T")


class ScalarWriter(Protocol):
    """As `torch.utils.tensorboard.SummaryWriter` does it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


class Decentralized(SynchronousEngine):
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
        self._aside: dict[Tensor, Tensor] = {}
        """The rank's own values of the tensors that hold the average of all replicas."""
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

    @property
    def rank(self) -> int:
        return self.transport.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.transport.size

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
        if every < 1:
            raise ValueError(f"every={every}: give a number of steps, 1 or more")

        def report(step: int) -> None:
            if (step + 1) % every:
                return
            figures = self.metrics() | {"consensus_distance": self._consensus_distance()}
            if writer is not None:
                for name in ("consensus_distance", "waited_s", "bytes_sent"):
                    writer.add_scalar(f"gossamer/{name}", figures[name], step + 1)

        self.probes.append(report)

    # ---- saving -----------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """This rank's state in a file of its own in the folder: `load` goes on from there, bit by bit. All ranks."""
        return self._write(Path(folder), self.state_dict())

    def load(self, folder: str | Path) -> None:
        """Take back what `save` has written, on as many workers. All ranks."""
        self._refuse_averaged("load()")
        path = Path(folder) / self._file_name
        with self._rescuing():
            self._meet("load()")
            has_file = [bool(number) for (number,) in self._of_everybody(path.is_file())]
        if not all(has_file):
            missing = self._file_name_of(self.rank if not has_file[self.rank] else has_file.index(False))
            there = sorted(file.name for file in Path(folder).glob("rank-*.pt"))
            raise ValueError(
                f"there is no {missing} in {folder}"
                + (f", only {', '.join(there[:4])}{' …' * (len(there) > 4)}" if there else "")
                + ": give the folder that save() has filled, and start as many workers as then; where a rank was lost, "
                "copy the file of another"
            )
        self.load_state_dict(torch.load(path, map_location="cpu", weights_only=False))

    def state_dict(self) -> dict[str, Any]:
        self._refuse_averaged("save()")
        with self._rescuing(), self._together("save()"):
            return self._state()

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._refuse_averaged("load()")
        self._check_parts(saved)
        with self._rescuing(), self._together("load()"):
            moments = self._of_everybody(saved["num_steps"], saved.get("rescued_in", 0))
            step = common_step(*zip(*moments, strict=True))
            for replica in self.replicas:
                replica.finish_pending()
            with self._termination.held():
                self._take_back(saved, step)

    def _of_everybody(self, *numbers: int) -> list[list[int]]:
        """The numbers of every rank. All ranks."""
        everybody: list[list[int]] = self.transport.gather(torch.tensor(numbers)).tolist()
        return everybody

    def _take_back(self, saved: dict[str, Any], step: int) -> None:
        self._first_step += step - self.num_steps
        super().load_state_dict(saved)
        self.num_steps = step
        for replica in self.replicas:
            replica.step = step
        for name, parameter in self.untrained().items():
            parameter.copy_(saved["untrained"][name])
        torch.set_rng_state(saved["random"]["cpu"])
        if saved["random"]["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(saved["random"]["cuda"])

    def _state(self) -> dict[str, Any]:
        return super().state_dict() | {"untrained": self.untrained(), "random": _random_state()}

    def _own_state(self) -> dict[str, Any]:
        """Without what is under way to and from neighbours: it will not arrive any more."""
        under_way = [replica.pending for replica in self.replicas]
        for replica in self.replicas:
            replica.pending = {}
        try:
            state = self._state() | {"rescued_in": self._run}
        finally:
            for replica, pending in zip(self.replicas, under_way, strict=True):
                replica.pending = pending
        for replica_state in state["replicas"]:
            replica_state["params"] = self._own(replica_state["params"])
        state["buffers"] = {name: self._own(buffer) for name, buffer in state["buffers"].items()}
        return state

    def _own(self, tensor: Tensor) -> Tensor:
        return self._aside.get(tensor, tensor)

    def _refuse_averaged(self, what: str) -> None:
        if self._aside:
            raise ValueError(
                f"{what} inside averaged(): each rank saves and loads its own parameters, which are put aside there; "
                f"call {what} outside, and model.state_dict() for the average"
            )

    def _check_parts(self, saved: dict[str, Any]) -> None:
        here = [len(replica.params) for replica in self.replicas]
        there = [len(replica["params"]) for replica in saved["replicas"]]
        if here != there:
            raise ValueError(
                f"the saved model has parts of {there} parameters and this one of {here}: load into the same model, "
                "with the same optimizer and bucket_mib"
            )

    @property
    def _file_name(self) -> str:
        return self._file_name_of(self.rank)

    def _file_name_of(self, rank: int) -> str:
        return f"rank-{rank}-of-{self.size}.pt"

    def _write(self, folder: Path, state: dict[str, Any]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self._file_name
        with self._termination.held():
            write_whole(path, lambda temporary: torch.save(state, temporary))
        return path

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


def _random_state() -> dict[str, Any]:
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _same_number(store: PrefixStore, rank: int) -> int:
    """A random number, not 0, that all ranks have: one training is told from another by it."""
    if rank == 0:
        store.set("number", str(uuid4().int >> 66 | 1))  # fits in 63 bits
    return int(store.get("number"))
