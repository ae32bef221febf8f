"""Joined runs: what is read, what is left out, what is refused, and what the page calls it."""

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gossamer.bench import Experiment, run
from gossamer.bench.joined import PAGE, join

PLAIN = Experiment(graphs=("ring", "complete"), workers=(16, 32), seeds=1, epochs=1)
LOCAL = dataclasses.replace(PLAIN, algorithm="local-sgd:every=2", workers=32, centralized=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with two experiments, really trained."""
    root = tmp_path_factory.mktemp("trained")
    run(PLAIN, root)
    run(LOCAL, root)
    return root


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "results"))


def folder_of(results: Path, name: str) -> Path:
    (found,) = results.glob(f"*/{name}")
    return found


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value != "left out"}))


def labels(page: Path) -> list[str]:
    """The first column of the table of results."""
    text = page.read_text(encoding="utf-8")
    table = text[text.index('<table class="results">') : text.index("</table>")]
    return [re.sub("<[^>]*>", "", row) for row in re.findall(r'<th scope="row">(.*?)</th>', table)]


def test_two_experiments_share_a_page_and_a_table(results: Path, tmp_path: Path) -> None:
    joined = join([results], table=tmp_path / "runs.csv")
    assert joined.page == results / PAGE
    assert (joined.unfinished, joined.repeated) == (0, 0)
    # At either size the baseline first, then graphs as the experiment was given them; what differs is in the label.
    assert labels(joined.page) == [
        "all-reduce",
        "ring · d-psgd",
        "complete · d-psgd",
        "all-reduce",
        "ring · d-psgd",
        "complete · d-psgd",
        "ring · local-sgd:every=2",
        "complete · local-sgd:every=2",
    ]
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(joined.rows) == 8
    assert [row["workers"] for row in rows].count("16") == 3
    assert {row["status"] for row in rows} == {"finished"}
    for row, kept in zip(rows, joined.rows, strict=True):
        assert float(row["accuracy"]) == kept["accuracy"]
        assert float(row["gini_over_training"]) == pytest.approx(kept["gini"])  # one epoch is all of the training
        assert Path(row["folder"], "outcome.json").exists()


def test_one_experiment_or_one_run_can_be_named(results: Path, tmp_path: Path) -> None:
    ring = folder_of(results, "ring-n16-sqrt-seed0")
    of_run = join([ring], page=tmp_path / "one.html")
    assert labels(of_run.page) == ["ring"]
    of_experiment = join([ring.parent], page=tmp_path / "experiment.html")
    assert len(of_experiment.rows) == 6
    (local,) = results.glob("*local-sgd*")
    both = join([ring, local], page=tmp_path / "both.html")
    assert labels(both.page) == ["ring", "ring", "complete"], "at each size there is one algorithm"


def test_what_is_not_over_is_counted_and_left_out(results: Path) -> None:
    (folder_of(results, "complete-n16-sqrt-seed0") / "outcome.json").unlink()
    joined = join([results])
    assert joined.unfinished == 1
    assert len(joined.rows) == 7
    assert "Not shown: 1 run that is not over." in joined.page.read_text(encoding="utf-8")


def test_a_copy_is_no_second_seed(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = folder_of(results, "ring-n16-sqrt-seed0")
    shutil.copytree(ring.parent, results / "copy")
    joined = join([results])
    assert joined.repeated == 6
    assert len(joined.rows) == 8
    monkeypatch.chdir(tmp_path)
    several = join([ring, ring.parent, ring])
    assert several.repeated == 0, "a folder that is named twice is one folder"
    assert several.page == Path(PAGE)
    assert (tmp_path / PAGE).exists()


def test_the_same_run_of_another_version_is_told_apart(results: Path) -> None:
    shutil.copytree(folder_of(results, "ring-n16-sqrt-seed0").parent, results / "later")
    for environment in (results / "later").glob("*/environment.json"):
        edit(environment, versions={"gossamer": "99.0"})
    page = join([results]).page
    assert "all-reduce · gossamer 99.0" in labels(page)
    assert "ring · d-psgd · gossamer 99.0" in labels(page)


def test_diverged_runs_are_shown_as_such(results: Path) -> None:
    outcome = folder_of(results, "ring-n16-sqrt-seed0") / "outcome.json"
    edit(outcome, status="diverged", reason="the loss of replica 3 became nan")
    joined = join([results])
    (row,) = [row for row in joined.rows if row["status"] == "diverged"]
    assert row["graph"] == "ring"
    assert "the loss of replica 3 became nan" in joined.page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"lr_rule": "left out"}, r"another version of Gossamer \(it lacks lr_rule\)"),
        ({"momentum": 0.9}, r"another version of Gossamer \(it has the unknown momentum\)"),
        ({"alpha": "left out", "momentum": 0.9}, r"it lacks alpha and has the unknown momentum"),
        ({"graph": "moebius"}, r"cannot be read by this version of Gossamer \(unknown graph 'moebius'"),
        ({"lr_rule": "cubic"}, r"cannot be read by this version of Gossamer \(unknown learning-rate rule 'cubic'"),
    ],
    ids=["missing", "unknown", "both", "graph", "rule"],
)
def test_settings_of_another_version_are_refused_in_a_sentence(
    results: Path, changes: dict[str, Any], complaint: str
) -> None:
    config = folder_of(results, "ring-n16-sqrt-seed0") / "config.json"
    edit(config, **changes)
    with pytest.raises(ValueError, match=complaint) as refused:
        join([results])
    assert str(config) in str(refused.value)
    assert not (results / PAGE).exists()


@pytest.mark.parametrize(
    "file", ["outcome.json", "epochs.parquet", "tensors.parquet", "environment.json", "config.json"]
)
def test_damaged_results_are_named(results: Path, file: str) -> None:
    ring = folder_of(results, "ring-n16-sqrt-seed0")
    (ring / file).write_bytes(b"{")
    with pytest.raises(ValueError, match="damaged") as refused:
        join([results])
    assert str(ring) in str(refused.value)


def test_an_unknown_ending_is_damage(results: Path) -> None:
    edit(folder_of(results, "ring-n16-sqrt-seed0") / "outcome.json", status="bored")
    with pytest.raises(ValueError, match="its status is 'bored'"):
        join([results])


def test_nothing_to_join_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        join([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="there are no runs in"):
        join([tmp_path])
    with pytest.raises(ValueError, match="there is no finished run in nowhere"):
        join([])


def test_nothing_finished_is_refused(results: Path) -> None:
    for outcome in results.glob("*/*/outcome.json"):
        outcome.unlink()
    with pytest.raises(ValueError, match=r"there is no finished run in .* \(8 still to finish\)"):
        join([results])


def test_a_page_that_cannot_be_written_is_a_sentence(results: Path) -> None:
    with pytest.raises(ValueError, match="cannot write"):
        join([results], page=results / "no" / "such" / "folder.html")
