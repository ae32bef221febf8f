"""Every synchronous method by name on the bench: it learns, its bytes are counted, and its clock goes by them."""

from typing import Any

import pytest

from gossamer.algorithms import ALGORITHMS
from gossamer.bench import Experiment, Run
from gossamer.bench.experiment import GRAPHS
from gossamer.bench.train import make_engine, train

SETTINGS: dict[str, Any] = {
    "graphs": ("ring",),
    "workers": 4,
    "seeds": 1,
    "epochs": 6,
    "batch_size": 16,
    "centralized": False,
}
VOLUMES = {
    "d-psgd": 1.0,
    "gradient-tracking": 2.0,
    "adaptive:every=1": 2.0,
    "choco": 4 / 64 + 1 / 8 / 512,
    "choco:bits=1": 1 / 64 + 1 / 8 / 512,
    "choco:top_k=0.1": 0.15,
    "choco:random_k=0.1": 0.1,
}
"""What a method sends for each byte of D-PSGD's: of 64 bits a value; places take 32; 512 values share a byte."""


def last_row(run: Run) -> dict[str, Any]:
    outcome = train(run, make_engine(run), on_epoch=lambda run, row: None)
    assert outcome.status == "finished", outcome.reason
    return outcome.epochs[-1]


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_method_learns(name: str) -> None:
    own: dict[str, Any] = {}
    if name == "adaptive":
        own = {"lr": 0.01, "lr_rules": ("none",), "batch_size": 4}  # many small steps
    elif name in ("diloco", "noloco"):  # ten steps alone take a lower rate
        own = {"lr": 0.05, "lr_rules": ("none",), "epochs": 12}
    (run,) = Experiment(algorithm=name, **{**SETTINGS, **own}).runs()
    assert last_row(run)["accuracy"] > 0.8


@pytest.mark.parametrize("name", [name for name in VOLUMES if name != "d-psgd"])
def test_bytes_and_time_are_those_of_what_is_sent(name: str) -> None:
    """Where gradients and messages take no time, all there is to wait for is bytes."""
    settings = {**SETTINGS, "epochs": 1, "compute_s": 1e-12, "latency_s": 0.0, "gbit_per_s": 0.001}
    plain, sent = (last_row(Experiment(algorithm=method, **settings).runs()[0]) for method in ("d-psgd", name))
    assert sent["bytes_sent"] / plain["bytes_sent"] == pytest.approx(VOLUMES[name], rel=0.01)
    assert sent["virtual_s"] / plain["virtual_s"] == pytest.approx(VOLUMES[name], rel=0.01)


def test_graphs_are_those_that_a_method_can_run_on() -> None:
    assert Experiment(algorithm="choco").graphs == ("complete", "exponential", "torus", "ring")
    assert Experiment(algorithm="noloco").graphs == ("random-matching", *GRAPHS)
    assert Experiment(algorithm="d2").graphs == GRAPHS
    with pytest.raises(ValueError, match="take a graph that stays"):
        Experiment(algorithm="choco", graphs=("ada",))


def test_where_no_graph_plays_a_part_there_is_one_run() -> None:
    (run,) = Experiment(algorithm="diloco:every=5", graphs=("ring", "torus"), seeds=1, centralized=False).runs()
    assert (run.label, run.folder) == ("diloco:every=5", "diloco-every5-n16-sqrt-seed0")
