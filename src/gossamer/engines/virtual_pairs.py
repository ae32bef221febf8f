"""AD-PSGD in virtual time, on stacked replicas."""

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.clock import Event

from .stacked import MakeOptimizer
from .virtual import VirtualEngine


class VirtualPairs(VirtualEngine):
    """AD-PSGD: every worker steps a replica of its own, and pairs of them average.

        gradient   x_i ← x_i + step(x̂_i, g_i(x̂_i)) − x̂_i
        send       d ← (x_j − x_i) / 2
        average    x_i ← x_i + d,  x_j ← x_j − d

    The optimizer steps the copy x̂ that was read, and what this changes is added to the replica, as in a worker that
    computes while others mix its replica. Each worker has an optimizer state of its own. Gradients of different workers
    between two swaps do not see each other, so they are applied in one go.
    """

    def _make_optimizer(self, make: MakeOptimizer) -> Optimizer:
        self._rows = [[nn.Parameter(flat[i]) for flat in self._read] for i in range(self.num_replicas)]
        self._due: dict[int, bool] = {}
        """Whose gradients are to be applied, and whether they then read again."""
        self._under_way: dict[int, list[Tensor]] = {}
        """Half of the difference of what two workers have sent, by the one that asked."""
        return make([row for rows in self._rows for row in rows])

    def _follow(self, event: Event) -> None:
        worker, other = event.worker, event.partner
        if event.kind == "gradient":
            self._due[worker] = False
        elif event.kind == "read" and worker in self._due:
            self._due[worker] = True
        elif event.kind == "read":
            self._read_again([worker])
        else:
            if worker in self._due or other in self._due:
                self._catch_up()
            if event.kind == "send":
                self._under_way[worker] = [(flat[other] - flat[worker]) / 2 for flat in self.flats()]
                self.bytes_sent[[worker, other]] += self._model_bytes
            else:
                for flat, half in zip(self.flats(), self._under_way.pop(worker), strict=True):
                    flat[worker] += half
                    flat[other] -= half

    def _catch_up(self) -> None:
        if not self._due:
            return
        due = sorted(self._due)
        before = [read[due] for read in self._read]
        for worker in due:
            for row, pending in zip(self._rows[worker], self._pending, strict=True):
                row.grad = pending[worker]
        self.optimizer.step()
        for worker in due:
            for row in self._rows[worker]:
                row.grad = None
        for flat, read, was in zip(self.flats(), self._read, before, strict=True):
            flat[due] += read[due] - was
        self._read_again([worker for worker in due if self._due[worker]])
        self._due.clear()

    def _read_again(self, workers: list[int]) -> None:
        for flat, read in zip(self.flats(), self._read, strict=True):
            read[workers] = flat[workers]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"under_way": self._under_way}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        super().load_state_dict(saved)
        device = self.flats()[0].device
        self._under_way = {
            worker: [half.to(device) for half in halves] for worker, halves in saved["under_way"].items()
        }
