"""Who was dealt which classes, on disk: written once, when a run with unlike workers begins.

A row for each worker and class that it has samples of: `worker`, `class`, `samples`. Runs whose workers are dealt the
same mixture, and runs of before this was kept, have no such file.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gossamer._files import write_whole

from .outcome import Columns

_FILE = "shards.parquet"
_COLUMNS = ("worker", "class", "samples")


def write_shards(run_folder: Path, shards: Columns) -> None:
    """Keep what `Feed.shards` says; nothing where that is nothing."""
    if shards:
        run_folder.mkdir(parents=True, exist_ok=True)
        write_whole(run_folder / _FILE, lambda path: pq.write_table(pa.table(shards), path, compression="zstd"))


def read_shards(run_folder: Path) -> Columns:
    """What was written for a run; empty where nothing was."""
    path = run_folder / _FILE
    columns: Columns = pq.read_table(path).select(_COLUMNS).to_pydict() if path.exists() else {}
    return columns
