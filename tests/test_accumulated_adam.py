"""The comparison of accumulated Adam with all-reduce Adam chooses rates, goes on and stops as it says."""

from dataclasses import replace
from math import log2
from pathlib import Path

import pytest

import accumulated_adam
from accumulated_adam import SETTINGS, Method, Row, Setting, measure
from gossamer.tasks import Dataset

DIGITS = next(setting for setting in SETTINGS if setting.name == "digits")
SETTING = replace(
    DIGITS,
    num_steps=2,
    lrs=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    tuning_seeds=range(100, 101),
    seeds=range(2),
    methods=DIGITS.methods[:2],
)
Trained = list[tuple[str, float, int]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Trainings that are only noted; the best rate is 2e-3."""
    noted: Trained = []

    def train(setting: Setting, method: Method, lr: float, seed: int, data: Dataset) -> Row:
        noted.append((method.name, lr, seed))
        return {"loss": f"{1 + abs(log2(lr / 2e-3)):.6f}", "accuracy": "0.5", "seconds": "1.0"}

    monkeypatch.setattr(accumulated_adam, "train", train)
    return noted


def test_rates_are_tried_from_the_middle_until_one_is_better_than_both_its_neighbours(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(tmp_path, [SETTING])
    of_one = [(2e-3, 100), (4e-3, 100), (8e-3, 100), (1e-3, 100), (2e-3, 0), (2e-3, 1)]
    assert trained == [(method.name, *each) for method in SETTING.methods for each in of_one]
    said = capsys.readouterr().out
    assert all(method.name in said for method in SETTING.methods)
    assert "1.0000 ± 0.0000" in said


def test_what_is_done_is_not_done_again(tmp_path: Path, trained: Trained) -> None:
    measure(tmp_path, [SETTING])
    done = len(trained)
    measure(tmp_path, [SETTING])
    assert len(trained) == done
    measure(tmp_path, [replace(SETTING, seeds=range(3))])
    assert trained[done:] == [(method.name, 2e-3, 2) for method in SETTING.methods]


def test_begins_no_training_that_would_end_too_late(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(tmp_path, [SETTING], limit_s=0.5)
    assert len(trained) == 1  # how long one takes is not known before
    assert len(capsys.readouterr().out.splitlines()) == 2  # the head of the table


def test_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(tmp_path, [replace(SETTING, lrs=(1e-3,), methods=DIGITS.methods)])
    said = capsys.readouterr().out
    assert all(f"  {method.name:22} {method.graph:41}  0.001  2" in said for method in DIGITS.methods)
