"""Sweeps: what is on disk, what survives a kill, what is refused."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gossamer import tasks
from gossamer.bench import (
    EpochDone,
    Event,
    Experiment,
    Results,
    RunDone,
    RunStarted,
    SweepStarted,
    WorkerFailed,
    checkpoint,
    run,
)
from gossamer.cli import app
from worlds import as_torchrun, group_lives, under

TINY = Experiment(graphs=("ring", "ada"), workers=32, seeds=1, epochs=3)
"""Many workers: few steps an epoch."""
ON_PROCESSES = dataclasses.replace(TINY, workers=4, epochs=1, batch_size=16, engine="processes")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The tiny experiment, undisturbed; not to be written to."""
    return run(TINY, tmp_path_factory.mktemp("once"))


@pytest.fixture
def done(once: Results, tmp_path: Path) -> Path:
    """The folders of its results, in a copy inside `tmp_path`."""
    return Path(shutil.copytree(once.folder, tmp_path / once.folder.name))


def rows(results: Results) -> dict[str, list[dict[str, Any]]]:
    """All epochs of all runs but for the time they took."""
    return {
        result.run.folder: [{k: v for k, v in row.items() if k != "seconds"} for row in result.epochs]
        for result in results.runs
    }


def trained(experiment: Experiment, out: Path) -> tuple[list[str], Results]:
    """The folders of the runs that were really trained, and all results."""
    events: list[Event] = []
    results = run(experiment, out, events.append)
    return [event.run.folder for event in events if isinstance(event, RunStarted)], results


def test_what_another_experiment_has_trained_is_taken_over(once: Results, done: Path, tmp_path: Path) -> None:
    """More seeds or graphs, or another method beside the same all-reduce: only what is new is trained."""
    more = dataclasses.replace(TINY, graphs=("ring",), seeds=2)
    started, results = trained(more, tmp_path)
    assert started == ["all-reduce-n32-sqrt-seed1", "ring-n32-sqrt-seed1"]
    assert results.folder != done
    assert len(results.runs) == 4
    assert {folder: them for folder, them in rows(results).items() if "seed0" in folder}.items() <= rows(once).items()
    shutil.rmtree(done)  # results do not need the folder that they came from
    assert rows(trained(more, tmp_path)[1]) == rows(results)


@pytest.mark.parametrize(
    ("file", "name", "value"), [("environment.json", "processor", "another"), ("config.json", "lr", 1.0)]
)
def test_what_was_trained_otherwise_is_trained_again(
    done: Path, tmp_path: Path, file: str, name: str, value: Any
) -> None:
    for path in done.glob(f"*/{file}"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    started, _ = trained(dataclasses.replace(TINY, graphs=("ring",)), tmp_path)
    assert len(started) == 2


@pytest.mark.parametrize("file", ["config.json", "environment.json", "epochs.parquet"])
def test_what_cannot_be_read_is_trained_again(done: Path, tmp_path: Path, file: str) -> None:
    for path in done.glob(f"*/{file}"):
        path.write_text("{")
    assert len(trained(dataclasses.replace(TINY, graphs=("ring",)), tmp_path)[0]) == 2


def test_what_is_on_disk(tmp_path: Path) -> None:
    results = run(TINY, tmp_path)
    assert results.folder.parent == tmp_path
    assert json.loads((results.folder / "experiment.json").read_text())["workers"] == 32
    assert [row["graph"] for row in json.loads((results.folder / "summary.json").read_text())] == [
        "all-reduce",
        "ring",
        "ada",
    ]
    folder = results.folder / "ring-n32-sqrt-seed0"
    assert json.loads((folder / "config.json").read_text())["graph"] == "ring"
    assert "torch" in json.loads((folder / "environment.json").read_text())["versions"]
    assert json.loads((folder / "outcome.json").read_text())["status"] == "finished"
    assert pq.read_table(folder / "epochs.parquet").num_rows == 3
    tensors = pq.read_table(folder / "tensors.parquet").to_pydict()
    assert (len(set(tensors["step"])), len(set(tensors["tensor"])), len(tensors["gini"])) == (9, 10, 90)
    assert not list(results.folder.rglob("*.part"))
    assert not list(results.folder.rglob("checkpoint*"))


def test_two_ways_to_write_a_name_are_one_experiment() -> None:
    experiment = Experiment(graphs=("Ring", "ring", "Ring_Lattice:k=2"), workers=4, algorithm="D_PSGD", seeds=1)
    assert experiment.graphs == ("ring", "ring", "ring-lattice:k=2")
    assert [each.label for each in experiment.runs()] == ["all-reduce", "ring", "ring-lattice:k=2"]
    centralized = Experiment(workers=4, algorithm="All_Reduce", seeds=1)
    assert [each.label for each in centralized.runs()] == ["all-reduce"]


def test_events_tell_the_story(tmp_path: Path) -> None:
    events: list[Event] = []
    run(dataclasses.replace(TINY, graphs=("ring",), centralized=False), tmp_path, events.append)
    assert [type(event) for event in events] == [SweepStarted, RunStarted, EpochDone, EpochDone, EpochDone, RunDone]


def test_the_same_experiment_again_trains_nothing_and_another_lands_elsewhere(
    once: Results, done: Path, tmp_path: Path
) -> None:
    events: list[Event] = []
    again = run(TINY, tmp_path, events.append)
    assert events == [SweepStarted([], 3)]
    assert rows(again) == rows(once)
    assert again.folder == done
    other = run(dataclasses.replace(TINY, epochs=2), tmp_path)
    assert other.folder != done
    assert rows(run(TINY, tmp_path)) == rows(once)


def test_repeats_exactly(once: Results, tmp_path: Path) -> None:
    assert rows(run(TINY, tmp_path)) == rows(once)


def test_a_stopped_run_goes_on_from_its_checkpoint(
    once: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)  # after every epoch
    trained: list[tuple[str, int]] = []

    class Stop(Exception):
        pass

    def stop_in_the_third_epoch_of_ring(event: Event) -> None:
        if isinstance(event, EpochDone):
            trained.append((event.run.label, event.row["epoch"]))
            if event.run.label == "ring" and event.row["epoch"] == 3:
                raise Stop

    with pytest.raises(Stop):
        run(TINY, tmp_path, stop_in_the_third_epoch_of_ring)
    trained.clear()
    resumed = run(
        TINY,
        tmp_path,
        lambda event: trained.append((event.run.label, event.row["epoch"])) if isinstance(event, EpochDone) else None,
    )
    assert trained == [("ring", 3), ("ada", 1), ("ada", 2), ("ada", 3)]
    assert rows(resumed) == rows(once)


def test_killed_at_any_moment_and_started_again(once: Results, tmp_path: Path) -> None:
    """SIGKILL after the first run is done: it is kept as it is, and all numbers are those of an undisturbed sweep."""
    command = ["bench", "--graphs", "ring,ada", "--workers", "32", "--seeds", "1", "--epochs", "3"]
    command += ["--out", str(tmp_path), "--json"]
    victim = subprocess.Popen(
        [sys.executable, "-m", "gossamer", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list(tmp_path.glob("*/all-reduce-n32-sqrt-seed0/outcome.json")):
        assert victim.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    (first,) = tmp_path.glob("*/all-reduce-n32-sqrt-seed0/epochs.parquet")
    kept = first.stat().st_mtime_ns
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.stderr
    assert first.stat().st_mtime_ns == kept
    assert json.loads(again.stdout)["rows"] == once.summary


def test_two_sweeps_of_one_experiment_at_a_time_are_refused(tmp_path: Path) -> None:
    def start_it_again(event: Event) -> None:
        if isinstance(event, RunStarted):
            run(TINY, tmp_path)

    with pytest.raises(ValueError, match="another process is running this experiment"):
        run(TINY, tmp_path, start_it_again)


@pytest.mark.parametrize("name", ["epochs.parquet", "outcome.json", "environment.json"])
def test_a_damaged_result_is_named(name: str, done: Path, tmp_path: Path) -> None:
    file = done / "ring-n32-sqrt-seed0" / name
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"ring-n32-sqrt-seed0 are damaged .* delete that folder"):
        run(TINY, tmp_path)


def test_a_half_written_run_is_done_again(once: Results, done: Path, tmp_path: Path) -> None:
    (done / "ring-n32-sqrt-seed0" / "outcome.json").unlink()
    (done / "ring-n32-sqrt-seed0" / "epochs.parquet").write_bytes(b"half")
    (done / "ring-n32-sqrt-seed0" / ".checkpoint-1-0.pt.4711.part").write_bytes(b"half")
    assert rows(run(TINY, tmp_path)) == rows(once)
    assert not list(done.glob("*/.checkpoint*"))


def test_a_truncated_checkpoint_is_named(done: Path, tmp_path: Path) -> None:
    (done / "ring-n32-sqrt-seed0" / "outcome.json").unlink()
    (done / "ring-n32-sqrt-seed0" / "checkpoint-2-0.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"checkpoint-2-0\.pt is damaged .* delete"):
        run(TINY, tmp_path)


@pytest.fixture
def explosive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits with a learning rate that no replica survives."""
    monkeypatch.setitem(tasks.TASKS, "digits", dataclasses.replace(tasks.TASKS["digits"], lr=1e300))


@pytest.mark.usefixtures("explosive")
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_what_there_is(tmp_path: Path) -> None:
    results = run(TINY, tmp_path)
    assert [result.status for result in results.runs] == ["diverged"] * 3
    assert all("the loss of replica" in result.reason for result in results.runs)
    assert all("at step" in result.reason for result in results.runs)
    assert pq.read_table(results.folder / "ring-n32-sqrt-seed0" / "tensors.parquet").num_rows > 0
    assert results.summary[1]["accuracy"] is None
    assert results.report.exists()


@pytest.mark.usefixtures("explosive")
def test_divergence_on_the_command_line_is_exit_code_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["bench", "--graphs", "ring", "--workers", "4", "--seeds", "1", "--epochs", "1", "--out", str(tmp_path)],
    )
    assert done.exit_code == 2
    assert "ring-n4-sqrt-seed0 diverged: the loss of replica" in done.stderr


# ---- processes ------------------------------------------------------------------------------------------------


def test_processes_give_the_same_numbers(tmp_path: Path) -> None:
    stacked = rows(run(dataclasses.replace(ON_PROCESSES, engine="stacked"), tmp_path))
    processes = rows(run(ON_PROCESSES, tmp_path))
    assert stacked.keys() == processes.keys()
    for folder, expected in stacked.items():
        for row, other in zip(expected, processes[folder], strict=True):
            assert other == pytest.approx(row, rel=1e-7, abs=1e-15), folder


def _bench_on_processes(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["bench", "--engine", "processes", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_torchrun(tmp_path: Path) -> None:
    """Everybody trains, and the first tells."""
    settings = ("--graphs", "ring", "--seeds", "1", "--epochs", "1", "--batch-size", "16", "--json")
    (code, said, wrong), (other_code, other_said, _) = under(
        as_torchrun(2), partial(_bench_on_processes, *settings, "--out", str(tmp_path / "torchrun"))
    ).values()
    assert (code, other_code, other_said) == (0, 0, ""), wrong
    stacked = run(Experiment(graphs=("ring",), workers=2, seeds=1, epochs=1, batch_size=16), tmp_path / "stacked")
    for row, expected in zip(json.loads(said)["rows"], stacked.summary, strict=True):
        assert row["accuracy"] == expected["accuracy"]
        assert row["consensus_distance"] == pytest.approx(expected["consensus_distance"], rel=1e-7, abs=1e-15)


def test_torchrun_with_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="torchrun has made 2 processes for 4 workers"):
        run(ON_PROCESSES, tmp_path)
    with pytest.raises(ValueError, match="the stacked engine needs one: take --engine processes"):
        run(TINY, tmp_path)


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    def kill_worker_1(event: Event) -> None:
        if isinstance(event, EpochDone):
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    started = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"worker \d died with exit code -9|rank \d closed its connection"):
        run(dataclasses.replace(ON_PROCESSES, epochs=50), tmp_path, kill_worker_1)
    assert time.monotonic() - started < 60
    assert not multiprocessing.active_children()


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gossamer", "bench", "--engine", "processes", "--workers", "3", "--epochs", "500"]
    parent = subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not list(tmp_path.glob("*/*/config.json")):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while group_lives(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_lives(parent.pid)


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from gossamer.bench import Experiment, run\n"
        "run(Experiment(workers=2, graphs=('ring',), seeds=1, epochs=1, engine='processes'), 'out')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0
    assert 'put the call of run() under if __name__ == "__main__":' in done.stderr


def test_processes_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    """The parent stops in the third epoch; the workers' states of the second are complete, and lead to the same end."""
    experiment = dataclasses.replace(ON_PROCESSES, graphs=("ring",), centralized=False, epochs=5)
    trained: list[int] = []

    class Stop(Exception):
        pass

    def stop_in_the_third_epoch(event: Event) -> None:
        if isinstance(event, EpochDone) and event.row["epoch"] == 3:
            raise Stop

    with pytest.raises(Stop):
        run(experiment, tmp_path / "stopped", stop_in_the_third_epoch)
    assert len(list((tmp_path / "stopped").rglob("checkpoint-*.pt"))) >= 4
    resumed = run(
        experiment,
        tmp_path / "stopped",
        lambda event: trained.append(event.row["epoch"]) if isinstance(event, EpochDone) else None,
    )
    assert trained[0] > 1, "it did not start again"
    assert trained[-1] == 5
    assert rows(resumed) == rows(run(experiment, tmp_path / "whole"))


def test_several_runs_with_groups_on_the_same_processes(tmp_path: Path) -> None:
    """Base-3 averages in groups of three, each a process group of its own, in every run anew."""
    experiment = Experiment(graphs=("base-3",), workers=6, seeds=2, epochs=1, batch_size=16, centralized=False)
    stacked = rows(run(experiment, tmp_path))
    processes = rows(run(dataclasses.replace(experiment, engine="processes"), tmp_path))
    for folder, expected in stacked.items():
        assert processes[folder][0] == pytest.approx(expected[0], rel=1e-7, abs=1e-15)


# ---- several runs at a time -----------------------------------------------------------------------------------


def test_jobs_give_the_same_numbers(once: Results, tmp_path: Path) -> None:
    together = run(TINY, tmp_path, jobs=2)
    assert rows(together) == rows(once)
    for folder in (each.run.folder for each in once.runs):
        inside = [pq.read_table(results.folder / folder / "tensors.parquet") for results in (once, together)]
        assert inside[0].equals(inside[1])
    assert together.summary == once.summary


def test_jobs_run_at_the_same_time_and_tell_of_it(tmp_path: Path) -> None:
    events: list[Event] = []
    run(dataclasses.replace(TINY, epochs=6), tmp_path, events.append, jobs=2)
    at_once = most = 0
    for event in events:
        at_once += isinstance(event, RunStarted) - isinstance(event, RunDone)
        most = max(most, at_once)
    assert most == 2
    assert not multiprocessing.active_children()
    for each in TINY.runs():
        story = [type(e) for e in events if not isinstance(e, SweepStarted) and e.run.label == each.label]
        assert story == [RunStarted, *[EpochDone] * 6, RunDone]


def test_a_killed_job_stops_the_sweep_and_finished_runs_are_kept(tmp_path: Path) -> None:
    def kill_after_the_first_run(event: Event) -> None:
        if isinstance(event, RunDone):
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, signal.SIGKILL)

    experiment = dataclasses.replace(TINY, epochs=6)
    with pytest.raises(WorkerFailed, match=r"the process that trains \S+-n32-sqrt-seed0 died with exit code -9"):
        run(experiment, tmp_path / "killed", kill_after_the_first_run, jobs=2)
    assert not multiprocessing.active_children()
    done = [file.parent.name for file in (tmp_path / "killed").glob("*/*/outcome.json")]
    assert 1 <= len(done) < 3  # the second may have sent its results just before
    trained: list[Event] = []
    resumed = run(experiment, tmp_path / "killed", trained.append, jobs=2)
    assert {event.run.folder for event in trained if isinstance(event, RunStarted)}.isdisjoint(done)
    assert rows(resumed) == rows(run(experiment, tmp_path / "whole"))


def test_what_a_job_refuses_is_refused_as_ever(done: Path, tmp_path: Path) -> None:
    (done / "ring-n32-sqrt-seed0" / "outcome.json").unlink()
    (done / "ring-n32-sqrt-seed0" / "checkpoint-2-0.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"checkpoint-2-0\.pt is damaged .* delete"):
        run(TINY, tmp_path, jobs=2)
    assert not multiprocessing.active_children()


def test_jobs_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gossamer", "bench", "--jobs", "2", "--workers", "16", "--epochs", "500"]
    parent = subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while len(list(tmp_path.glob("*/*/config.json"))) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while group_lives(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_lives(parent.pid)


def test_jobs_that_cannot_work_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="jobs=0: must be 1 or more"):
        run(TINY, tmp_path, jobs=0)
    with pytest.raises(ValueError, match=r"processes engine .* one run at a time; leave --jobs out"):
        run(ON_PROCESSES, tmp_path, jobs=2)
    greedy = dataclasses.replace(tasks.TASKS["digits"], cpu_threads=os.cpu_count() or 1)
    monkeypatch.setitem(tasks.TASKS, "digits", greedy)
    if os.cpu_count() != 1:
        with pytest.raises(ValueError, match=r"takes \d+ threads already"):
            run(TINY, tmp_path, jobs=2)
    assert not list(tmp_path.iterdir()), "nothing is written"


# ---- several sizes and rules ----------------------------------------------------------------------------------


def test_a_row_for_each_graph_size_and_rule(tmp_path: Path) -> None:
    experiment = Experiment(
        graphs=("ring",), workers=(24, 32), lr_rules=("sqrt", "none"), seeds=2, epochs=1, centralized=False
    )
    results = run(experiment, tmp_path)
    settings = [(row["graph"], row["workers"], row["lr_rule"], row["seeds"]) for row in results.summary]
    assert settings == [("ring", n, rule, 2) for n in (24, 32) for rule in ("sqrt", "none")]
    assert len({row["lr"] for row in results.summary}) == 3  # with rule `none` the same at both sizes
    assert json.loads((results.folder / "summary.json").read_text()) == results.summary
    assert results.folder.name.startswith("digits-24-32-d-psgd-")
