"""The norms of a run on disk: every tensor on every replica at every probe, written as they come.

A thousand replicas can give gigabytes of them, too much to hold until the end or to put into checkpoints. So they go
to files that are complete once they are there, each named by its first step. None reaches over the end of an epoch:
a run that goes on from a checkpoint deletes those that begin after it and writes them again.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from gossamer._files import write_whole


class NormParts:
    """The folder `norms` of one run."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "norms"

    def discard_from(self, step: int) -> None:
        """Delete what was measured at this step or later, and what a kill has left half-written."""
        if self._folder.exists():
            for file in self._folder.iterdir():
                if file.suffix != ".parquet" or _first_step(file) >= step:
                    file.unlink()

    def write(self, steps: Sequence[int], names: Sequence[str], norms: Tensor) -> None:
        """Add a part: a row for each step and tensor, with the norms on all replicas; `norms` is `[S, T, N]`."""
        values = pa.array(norms.float().cpu().numpy().reshape(-1))
        table = pa.table(
            {
                "step": np.repeat(steps, len(names)),
                "tensor": list(names) * len(steps),
                "norms": pa.FixedSizeListArray.from_arrays(values, norms.shape[-1]),
            }
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            self._folder / f"part-{steps[0]:08d}.parquet",
            lambda path: pq.write_table(table, path, compression="zstd"),
        )


def read_norms(run_folder: Path) -> pa.Table:
    """All norms of a run in the order of its steps: columns `step`, `tensor` and `norms`, a list over the replicas."""
    parts = sorted((run_folder / "norms").glob("part-*.parquet"), key=_first_step)
    if not parts:
        raise ValueError(f"there are no norms in {run_folder}: give the folder of a run that has been trained")
    return pa.concat_tables(pq.read_table(part) for part in parts)


def _first_step(file: Path) -> int:
    return int(file.stem.removeprefix("part-"))
