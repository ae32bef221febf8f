"""Asynchronous training in a loop of the user's own: nobody waits for the slowest, and who dies is left behind."""

import atexit
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from .assembly import Assembly, AssemblyBroken
from .decentralized import Decentralized
from .link import Link
from .roll import Roll
from .scalars import ScalarWriter, scalar_probe
from .staleness import Staleness

T = TypeVar("T")


class Asynchronous(Decentralized):
    """What `gossamer.decentralize` returns for a method whose workers do not wait for each other.

    All that says "all ranks" needs those only that are still there, and waits for the slowest of them; training does
    not. A worker that dies is dropped by the others, which go on. Not the one that hosts the store of the process
    group, where they find each other: under torchrun that is no worker.
    """

    is_asynchronous = True

    def __init__(self, *arguments: Any, seed: int = 0, **settings: Any) -> None:
        self.seed = seed
        self._staleness = Staleness()
        self._lost: dict[int, str] = {}
        self._num_told = 0
        self._num_epochs = 0
        self._assembly: Assembly | None = None
        super().__init__(*arguments, **settings)
        with torch.no_grad():
            self._begin()
        atexit.register(self._end_with_process)

    def _attend(self) -> Roll:
        self.roll = Roll(self._store, self.rank, self.size, [self._partners(rank) for rank in range(self.size)])
        return self.roll

    def _links(self, num_numbers: int) -> dict[int, Link]:
        """Connections with partners. All make theirs in the same order, so that they do not wait in a circle."""
        partners = self._partners(self.rank)
        pairs = sorted((min(self.rank, other), max(self.rank, other), other) for other in partners)
        store = self._store.clone()  # type: ignore[attr-defined] # of its own: a store answers one caller at a time
        return {
            other: Link(
                PrefixStore(f"link/{low}-{high}", store),
                rank=self.rank,
                other=other,
                num_numbers=num_numbers,
                timeout_s=lambda: self.transport.timeout_s,
            )
            for low, high, other in pairs
        }

    # ---- what a method does -----------------------------------------------------------------------------

    @abstractmethod
    def _partners(self, rank: int) -> list[int]:
        """With whom a rank talks."""

    @abstractmethod
    def _begin(self) -> None:
        """All replicas are equal: connect, and let the threads run."""

    @abstractmethod
    def _stand_still(self, at: str) -> None:
        """All ranks have come to `at`: bring the models up to date, and let nobody change them."""

    @abstractmethod
    def _go_on(self) -> None:
        """Partners may change the replica again."""

    @abstractmethod
    def _leave(self) -> None:
        """Say a last word to the partners, and hear theirs, if that does not take long."""

    @abstractmethod
    def _restart(self) -> None:
        """The model has parameters that were loaded: they are the replica now."""

    @property
    def _num_counted(self) -> int:
        """How many of those at a meeting have a replica of their own, which counts in the average."""
        return len(self.roll.members)

    @property
    def _counts(self) -> bool:
        return True

    # ---- coming together --------------------------------------------------------------------------------

    @contextmanager
    def _together(self, at: str) -> Iterator[None]:
        with super()._together(at):
            self._stand_still(at)
            try:
                yield
            finally:
                self._go_on()

    def _meet(self, at: str) -> None:
        self._warn()
        self.roll.meet(at)

    @torch.no_grad()
    def come_together(self) -> None:
        """Bring all models up to date, as their replicas are at one moment. All ranks; waits for the slowest.

        Until its next step a worker's model stays so, whatever its partners do.
        """
        with self._rescuing(), self._together("come_together()"):
            pass

    def settle(self) -> None:
        """Nothing to wait for: nobody but this worker reads or writes its model's parameters."""

    def _mean(self, values: Tensor) -> Tensor:
        """Over those who are there."""
        return (self._sum(values, is_counted=self._counts) / self._num_counted).to(values.device)

    def _sum(self, values: Tensor, *, is_counted: bool) -> Tensor:
        """Over those who are there, on the host; of those who do not count, zeros. Not in half precision."""
        if self._assembly is None or self._assembly.members != self.roll.members:
            store = PrefixStore(f"assembly/{self.roll.meeting}", self._store)
            self._assembly = Assembly(store, self.rank, self.roll.members, self.transport.timeout_s)
        total = torch.zeros(values.shape, dtype=values.dtype if values.itemsize > 2 else torch.float32)
        if is_counted or len(self.roll.members) == 1:
            total.copy_(values)
        return self._assembly.sum(total)

    def _jointly(self, work: Callable[[], T]) -> T:
        """Work that needs sums: done again by the rest where somebody dies in the middle of it."""
        while True:
            try:
                done = [work()]
            except AssemblyBroken:
                done, self._assembly = [], None
            if self.roll.agree("the end of a sum", bool(done)):
                return done[0]

    def _average(self, tensors: Iterable[Tensor]) -> None:
        averaged = [tensor for tensor in tensors if tensor.is_floating_point()]
        means = self._jointly(lambda: [self._mean(tensor) for tensor in averaged])
        for tensor, mean in zip(averaged, means, strict=True):
            tensor.copy_(mean)

    def _consensus_distance(self) -> float:
        return self._jointly(super()._consensus_distance)

    def _of_everybody(self, *numbers: int) -> list[list[int]]:
        """Only one's own: each is at a step of its own, and some may be gone."""
        return [list(numbers)] * self.size

    def _take_back(self, saved: dict[str, Any], step: int) -> None:
        super()._take_back(saved, step)
        self._restart()

    # ---- work -------------------------------------------------------------------------------------------

    def _claims(self, num_batches: int) -> Iterator[int]:
        self._num_epochs += 1
        return self._claimed(f"epoch/{self._num_epochs}", num_batches)

    def _claimed(self, epoch: str, num_batches: int) -> Iterator[int]:
        while (number := self.roll.claim(epoch)) < num_batches:
            yield number

    # ---- figures ----------------------------------------------------------------------------------------

    @property
    def staleness(self) -> dict[int, int]:
        """How many gradients of this rank were how stale: others' changes that came between reading and stepping."""
        return self._staleness.histogram

    @property
    def lost(self) -> dict[int, str]:
        """Partners of this rank that are gone, and why."""
        return dict(self._lost)

    def metrics(self) -> dict[str, float]:
        """Of this rank so far, and beside what a synchronous method has: how stale gradients were, partners lost."""
        return super().metrics() | self._staleness.figures() | {"lost": len(self._lost)}

    def report_to(self, writer: ScalarWriter | None, *, every: int = 100) -> None:
        """Write staleness, waiting and bytes of this rank as scalars, every so many of its steps. Any rank."""
        names = ("staleness_mean", "staleness_p95", "waited_s", "bytes_sent")
        self.probes.append(scalar_probe(writer, names, self.metrics, every=every))

    # ---- the end ----------------------------------------------------------------------------------------

    def _lose(self, rank: int, why: str | None) -> None:
        """A partner is gone, unexpectedly or (without a reason) with a last word. Called in any thread."""
        if why is not None:
            self.roll.lose(rank, why)
        reason = self.roll.why_gone(rank) or why
        if reason is not None:  # else it has come to its end, as this rank will
            self._lost[rank] = reason

    def _warn(self) -> None:
        """In the worker's own thread, where the user sees it."""
        lost = list(self._lost.items())
        for rank, why in lost[self._num_told :]:
            self._num_told += 1
            warnings.warn(f"rank {rank} is lost, and training goes on without it: {why}", RuntimeWarning, stacklevel=2)

    @torch.no_grad()
    def close(self) -> None:
        """Average all replicas, and stop. All ranks; waits for the slowest."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with self._rescuing(), self._together("close()"):
                for replica in self.replicas:
                    replica.finish_pending()
                self._average([*(replica.params for replica in self.replicas), *self.buffers().values()])
        finally:
            atexit.unregister(self._end_with_process)
            self._leave()
            self.roll.close()
            self.detach()
            self._termination.close()
            self.transport.close()

    def _give_up(self, error: BaseException) -> None:
        """The others go on without this rank."""
        atexit.unregister(self._end_with_process)
        self.roll.fail(self.rank, f"{type(error).__name__}: {error}")
        self._leave()
        self.transport.leave_boards()

    def _end_with_process(self) -> None:
        """Nobody has closed it: the threads must not be in gloo's code when the process ends."""
        self._give_up(RuntimeError("its process has ended without close()"))
