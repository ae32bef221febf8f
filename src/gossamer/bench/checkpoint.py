"""Where a run that was stopped goes on: the state of all replicas at the end of an epoch, on disk."""

import time
from pathlib import Path

import torch

from gossamer._files import write_whole
from gossamer.engines import Engine

from .outcome import Outcome

SHARE_OF_TIME = 0.05
"""What saving may take of a run's time. Checkpoints are written at the ends of epochs, as often as that allows."""
_BYTES_PER_S = 1e9
"""How fast a disk is taken to be before the first checkpoint has shown it."""
_COPIES = 2
"""What a checkpoint holds of each parameter: itself, and as a rule one number of the optimizer's."""


class Checkpoints:
    """The checkpoints of one run: for an epoch, a file from every holder of replicas.

    A kill may come between two holders' files, so an epoch counts only if all of its files are there, and the files
    of the epoch before are deleted only once they are. All holders must call all of it alike.
    """

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._folder = folder
        self._engine = engine
        self._device = engine.flats()[0].device
        self._num_local = engine.local.stop - engine.local.start
        self._saved_at = time.monotonic()
        self._save_s = _COPIES * sum(flat.nbytes for flat in engine.flats()) / _BYTES_PER_S

    def is_due(self) -> bool:
        """Whether to save now, or whether that would take too much of the time."""
        due = time.monotonic() - self._saved_at > self._save_s / SHARE_OF_TIME
        return bool(self._engine.gather(torch.full((self._num_local,), due))[0])  # the first holder decides for all

    def save(self, outcome: Outcome) -> None:
        """Keep the state of all replicas and what the run has shown so far. The norms must be on disk already."""
        started = time.monotonic()
        self._write(outcome)
        self._saved_at = time.monotonic()
        self._save_s = self._saved_at - started

    def _write(self, outcome: Outcome) -> None:
        mine = self._file(outcome.num_epochs, self._engine.local.start)
        saved = {
            "engine": self._engine.state_dict(),
            "outcome": vars(outcome),
            "random": torch.get_rng_state(),
            "random_on_gpu": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        }
        mine.parent.mkdir(parents=True, exist_ok=True)
        write_whole(mine, lambda path: torch.save(saved, path))
        self._engine.gather(torch.zeros(self._num_local))  # all have written
        for older in self._folder.glob(f"checkpoint-*-{self._engine.local.start}.pt"):
            if older != mine:
                older.unlink()

    def restore(self, outcome: Outcome) -> None:
        """Bring engine and outcome to where the last complete checkpoint was taken; without one, leave them."""
        epoch = int(self._engine.gather(torch.full((self._num_local,), self._last_complete())).min())
        if epoch == 0:
            return
        file = self._file(epoch, self._engine.local.start)
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
            self._engine.load_state_dict(saved["engine"])
            vars(outcome).update(saved["outcome"])
            torch.set_rng_state(saved["random"])
            if saved["random_on_gpu"] is not None:
                torch.cuda.set_rng_state(saved["random_on_gpu"], self._device)
        except Exception as error:  # damage shows as errors of many kinds
            raise ValueError(f"{file} is damaged ({error}): delete it to start the run anew") from error

    def _last_complete(self) -> int:
        """The last epoch of which every holder's file is there; 0 if there is none."""
        holders = range(0, self._engine.num_replicas, self._num_local)
        epochs = {int(file.stem.split("-")[1]) for file in self._folder.glob("checkpoint-*-*.pt")}
        return max((e for e in epochs if all(self._file(e, first).exists() for first in holders)), default=0)

    def _file(self, epoch: int, first_replica: int) -> Path:
        return self._folder / f"checkpoint-{epoch}-{first_replica}.pt"


def delete_checkpoints(folder: Path) -> None:
    """Remove what a finished run no longer needs, and what a kill has left half-written."""
    for file in (*folder.glob("checkpoint-*.pt"), *folder.glob(".checkpoint-*.part")):
        file.unlink()
