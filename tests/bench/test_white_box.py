"""The white box: what it reports, that it changes nothing, and when it looks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import metrics
from gossamer.algorithms import DPSGD, AllReduce
from gossamer.bench import Experiment, Run, white_box
from gossamer.bench.norm_parts import NormParts, read_norms
from gossamer.bench.outcome import Outcome
from gossamer.bench.train import make_engine, train
from gossamer.bench.white_box import DISPERSION, WhiteBox
from gossamer.engines import Engine
from gossamer.topologies import build
from trajectories import processes, stacked

N, STEPS = 4, 12


def some_run(**settings: Any) -> Run:
    settings = {"graphs": ("ring",), "workers": 32, "epochs": 2, "centralized": False, "device": "cpu"} | settings
    return Experiment(**settings).runs()[0]


EVERY_STEP = some_run(workers=N, probe_every=1)


class Watched:
    """An engine's white box and, to compare with, copies of all parameters at every step."""

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        self.outcome = Outcome()
        self.spans = engine.replicas[0].spans
        self.copies: list[Tensor] = []
        self.white_box = WhiteBox(engine, EVERY_STEP, self.outcome, None if folder is None else NormParts(folder))
        engine.probes += [self.white_box, lambda step: self.copies.append(engine.flats()[0].clone())]


def watched_training(folder: Path | None = None) -> Watched:
    watched: list[Watched] = []
    stacked(DPSGD(), build("ring", N), num_steps=STEPS, attach=lambda engine: watched.append(Watched(engine, folder)))
    watched[0].white_box.write()
    return watched[0]


def test_what_it_reports_is_what_there_is(tmp_path: Path) -> None:
    watched = watched_training(tmp_path)
    tensors, table = watched.outcome.tensors, read_norms(tmp_path)
    assert tensors["step"] == table["step"].to_pylist()
    assert tensors["tensor"] == table["tensor"].to_pylist()
    num_tensors = len(watched.spans)
    for step, replicas in enumerate(watched.copies):
        for i, span in enumerate(watched.spans):
            row, norms = step * num_tensors + i, replicas[:, span].norm(dim=1)
            torch.testing.assert_close(torch.tensor(table["norms"][row].as_py()), norms.float())
            expected = {name: measure(norms).item() for name, measure in DISPERSION.items()}
            expected["consensus_distance"] = metrics.consensus_distance(replicas[:, span]).item()
            assert {name: tensors[name][row] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-15)
        total = metrics.consensus_distance(replicas).item()
        assert watched.outcome.probes[step]["consensus_distance"] == pytest.approx(total, rel=1e-9)
        mean = sum(tensors["gini"][step * num_tensors :][:num_tensors]) / num_tensors
        assert watched.outcome.probes[step]["gini"] == pytest.approx(mean)


def test_a_full_buffer_is_filed_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end = watched_training().outcome
    monkeypatch.setattr(white_box, "_BUFFER_BYTES", 5 * 8 * N * len(at_the_end.tensors["tensor"]) // STEPS)
    filed: list[int] = []
    file = WhiteBox._file
    monkeypatch.setattr(WhiteBox, "_file", lambda self: (filed.append(len(self._steps)), file(self)))
    assert watched_training().outcome == at_the_end
    assert filed == [5, 5, 2]


def test_every_engine_reports_the_same() -> None:
    expected = watched_training().outcome
    watched: dict[int, Watched] = {}

    def attach(engine: Engine) -> None:
        rank = engine.local.start
        watched[rank] = Watched(engine)

        def file_at_the_end(step: int) -> None:  # while all ranks still live
            if step == STEPS - 1:
                watched[rank].white_box.write()

        engine.probes.append(file_at_the_end)

    processes(DPSGD(), build("ring", N), num_steps=STEPS, attach=attach)
    for rank in range(N):
        ours = watched[rank].outcome
        assert ours.tensors.keys() == expected.tensors.keys()
        for name, column in expected.tensors.items():
            assert ours.tensors[name] == (
                column if name in ("step", "tensor") else pytest.approx(column, rel=1e-9, abs=1e-15)
            )


@pytest.mark.parametrize("algorithm", ["d-psgd", "all-reduce"])
def test_measuring_changes_nothing(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = some_run(algorithm=algorithm, probe_every=1)

    def trained() -> Tensor:
        engine = make_engine(run)
        train(run, engine, on_epoch=lambda run, row: None)
        return torch.cat(engine.flats(), -1)

    looked_at = trained()
    monkeypatch.setattr(WhiteBox, "__call__", lambda self, step: None)
    monkeypatch.setattr(WhiteBox, "means", lambda self: {})
    assert trained().equal(looked_at)


def test_centralized_replicas_are_not_apart_at_all() -> None:
    watched: list[Watched] = []
    stacked(AllReduce(), build("complete", N), num_steps=STEPS, attach=lambda engine: watched.append(Watched(engine)))
    means = watched[0].white_box.means()
    assert means.pop("coefficient_of_variation") < 1e-15
    assert means.pop("index_of_dispersion") < 1e-15
    assert means == {"consensus_distance": 0, "quartile_coefficient": 0, "gini": 0}


def test_an_epoch_with_a_row_is_looked_at_though_probes_are_rare() -> None:
    run = some_run(epochs=3, probe_every=1000)
    outcome = train(run, make_engine(run), on_epoch=lambda run, row: None)
    ends = [epoch * run.steps_per_epoch - 1 for epoch in (1, 2, 3)]
    assert [row["step"] for row in outcome.probes] == ends
    assert [row["gini"] for row in outcome.epochs] == [row["gini"] for row in outcome.probes]
