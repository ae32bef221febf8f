"""The loop: what it feeds, when it tests, and that it goes on where it stopped."""

import copy
import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

from gossamer.bench import Experiment, Run, checkpoint, one_run
from gossamer.bench.feed import Feed
from gossamer.bench.norm_parts import read_norms
from gossamer.bench.outcome import Outcome, Row
from gossamer.bench.sharding import batches
from gossamer.bench.train import make_engine, train
from gossamer.tasks import TASKS, Dataset, digits


def some_run(**settings: Any) -> Run:
    settings = {"graphs": ("ring",), "workers": 32, "epochs": 2, "centralized": False, "device": "cpu"} | settings
    return Experiment(**settings).runs()[0]


def ignore(run: Run, row: Row) -> None:
    pass


class OnDisk:
    """Samples that are not a tensor."""

    def __init__(self, samples: Tensor) -> None:
        self._samples = samples
        self.device = "cpu"

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, indices: Tensor) -> Tensor:
        assert indices.device.type == "cpu"
        return torch.stack([self._samples[i] for i in indices.flatten().tolist()]).unflatten(0, indices.shape)

    def to(self, device: str) -> Self:
        self.device = device
        return self


def test_every_replica_gets_its_batches() -> None:
    run, data = some_run(workers=4), digits.load()
    expected = batches(data.num_train, workers=4, batch_size=run.batch_size, seed=run.seed, epoch=1)
    for local in (slice(0, 4), slice(2, 3)):
        fed = list(Feed(run, TASKS["digits"], data, local).epoch(1))
        assert len(fed) == run.steps_per_epoch
        for (inputs, targets), indices in zip(fed, expected, strict=True):
            assert inputs.equal(data.train_inputs[indices[local]])
            assert targets.equal(data.train_targets[indices[local]])


def test_epochs_drawn_ahead_are_those_drawn_on_demand() -> None:
    run, data = some_run(epochs=3), digits.load()
    ahead, feed = [], Feed(run, TASKS["digits"], data, slice(0, 32))
    for epoch in range(3):
        ahead += [inputs for inputs, _ in feed.epoch(epoch)]
    for epoch in range(3):
        fresh = Feed(run, TASKS["digits"], data, slice(0, 32))
        of_epoch = ahead[epoch * run.steps_per_epoch :]
        for (inputs, _), drawn_ahead in zip(fresh.epoch(epoch), of_epoch, strict=False):
            assert inputs.equal(drawn_ahead)


def test_augmentation_is_fed_numbers_of_its_own_for_every_sample() -> None:
    given: list[Tensor] = []

    def prepare(inputs: Tensor, draws: Tensor | None) -> Tensor:
        assert draws is not None
        given.append(draws)
        return inputs + draws.sum(-1)[..., None, None, None]

    run, data = some_run(workers=4), digits.load()
    task = dataclasses.replace(TASKS["digits"], prepare=prepare, num_draws=3)
    (inputs, _), *_ = Feed(run, task, data, slice(0, 4)).epoch(0)
    assert given[0].shape == (4, run.batch_size, 3)
    assert len(torch.stack(given).unique()) > 0.99 * torch.stack(given).numel()
    indices = batches(data.num_train, workers=4, batch_size=run.batch_size, seed=run.seed, epoch=0)
    torch.testing.assert_close(
        inputs - data.train_inputs[indices[0]], given[0].sum(-1).double()[..., None, None, None].expand_as(inputs)
    )
    alone = Feed(run, task, data, slice(2, 3))
    next(alone.epoch(0))
    assert given[-1].equal(given[0][2:3])


def test_data_on_disk_trains_as_tensors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    run = some_run(workers=48, epochs=1)
    in_memory = train(run, make_engine(run), on_epoch=ignore)
    stored = digits.load()

    @functools.cache
    def load(folder: Path | None) -> Dataset:
        assert isinstance(stored.train_inputs, Tensor)
        assert isinstance(stored.test_inputs, Tensor)
        return dataclasses.replace(
            stored, train_inputs=OnDisk(stored.train_inputs), test_inputs=OnDisk(stored.test_inputs)
        )

    monkeypatch.setitem(TASKS, "digits", dataclasses.replace(TASKS["digits"], load=load))
    on_disk = train(run, make_engine(run), on_epoch=ignore)
    assert without_time(on_disk) == without_time(in_memory)


def without_time(outcome: Outcome) -> dict[str, Any]:
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in outcome.epochs]
    return vars(outcome) | {"epochs": rows, "seconds": None}


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop_at", [4, 7])
def test_a_run_goes_on_from_an_epoch_without_a_row(
    stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows after epochs 2, 4, 6 and 7; stopped before the checkpoint of epoch 4 or 7, it goes on from 3 or 6.

    To the last bit, also with random numbers, running statistics and momentum.
    """
    layers = nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10)
    model = nn.Sequential(*layers).double()
    monkeypatch.setitem(TASKS, "digits", dataclasses.replace(TASKS["digits"], model=lambda: copy.deepcopy(model)))
    monkeypatch.setattr(one_run, "_EVALUATIONS", 3)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)  # after every epoch
    run = some_run(epochs=7, workers=48)

    def stop(run: Run, row: Row) -> None:
        if row["epoch"] == stop_at:
            raise Stop

    with pytest.raises(Stop):
        train(run, make_engine(run), on_epoch=stop, folder=tmp_path / "stopped")
    assert [file.name for file in (tmp_path / "stopped").glob("*.pt")] == [f"checkpoint-{stop_at - 1}-0.pt"]
    rows: list[int] = []
    resumed_engine = make_engine(run)
    resumed = train(
        run, resumed_engine, on_epoch=lambda run, row: rows.append(row["epoch"]), folder=tmp_path / "stopped"
    )
    assert rows == [epoch for epoch in (2, 4, 6, 7) if epoch >= stop_at]
    whole_engine = make_engine(run)
    whole = train(run, whole_engine, on_epoch=ignore, folder=tmp_path / "whole")
    assert without_time(resumed) == without_time(whole)
    assert resumed_engine.flats()[0].equal(whole_engine.flats()[0])
    assert all(resumed_engine.buffers()[name].equal(values) for name, values in whole_engine.buffers().items())
    assert read_norms(tmp_path / "stopped").equals(read_norms(tmp_path / "whole"))


def test_a_model_that_holds_what_is_no_number_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> nn.Module:
        model = digits.model()
        nn.init.constant_(next(model.parameters()), torch.nan)
        return model

    monkeypatch.setitem(TASKS, "digits", dataclasses.replace(TASKS["digits"], model=broken))
    with pytest.raises(ValueError, match=r"parameter '0\.weight' holds 72 of 72 values that are no numbers"):
        make_engine(some_run())


def test_replicas_that_are_no_numbers_from_the_first_step_on(tmp_path: Path) -> None:
    run = some_run()
    engine = make_engine(run)
    engine.flats()[0].fill_(torch.nan)
    outcome = train(run, engine, on_epoch=ignore, folder=tmp_path)
    assert outcome.status == "diverged"
    assert outcome.reason.startswith("the loss of replica 0 became nan at step 0")
    assert (outcome.num_epochs, outcome.epochs) == (0, [])
    assert len(outcome.probes) > 0
    assert read_norms(tmp_path).num_rows == len(outcome.tensors["step"])


def test_a_large_model_is_not_saved_before_it_has_trained_for_a_while(tmp_path: Path) -> None:
    """A checkpoint of a gigabyte is taken to cost a second: the first waits until twenty have passed."""
    run = some_run(epochs=3)
    engine = make_engine(run)
    small = checkpoint.Checkpoints(tmp_path, engine)
    engine.flats = lambda: [torch.empty(2**29, device="meta")]  # type: ignore[method-assign] # 2 GiB, twice
    large = checkpoint.Checkpoints(tmp_path, engine)
    time.sleep(0.1)
    assert small.is_due()
    assert not large.is_due()
