"""Results on disk: norms in parts, tables of rows that are not alike."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gossamer.bench import Experiment, norm_parts
from gossamer.bench.norm_parts import NormParts, read_norms
from gossamer.bench.outcome import Outcome
from gossamer.bench.store import Store

NAMES = ("0.weight", "0.bias")


def norms_of(steps: list[int], num_replicas: int = 3) -> torch.Tensor:
    """Different everywhere: `[S, T, N]`."""
    of_one = torch.arange(len(NAMES) * num_replicas, dtype=torch.float64).view(1, len(NAMES), num_replicas)
    return torch.tensor(steps, dtype=torch.float64)[:, None, None] + of_one / 100


def test_norms_come_back_in_order(tmp_path: Path) -> None:
    parts = NormParts(tmp_path)
    for steps in ([8, 9], [10], [100_000_000, 200_000_000]):
        parts.add(steps, NAMES, norms_of(steps))
        parts.write()
    parts.write()  # nothing has come since
    assert len(list((tmp_path / "norms").iterdir())) == 3
    table = read_norms(tmp_path)
    assert table.schema.field("norms").type == pa.list_(pa.float32(), 3)
    assert table["step"].to_pylist() == [8, 8, 9, 9, 10, 10, 100_000_000, 100_000_000, 200_000_000, 200_000_000]
    assert table["tensor"].to_pylist() == [*NAMES] * 5
    expected = norms_of([8, 9, 10, 100_000_000, 200_000_000]).flatten(0, 1).float().numpy()
    np.testing.assert_array_equal(np.array(table["norms"].to_pylist(), np.float32), expected)


def test_a_part_is_written_when_there_is_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_parts, "_PART_BYTES", 1.5 * norms_of([0]).float().nbytes)
    parts = NormParts(tmp_path)
    for step in range(5):
        parts.add([step], NAMES, norms_of([step]))
    parts.write()
    assert len(list((tmp_path / "norms").iterdir())) == 3  # of two, two and one
    assert read_norms(tmp_path)["step"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_what_came_after_a_checkpoint_is_discarded(tmp_path: Path) -> None:
    parts = NormParts(tmp_path)
    parts.discard_from(0)  # there is nothing yet
    for steps in ([1, 2], [5, 7], [11]):
        parts.add(steps, NAMES, norms_of(steps))
        parts.write()
    (tmp_path / "norms" / ".part-00000011.parquet.1234.part").write_bytes(b"half")
    NormParts(tmp_path).discard_from(5)
    assert [file.name for file in (tmp_path / "norms").iterdir()] == ["part-00000001.parquet"]
    assert read_norms(tmp_path)["step"].to_pylist() == [1, 1, 2, 2]


def test_no_norms_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there are no norms in .* give the folder of a run"):
        read_norms(tmp_path)


def test_a_figure_that_only_the_last_row_has_is_kept(tmp_path: Path) -> None:
    experiment = Experiment(graphs=("ring",), workers=2, seeds=1, epochs=2, centralized=False, device="cpu")
    store, (run,) = Store(tmp_path, experiment), experiment.runs()
    store.begin(run)
    outcome = Outcome(
        status="finished",
        epochs=[{"epoch": 1, "accuracy": 0.5}, {"epoch": 2, "accuracy": 0.75, "bleu": 30.5}],
        probes=[{"step": 3, "gini": 0.25}],
        tensors={"step": [3], "tensor": ["0.weight"], "gini": [0.25]},
    )
    store.finish(run, outcome)
    (result,) = store.read()
    assert result.epochs == [{"epoch": 1, "accuracy": 0.5, "bleu": None}, {"epoch": 2, "accuracy": 0.75, "bleu": 30.5}]
    assert result.final["bleu"] == 30.5
    assert result.probes == outcome.probes
    assert result.tensors == outcome.tensors
    assert pq.read_table(store.run_folder(run) / "probes.parquet").column_names == ["step", "gini"]
