"""The norms of a run on disk: every tensor on every replica at every probe, written as they come.

A thousand replicas can give gigabytes of them, too much to hold until the end or to put into checkpoints. So they go
to files that are complete once they are there, each named by its first step. What is known is written before every
checkpoint, so no part reaches over one: a run that goes on from there deletes the parts that begin later.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from gossamer._files import write_whole

_PART_BYTES = 16 * 2**20
"""As soon as so much has come together it is written, checkpoint or not."""


class NormParts:
    """The folder `norms` of one run."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "norms"
        self._waiting: list[tuple[Sequence[int], Sequence[str], NDArray[np.float32]]] = []
        """As they came: making a table of each would take longer than what it is made of."""

    def discard_from(self, step: int) -> None:
        """Delete what was measured at this step or later, and what a kill has left half-written."""
        if self._folder.exists():
            for file in self._folder.iterdir():
                if file.suffix != ".parquet" or _first_step(file) >= step:
                    file.unlink()

    def add(self, steps: Sequence[int], names: Sequence[str], norms: Tensor) -> None:
        """Take a row for each step and tensor, with the norms on all replicas; `norms` is `[S, T, N]`."""
        self._waiting.append((steps, names, norms.float().cpu().numpy()))
        if sum(values.nbytes for _, _, values in self._waiting) >= _PART_BYTES:
            self.write()

    def write(self) -> None:
        """Write a part of all that has come since the last."""
        if not self._waiting:
            return
        table = pa.concat_tables(_table(*waiting) for waiting in self._waiting)
        self._waiting.clear()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            self._folder / f"part-{table['step'][0].as_py():08d}.parquet",
            lambda path: pq.write_table(table, path, compression="zstd"),
        )


def _table(steps: Sequence[int], names: Sequence[str], norms: NDArray[np.float32]) -> pa.Table:
    """`norms` is `[S, T, N]`."""
    values = pa.array(norms.reshape(-1))
    return pa.table(
        {
            "step": np.repeat(steps, len(names)),
            "tensor": list(names) * len(steps),
            "norms": pa.FixedSizeListArray.from_arrays(values, norms.shape[-1]),
        }
    )


def read_norms(run_folder: Path) -> pa.Table:
    """All norms of a run in the order of its steps: columns `step`, `tensor` and `norms`, a list over the replicas."""
    parts = sorted((run_folder / "norms").glob("part-*.parquet"), key=_first_step)
    if not parts:
        raise ValueError(f"there are no norms in {run_folder}: give the folder of a run that has been trained")
    return pa.concat_tables(pq.read_table(part) for part in parts)


def _first_step(file: Path) -> int:
    return int(file.stem.removeprefix("part-"))
