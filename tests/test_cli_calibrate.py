"""`gossamer calibrate` as users meet it: alone, under torchrun, and with slips."""

import io
import json
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from gossamer.cli import main
from worlds import as_torchrun, under


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gossamer", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def test_alone_with_links_that_are_given_and_a_plan_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "cluster.json"
    given = ("--task", "digits", "--steps", "3", "--inter", "1gbit", "--out", str(path))
    assert call(monkeypatch, "calibrate", *given) == 0
    assert f"profile: {path}" in capsys.readouterr().out
    assert json.loads(path.read_text())["made"]["parameters"] == 1946
    assert call(monkeypatch, "plan", "--profile", str(path), "--workers", "8", "--json") == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 8


def by_itself(*arguments: str) -> tuple[int, str]:
    """What the command returns and prints in a process that is all its own."""
    sys.argv = ["gossamer", *arguments]
    with redirect_stdout(io.StringIO()) as said:
        try:
            main()
        except SystemExit as stopped:
            return int(stopped.code or 0), said.getvalue()
    return 0, said.getvalue()


def test_under_torchrun_links_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    done = under(as_torchrun(2), partial(by_itself, "calibrate", "--steps", "3", "--out", str(path)))
    assert [done[rank][0] for rank in range(2)] == [0, 0], done
    assert "".join(said for _, said in done.values()).count("profile:") == 1
    told = json.loads(path.read_text())
    assert (told["workers"], told["local_size"]) == (2, 2)
    assert [pair["ends"] for pair in told["pairs"]] == [[0, 1]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no links to measure: start several with torchrun, or give --inter"),
        (("--task", "digit"), "did you mean 'digits'"),
        (("--steps", "0", "--inter", "1gbit"), "--steps 0"),
        (("--inter", "1gbitt"), "did you mean 'gbit'"),
        (("--inter", "1gbit", "--batch-size", "0"), "--batch-size 0"),
        (("--inter", "1gbit", "--device", "tpu"), "--device tpu"),
        (("--inter", "1gbit", "--steps", "1", "--out", "nowhere/x.json"), "cannot write the profile"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert call(monkeypatch, "calibrate", *arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
