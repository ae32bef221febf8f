"""Runs in virtual time: asynchronous methods train, every row has a clock, slow workers cost what they should."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gossamer.bench import Experiment, Run, run
from gossamer.bench.outcome import Outcome
from gossamer.bench.train import make_engine, train

SMALL = Experiment(
    graphs=("ring",),
    workers=4,
    seeds=1,
    epochs=2,
    batch_size=16,
    algorithm="ad-psgd",
    centralized=False,
    compute_s=1.0,
    latency_s=0,
)


def outcome(run: Run) -> Outcome:
    return train(run, make_engine(run), on_epoch=lambda run, row: None)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    experiment = replace(SMALL, workers=8, epochs=8, centralized=True, slow="3=10", compute_s=0.01)
    return run(experiment, tmp_path_factory.mktemp("results"))


def test_pairs_learn_while_one_worker_is_slow(results) -> None:
    reduced, pairs = results.summary
    assert (reduced["graph"], pairs["graph"]) == ("all-reduce", "ring")
    assert pairs["accuracy"] > 0.85
    assert pairs["accuracy"] > reduced["accuracy"] - 0.1
    assert pairs["virtual_s"] < 0.2 * reduced["virtual_s"]


def test_the_slow_worker_costs_a_synchronous_method_its_factor(results) -> None:
    steps = results.runs[0].run.steps_per_epoch
    for row in results.runs[0].epochs:
        assert row["virtual_s"] == pytest.approx(row["epoch"] * steps * 0.1, rel=0.02)


def test_staleness_is_kept_as_a_distribution(results) -> None:
    stale = results.runs[-1]
    assert sum(stale.staleness.values()) == stale.run.num_steps * 8
    mean = sum(number * count for number, count in stale.staleness.items()) / sum(stale.staleness.values())
    assert stale.final["staleness_mean"] == pytest.approx(mean)
    assert stale.final["staleness_max"] == max(stale.staleness)
    assert results.runs[0].staleness == {}
    said = json.loads((results.folder / stale.run.folder / "outcome.json").read_text())
    assert said["staleness"] == {str(number): count for number, count in stale.staleness.items()}


def test_the_report_shows_who_waits(results) -> None:
    page = results.report.read_text()
    assert "Who waits for whom" in page
    assert page.count('<figure class="timeline') == 2
    assert "3 (10×)" in page
    assert "by virtual time" in page
    assert 'id="staleness"' in page


def test_without_slow_workers_an_epoch_takes_its_steps() -> None:
    (only,) = SMALL.runs()
    for algorithm in ("ad-psgd", "parameter-server", "d-psgd", "local-sgd"):
        rows = outcome(replace(only, algorithm=algorithm, gbit_per_s=1e9)).epochs
        assert [row["virtual_s"] for row in rows] == pytest.approx([only.steps_per_epoch, 2 * only.steps_per_epoch])


@pytest.mark.parametrize("algorithm", ["all-reduce", "d-psgd", "listening-ada"])
def test_one_worker_alone_waits_for_nobody(algorithm: str) -> None:
    (only,) = Experiment(
        workers=1, graphs=("complete",), algorithm=algorithm, epochs=1, seeds=1, centralized=False
    ).runs()
    assert outcome(only).epochs[-1]["virtual_s"] == pytest.approx(only.steps_per_epoch * only.compute_s)


def test_averages_at_will_are_paid_for_as_all_reduces() -> None:
    """As many as there were; who pauses is alone then, and nobody waits for him."""
    settings = {"latency_s": 0.01, "compute_s": 0.01, "workers": 8, "epochs": 2, "seeds": 1, "warmup_epochs": 0}
    last, steps = {}, 0
    for algorithm in ("listening-ada:apart=1e-12", "listening-ada:apart=0.1:most=2:parts=1"):
        for each in Experiment(algorithm=algorithm, **settings).runs():
            last[each.algorithm], steps = outcome(each).epochs[-1], each.num_steps
    all_reduce, dense, pausing = last.values()
    exchange_s = all_reduce["virtual_s"] / steps - 0.01
    for row, share in ((dense, 1.0), (pausing, 0.5)):
        averages = steps * row["bytes_sent"] / all_reduce["bytes_sent"]
        assert averages == pytest.approx(share * steps, rel=0.1)
        # bytes are also those of what is heard: six numbers, beside 1,946 parameters
        assert row["virtual_s"] == pytest.approx(steps * 0.01 + averages * exchange_s, rel=3e-3)


def test_what_is_sent_is_known_step_by_step() -> None:
    """Of listening-ada, which decides it at every step, together what the engine has counted."""
    (only,) = Experiment(
        algorithm="listening-ada:apart=0.03",
        graphs=("nodes:local_size=2",),
        workers=4,
        centralized=False,
        seeds=1,
        epochs=4,
    ).runs()
    engine = make_engine(only)
    sent = torch.tensor(train(only, engine, on_epoch=lambda run, row: None).sent)
    assert sent.shape == (only.num_steps, 4)
    assert sent.sum().item() == pytest.approx(engine.bytes_sent.sum())
    assert sent[:, [1, 3]].sum().item() == pytest.approx(engine.bytes_averaged.sum())
    assert sent[:, :2].sum().item() == pytest.approx(engine.bytes_before_steps.sum())
    shares = sent[:, 1] / sent[:, 1].max()
    assert shares[0] == 1, "all of the model"
    assert 0 < shares[-10:].mean() < 0.7, "parts of it"
    assert (sent[shares > 0.99, 0] == 0).all(), "what everybody averages is not averaged in nodes before"
    assert (sent[shares < 0.99, 0] > 0).all()


def test_models_that_are_sent_after_a_step_belong_to_it() -> None:
    """SlowMo: a model to each neighbour after most steps, and after every third an all-reduce."""
    (only,) = Experiment(
        algorithm="slowmo:every=3", graphs=("ring",), workers=4, centralized=False, seeds=1, epochs=2
    ).runs()
    engine = make_engine(only)
    sent = torch.tensor(train(only, engine, on_epoch=lambda run, row: None).sent)
    model = engine.flats()[0].nbytes
    is_third = [(step + 1) % 3 == 0 for step in range(only.num_steps)]
    assert sent[:, :2].eq(0).all()
    assert sent[:, 2].tolist() == pytest.approx([2 * model * (not third) for third in is_third])
    assert sent[:, 3].tolist() == pytest.approx([1.5 * model * third for third in is_third])


def test_measuring_more_often_changes_nothing() -> None:
    (only,) = SMALL.runs()
    some, every = outcome(only), outcome(replace(only, probe_every=1))
    assert len(every.probes) == only.num_steps > len(some.probes)
    assert [row["accuracy"] for row in some.epochs] == [row["accuracy"] for row in every.epochs]
    assert [row["train_loss"] for row in some.epochs] == [row["train_loss"] for row in every.epochs]


def test_the_same_seed_is_the_same_run() -> None:
    (only,) = replace(SMALL, jitter="lognormal:spread=0.3", slow="1=3").runs()
    one, other = outcome(only), outcome(only)
    assert [row | {"seconds": 0} for row in one.epochs] == [row | {"seconds": 0} for row in other.epochs]


@pytest.mark.parametrize("algorithm", ["ad-psgd", "parameter-server", "d-psgd", "listening-ada:apart=0.03"])
def test_a_run_that_was_stopped_goes_on(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.bench.checkpoint.Checkpoints.is_due", lambda self: True)
    (only,) = replace(SMALL, epochs=4, jitter="gamma:spread=0.3", slow="1=5").runs()
    only = replace(only, algorithm=algorithm)

    class Stopped(Exception):
        pass

    def stop(run: Run, row: dict) -> None:
        if row["epoch"] == 3:
            raise Stopped

    with pytest.raises(Stopped):
        train(only, make_engine(only), on_epoch=stop, folder=tmp_path)
    assert list(tmp_path.glob("checkpoint-2-*.pt"))
    resumed = train(only, make_engine(only), on_epoch=lambda run, row: None, folder=tmp_path)
    through = outcome(only)
    assert [row | {"seconds": 0} for row in resumed.epochs] == [row | {"seconds": 0} for row in through.epochs]
    assert resumed.staleness == through.staleness


def test_work_is_shared_and_shares_that_differ_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads takes the next batch; where shares differ on purpose, everybody stays with its own."""
    from gossamer.bench.feed import Feed

    picked: list[list[tuple[int, int, int]]] = []
    pick = Feed.pick
    monkeypatch.setattr(Feed, "pick", lambda self, places: (picked.append(list(places)), pick(self, places))[1])
    (only,) = replace(SMALL, slow="2=100").runs()
    outcome(only)
    taken = {place for places in picked for place in places}
    everything = {(e, s, w) for e in range(2) for s in range(only.steps_per_epoch) for w in range(4)}
    assert everything <= taken, "though worker 2 computes next to nothing"
    picked.clear()
    outcome(replace(only, alpha=0.5))
    for places in picked[1:]:
        assert all(whose == worker for worker, (_, _, whose) in enumerate(places) if worker != 2)


def test_a_loss_that_is_no_number_names_its_worker() -> None:
    (only,) = SMALL.runs()
    engine = make_engine(only)
    engine.flats()[0][2] = torch.nan
    engine._read[0][2] = torch.nan
    broken = train(only, engine, on_epoch=lambda run, row: None)
    assert broken.status == "diverged"
    assert broken.reason.startswith("the loss of replica 2 became nan at step 0")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"graphs": ("complete",)}, "not bipartite"),
        ({"graphs": ("one-peer-exponential",)}, "changes from step to step"),
        ({"slow": "4=2"}, "ranks go from 0 to 3"),
        ({"jitter": "uniform"}, "unknown jitter"),
        ({"compute_s": 0.0}, "above 0"),
        ({"gbit_per_s": 0.0}, "above 0"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(SMALL, **settings)


def test_graphs_of_pairs_are_the_default_of_pairs() -> None:
    assert Experiment(algorithm="ad-psgd").graphs == ("bipartite-exponential", "ring")
    server = Experiment(algorithm="parameter-server", seeds=1)
    assert [run.label for run in server.runs()] == ["all-reduce", "parameter-server"]


def test_the_usual_clock_does_not_rename_results() -> None:
    """Results of before virtual time are found again; another clock is another experiment."""
    usual, slow = (Experiment(graphs=("ring",), workers=4, seeds=1, epochs=1, slow=slow) for slow in ("", "1=2"))
    assert usual.folder != slow.folder
    assert replace(SMALL, slow="2=10,1=3").folder == replace(SMALL, slow="1=3.0, 2=1e1").folder
    assert not {"slow", "jitter", "compute_s", "latency_s", "gbit_per_s"} & usual.runs()[0].telling().keys()
