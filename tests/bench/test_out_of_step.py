"""Asynchronous methods of the bench with a process, or here mostly a thread, for each worker."""

import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import ProcessGroup
from typer.testing import CliRunner

from gossamer.bench import Experiment, Run, run
from gossamer.bench.feed import Feed
from gossamer.bench.in_turn import train_in_turn
from gossamer.bench.out_of_step import Worker, serve
from gossamer.bench.outcome import Outcome
from gossamer.bench.pace import Pace
from gossamer.bench.train import make_engine, train
from gossamer.cli import app
from gossamer.engines import Asynchronous
from ranks import run_ranks

METHODS = ("ad-psgd", "parameter-server")
SMALL = Experiment(
    graphs=("ring",),
    workers=4,
    seeds=1,
    epochs=2,
    batch_size=16,
    algorithm="ad-psgd",
    centralized=False,
    engine="processes",
)


def one(algorithm: str, **settings: object) -> Run:
    (only,) = replace(SMALL, algorithm=algorithm, **settings).runs()
    return only


def outcomes(run: Run, folder: Path, on_epoch: Callable[[Run, dict], None] = lambda run, row: None) -> list[Outcome]:
    """What each worker has in the end, a thread a rank."""

    def rank(group: ProcessGroup) -> Outcome | None:
        if group.rank() == run.workers:
            train_in_turn([run], lambda event: None, folder, group)
            return None
        engine = make_engine(run, group)
        outcome = train(run, engine, on_epoch=on_epoch, folder=folder)
        engine.close()
        return outcome

    return run_ranks(run.num_processes, rank)[: run.workers]


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The batches that workers take."""
    places: list[tuple[int, int, int]] = []
    pick = Feed.pick
    monkeypatch.setattr(Feed, "pick", lambda self, asked: (places.extend(asked), pick(self, asked))[1])
    return places


def batches_of(run: Run, epochs: int) -> set[tuple[int, int, int]]:
    return {(e, s, w) for e in range(epochs) for s in range(run.steps_per_epoch) for w in range(run.workers)}


@pytest.mark.parametrize("algorithm", METHODS)
def test_processes_train_and_everything_is_kept(algorithm: str, tmp_path: Path) -> None:
    experiment = replace(SMALL, algorithm=algorithm, workers=3 if algorithm == METHODS[1] else 4, epochs=8, lr=0.3)
    results = run(experiment, tmp_path)
    (row,), (only,) = results.summary, results.runs
    assert row["accuracy"] > 0.8
    assert row["epoch_s"] > 0
    assert only.status == "finished"
    assert [epoch["epoch"] for epoch in only.epochs] == list(range(1, 9))
    seconds = [epoch["seconds"] for epoch in only.epochs]
    assert 0 < seconds[0] < seconds[-1]
    assert sum(only.staleness.values()) == only.run.num_steps * only.run.workers
    assert only.final["bytes_sent"] > 0
    assert only.final["virtual_s"] > 0
    assert only.final["replica_accuracy_min"] > 0.5
    assert {look["step"] + 1 for look in only.probes} == {(e + 1) * only.run.steps_per_epoch for e in range(8)}
    assert 'id="staleness"' in results.report.read_text()
    assert run(experiment, tmp_path, lambda event: None).runs[0].epochs == only.epochs, "what is done is not done again"


@pytest.mark.parametrize("algorithm", METHODS)
def test_the_work_is_shared_and_a_slow_worker_does_less(
    algorithm: str, tmp_path: Path, picked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    only = one(algorithm, compute_s=0.01, slow="2=20", epochs=2)
    whose: list[torch.Tensor] = []
    epoch = Worker.train_epoch

    def noting(self, *arguments):
        found = epoch(self, *arguments)
        if self.worker == 0:
            whose.append(found[1])
        return found

    monkeypatch.setattr(Worker, "train_epoch", noting)
    results = outcomes(only, tmp_path)
    assert Counter(picked).most_common(1)[0][1] == 1, "no batch is taken twice"
    missing = batches_of(only, 2) - set(picked)
    assert len(missing) <= only.workers, "but for those under way when the last gradient came"
    counts = torch.cat([each.flatten() for each in whose]).bincount(minlength=4).tolist()
    assert sum(counts) == only.num_steps * 4
    assert 0 < counts[2] < min(counts[:2] + counts[3:]) / 4
    for each in results:
        assert each.staleness == results[0].staleness
        assert [row["accuracy"] for row in each.epochs] == [row["accuracy"] for row in results[0].epochs]


def test_one_swap_follows_each_gradient_as_in_virtual_time(tmp_path: Path) -> None:
    """Of several that fall due while one is under way the real ones become one, so there may be fewer."""
    only = one("ad-psgd", compute_s=0.02, epochs=1)

    def rank(group: ProcessGroup) -> float:
        engine = make_engine(only, group)
        train(only, engine, on_epoch=lambda run, row: None)
        engine.close()
        return float(engine.bytes_sent[0])

    virtual = make_engine(replace(only, engine="stacked", paced=False))
    train(only, virtual, on_epoch=lambda run, row: None)
    model_bytes, gradients = 1946 * 8, only.num_steps * 4
    real, expected = (sum(sent) / (2 * model_bytes) for sent in (run_ranks(4, rank), virtual.bytes_sent))
    assert gradients - 4 <= expected <= gradients
    assert gradients / 2 <= real <= gradients + 4
    assert real == int(real)


def test_shares_that_differ_on_purpose_are_not_shared(tmp_path: Path, picked: list[tuple[int, int, int]]) -> None:
    only = one("ad-psgd", alpha=0.5, epochs=1)
    outcomes(only, tmp_path)
    for worker in range(4):
        own = [(epoch, step) for epoch, step, share in picked if share == worker]
        assert own == sorted(own), "each goes through its own, in order"


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_that_was_stopped_goes_on(
    algorithm: str, tmp_path: Path, picked: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.bench.checkpoint.Checkpoints.is_due", lambda self: True)
    only = one(algorithm, epochs=4, workers=2)
    resumed = tmp_path / "resumed"
    resumed.mkdir()

    def keep(run: Run, row: dict) -> None:
        """What lies there when the third epoch is over: the second."""
        if row["epoch"] == 3:
            for file in tmp_path.glob("stopped/checkpoint-2-*.pt"):
                (resumed / file.name).write_bytes(file.read_bytes())

    outcomes(only, tmp_path / "stopped", keep)
    saved = [torch.load(file, weights_only=True)["engine"] for file in sorted(resumed.iterdir())]
    picked.clear()
    (first, second) = outcomes(only, resumed)
    assert [row["epoch"] for row in first.epochs] == [1, 2, 3, 4]
    assert sum(first.staleness.values()) == only.num_steps * 2
    assert first.staleness == second.staleness
    assert first.epochs[-1]["seconds"] > first.epochs[1]["seconds"]
    left = batches_of(only, 4) - batches_of(only, 2)
    taken_again = {each["taken"][0] for each in saved if each["taken"] is not None}
    numbers = {e * only.steps_per_epoch * 2 + s * 2 + w for e, s, w in picked}
    assert numbers >= taken_again
    assert min(numbers - taken_again) == saved[0]["num_taken"], "it goes on with the next batch"
    assert len(left - set(picked)) <= 2 + len(taken_again)
    if algorithm == "parameter-server":
        server = [each["server"] for each in saved]
        assert server[0] is not None
        assert server[1] is None, "the first worker keeps it"


def test_a_server_has_its_own_state_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Momentum is on the server only, which has no file: the first worker keeps it, and gives it back."""
    monkeypatch.setattr("gossamer.bench.checkpoint.Checkpoints.is_due", lambda self: True)
    monkeypatch.setattr("gossamer.bench.in_turn.serve", lambda training: servers.append(training) or serve(training))
    servers: list[Asynchronous] = []
    only = one("parameter-server", workers=1, epochs=2, batch_size=64)
    outcomes(replace(only, epochs=2), tmp_path)
    kept = torch.load(tmp_path / "checkpoint-1-0.pt", weights_only=True)["engine"]["server"]
    state = torch.load(io.BytesIO(kept.numpy().tobytes()), weights_only=True)
    assert state["optimizer"]["state"]

    def rank(group: ProcessGroup) -> None:
        if group.rank() == 1:
            train_in_turn([only], lambda event: None, tmp_path, group)
        else:
            engine = make_engine(only, group)
            engine.load_state_dict(torch.load(tmp_path / "checkpoint-1-0.pt", weights_only=True)["engine"])
            engine.close()

    run_ranks(2, rank)
    momentum = servers[1].optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, state["optimizer"]["state"][0]["momentum_buffer"])


def test_workers_that_wait_for_each_other_keep_the_pace_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: dict[int, list[float]] = {0: [], 1: [], 2: []}
    monkeypatch.setattr(Pace, "rest", lambda self: slept[self._worker].append(self.left_s()))
    only = one("d-psgd", workers=3, compute_s=1000.0, slow="1=3", epochs=1)
    outcomes(only, tmp_path)
    assert {worker: len(times) for worker, times in slept.items()} == dict.fromkeys(range(3), only.num_steps)
    for worker, mean_s in ((0, 1000), (1, 3000), (2, 1000)):
        assert all(mean_s - 60 < left_s < mean_s for left_s in slept[worker])


def test_a_pace_is_that_of_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gossamer.bench.pace.time.monotonic", lambda: now[0])
    given = one("ad-psgd", compute_s=2.0, jitter="lognormal:spread=0.5", slow="1=3")
    times, pace = given.cluster().times(), Pace(given, 1)
    for _ in range(20):
        pace.begin()
        now[0] += 0.5
        assert pace.left_s() == pytest.approx(max(times.next(1) - 0.5, 0.0))
    as_it_is = one("ad-psgd", slow="1=3")
    for worker, left_s in ((0, 0.0), (1, 1.0)):
        pace = Pace(as_it_is, worker)
        now[0] += 0.5
        assert pace.left_s() == pytest.approx(left_s), "three times what it took"


def test_a_loss_that_is_no_number_names_its_worker(tmp_path: Path) -> None:
    only = one("ad-psgd", workers=2, lr=1e300)
    (first, _) = outcomes(only, tmp_path)
    assert first.status == "diverged"
    assert first.reason.startswith("the loss of replica ")


def test_real_time_is_another_experiment() -> None:
    usual, paced = SMALL, replace(SMALL, compute_s=0.01)
    assert usual.folder != paced.folder
    assert not usual.runs()[0].paced
    assert paced.runs()[0].paced
    virtual = replace(SMALL, engine="stacked", compute_s=0.01)
    assert virtual.folder == replace(SMALL, engine="stacked").folder


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"probe_every": 5}, "no step in common"),
        ({"graphs": ("complete",)}, "not bipartite"),
        ({"slow": "4=2"}, "ranks go from 0 to 3"),
        ({"compute_s": -1.0}, "above 0"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(SMALL, **settings)


def test_torchrun_cannot_have_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "4"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="has a server, 5: start without torchrun"):
        run(replace(SMALL, algorithm="parameter-server", centralized=True), tmp_path)
    with pytest.raises(ValueError, match="torchrun with --nproc-per-node 5"):
        run(replace(SMALL, algorithm="parameter-server"), tmp_path)


def test_on_the_command_line(tmp_path: Path) -> None:
    command = ["bench", "--engine", "processes", "--workers", "2", "--seeds", "1", "--epochs", "1", "--json"]
    done = CliRunner().invoke(app, [*command, "--algorithm", "ad-psgd", "--graphs", "ring", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["graph"] for row in rows] == ["all-reduce", "ring"]
    assert rows[1]["staleness_mean"] is not None
    assert all(row["epoch_s"] > 0 for row in rows)
