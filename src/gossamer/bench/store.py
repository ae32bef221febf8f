"""Results on disk: a folder an experiment, in it a folder a run. What is finished is never written again.

results/digits-16-d-psgd-1a2b3c4d/    named by its settings: another experiment never lands here
    experiment.json                   the settings
    report.html, summary.json         made anew whenever the sweep ends
    ring-n16-sqrt-seed0/
        config.json, environment.json every setting; versions and hardware
        shards.parquet                where workers see unlike data: samples of each worker and class
        checkpoint-*.pt               while it runs: where to go on
        norms/part-*.parquet          as it runs: a row for each probe and tensor, its L2 norms on all replicas
        epochs.parquet                a row for each epoch after which the models were tested
        probes.parquet                a row for each probe: consensus distance, dispersion averaged over tensors
        tensors.parquet               a row for each probe and tensor: dispersion, consensus distance
        outcome.json                  written last: the run is complete
"""

import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from gossamer import __version__
from gossamer._files import write_text, write_whole

from .checkpoint import delete_checkpoints
from .experiment import Experiment
from .one_run import Run
from .outcome import Columns, Outcome, Row
from .shards import read_shards
from .train import num_threads

_VERSIONS_OF = ("numpy", "pyarrow", "scikit-learn", "scipy", "torch")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A run that is over, as read from disk."""

    run: Run
    status: str
    reason: str
    epochs: list[Row]
    tensors: Columns
    environment: dict[str, Any]
    probes: list[Row]
    staleness: dict[int, int] = field(default_factory=dict)
    """How many gradients were so stale; empty for synchronous methods."""
    shards: Columns = field(default_factory=dict)
    """How many samples of which class each worker was dealt; empty where all were dealt the same mixture."""

    @property
    def final(self) -> Row:
        """The last row; empty if the run diverged before its first."""
        return self.epochs[-1] if self.epochs else {}


class Store:
    """The folder of one experiment."""

    def __init__(self, root: Path | str, experiment: Experiment) -> None:
        self.experiment = experiment
        self.folder = Path(root) / experiment.folder
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / "experiment.json", _json(asdict(experiment)))
        except OSError as error:
            raise ValueError(
                f"cannot write results to {self.folder}: {error.strerror}; give another folder with --out"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one sweep; a second one at the same time is refused. Ends with the process."""
        with (self.folder / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another process is running this experiment in {self.folder}: wait for it, or give another --out"
                ) from None
            yield

    def run_folder(self, run: Run) -> Path:
        return self.folder / run.folder

    def is_done(self, run: Run) -> bool:
        return (self.run_folder(run) / "outcome.json").exists()

    def begin(self, run: Run) -> None:
        """Make the folder of a run, with what is known before it starts."""
        folder = self.run_folder(run)
        folder.mkdir(exist_ok=True)
        write_text(folder / "config.json", _json(asdict(run)))
        write_text(folder / "environment.json", _json(environment(run)))

    def finish(self, run: Run, outcome: Outcome) -> None:
        """Write what a run has shown; its `outcome.json` last, which makes it count as done."""
        folder = self.run_folder(run)
        _write_parquet(folder / "epochs.parquet", _table(outcome.epochs))
        _write_parquet(folder / "probes.parquet", _table(outcome.probes))
        _write_parquet(folder / "tensors.parquet", pa.table(outcome.tensors))
        said: dict[str, Any] = {"status": outcome.status, "reason": outcome.reason}
        if outcome.staleness:
            said["staleness"] = dict(sorted(outcome.staleness.items()))
        write_text(folder / "outcome.json", _json(said))
        delete_checkpoints(folder)

    def read(self) -> list[RunResult]:
        """All runs that are over, in the experiment's order."""
        return [
            read_run(self.run_folder(run), run, remedy="delete that folder and start again to redo the run")
            for run in self.experiment.runs()
            if self.is_done(run)
        ]


def read_run(folder: Path, run: Run, *, remedy: str) -> RunResult:
    """What is in the folder of a run that is over; `remedy` is what to do about a folder that is damaged."""
    try:
        outcome = _read_json(folder / "outcome.json")
        if outcome["status"] not in ("finished", "diverged"):
            raise ValueError(f"its status is {outcome['status']!r}")
        return RunResult(
            run=run,
            status=outcome["status"],
            reason=outcome["reason"],
            epochs=pq.read_table(folder / "epochs.parquet").to_pylist(),
            tensors=pq.read_table(folder / "tensors.parquet").to_pydict(),
            environment=_read_json(folder / "environment.json"),
            probes=pq.read_table(folder / "probes.parquet").to_pylist(),
            staleness={int(stale): number for stale, number in outcome.get("staleness", {}).items()},
            shards=read_shards(folder),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:  # pyarrow's and json's errors are ValueErrors
        raise ValueError(f"the results in {folder} are damaged ({error}): {remedy}") from error


def environment(run: Run) -> dict[str, Any]:
    """Versions and hardware that a result was made with."""
    return {
        "python": platform.python_version(),
        "versions": {"gossamer": __version__} | {package: version(package) for package in _VERSIONS_OF},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": torch.cuda.get_device_name(run.device) if run.device.startswith("cuda") else _cpu_name(),
        "cores": os.cpu_count(),
        "threads": num_threads(run),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _table(rows: list[Row]) -> pa.Table:
    """Rows as columns; what a row does not have (a score that only the last one has) is null there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _write_parquet(path: Path, table: pa.Table) -> None:
    write_whole(path, lambda temporary: pq.write_table(table, temporary))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
