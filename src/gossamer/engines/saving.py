"""The state of a rank: in a file of its own, and back from there, bit by bit."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer._files import write_whole

from .moments import common_step
from .synchronous import SynchronousEngine
from .termination import Termination


class SavedEngine(SynchronousEngine):
    """Saves and loads when all ranks have come together, and a rank's own state also when they no longer can."""

    _aside: dict[Tensor, Tensor]
    """The rank's own values of the tensors that hold the average of all replicas."""
    _first_step: int
    """The step that was loaded, less those taken before."""
    _run: int
    """A number of this training, alike on all ranks."""
    _termination: Termination

    @abstractmethod
    def _meet(self, at: str) -> None:
        """Come together with all ranks."""

    @abstractmethod
    def _together(self, at: str) -> AbstractContextManager[None]:
        """All ranks have come here, and the parameters stand still."""

    @abstractmethod
    def _rescuing(self) -> AbstractContextManager[None]:
        """A lost neighbour ends the training, but not what this rank has learned."""

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


def _random_state() -> dict[str, Any]:
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
