"""The examples, run as a user runs them: by themselves and under torchrun."""

import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from math import log
from pathlib import Path

import pytest
import torch

from worlds import as_torchrun, under

pytestmark = pytest.mark.timeout(300)  # every process of a launch imports torch anew: long on a busy machine
EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = [sys.executable]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
UNIFORM = log(128)
"""The loss of a model that knows nothing of which of 128 letters comes next."""


def torchrun(size: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]


def run(launcher: list[str], example: str, *options: str | Path, cwd: Path | None = None) -> list[str]:
    """The lines that an example prints."""
    command = [*launcher, EXAMPLES / example, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_as_torchrun(size: int, example: str, *options: str | Path) -> list[str]:
    """The lines that an example prints on all workers, in processes that need not import torch each."""
    printed = under(as_torchrun(size), partial(_printed, example, *map(str, options)))
    assert len(printed) == size, "a process failed"
    return [line for lines in printed.values() for line in lines]


def _printed(example: str, *options: str) -> list[str]:
    sys.argv = [example, *options]
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    return said.getvalue().splitlines()


def number(pattern: str, line: str) -> float:
    found = re.search(pattern, line)
    assert found is not None, f"no {pattern!r} in {line!r}"
    return float(found[1])


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_can_be_read_in_one_sitting(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 150


@pytest.mark.parametrize("example", ["image_classifier.py", "small_gpt.py"])
def test_help_shows_how_to_launch(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [example, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(EXAMPLES / example))["parse"]()
    said = capsys.readouterr().out
    assert all(f"\n  {launcher} " in said for launcher in ("python", "torchrun", "srun")), said


def test_the_image_classifier_learns_alone() -> None:
    last = run(ALONE, "image_classifier.py", "--epochs", "5")[-1]
    assert number(r"test accuracy ([\d.]+)%", last) > 90, last
    assert number(r"sent ([\d.]+) MB", last) == 0, last


def test_the_image_classifier_stopped_and_resumed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    options = ("--epochs", "4", "--topology", "alternating-ring", "--checkpoints", tmp_path)
    uninterrupted = run_as_torchrun(2, "image_classifier.py", *options)[-1]
    assert number(r"test accuracy ([\d.]+)%", uninterrupted) > 90, uninterrupted
    assert number(r"sent ([\d.]+) MB", uninterrupted) > 0, uninterrupted

    averaged = (tmp_path / "averaged.pt").rename(tmp_path / "of-the-uninterrupted.pt")
    for epoch in (3, 4):
        shutil.rmtree(tmp_path / f"epoch-{epoch}")
    (tmp_path / "epoch-2" / "rank-1-of-2.pt").unlink()  # as if stopped before this one was written
    resumed = run(torchrun(2), "image_classifier.py", *options, "--resume")
    assert resumed[0] == "going on after epoch 1"

    def without_time(line: str) -> str:
        return re.sub(r"waited [\d.]+ s", "", line)

    assert without_time(resumed[-1]) == without_time(uninterrupted), "the loss to its last digit"
    then, now = torch.load(averaged), torch.load(tmp_path / "averaged.pt")
    assert all(torch.equal(then[name], now[name]) for name in then)


def test_the_small_gpt_learns_on_four(tmp_path: Path) -> None:
    few = ("--steps", "60", "--batch-size", "4", "--accumulate", "2", "--width", "32", "--lr", "1e-2")
    way = ("--bf16-wire", "--topology", "ring", "--out", tmp_path / "gpt.pt")
    last = run_as_torchrun(4, "small_gpt.py", *few, *way)[-1]
    assert number(r"test loss ([\d.]+) a letter", last) < 0.7 * UNIFORM, last
    assert 0 < number(r"replicas ([\d.e+-]+) apart", last) < 1e-2, last
    assert torch.load(tmp_path / "gpt.pt")["letters.weight"].shape == (128, 32)


def test_a_model_of_ones_own_learns_on_sixteen_stacked_replicas() -> None:
    lines = under([{}], partial(_printed, "simulate_own_model.py"))[0]
    assert len(lines) == 4
    assert number(r"averaged model ([\d.]+)%", lines[-1]) > 85, lines


def test_graphs_are_compared_in_python(tmp_path: Path) -> None:
    lines = run(ALONE, "compare_in_python.py", cwd=tmp_path)
    accuracies = {line.split()[0]: number(r"accuracy ([\d.]+)%", line) for line in lines[:5]}
    assert list(accuracies) == ["all-reduce", "complete", "exponential", "torus", "ring"]
    assert min(accuracies.values()) > 85, lines
    assert (tmp_path / lines[-1]).is_file(), "the report"
