"""The planner against real runs: 4 and 8 gloo processes, with and without jitter, with and without slow links.

    python benchmarks/plan_real.py run --out benchmarks/DATE-plan-real        links need root, `ip` and `tc`
    python benchmarks/plan_real.py table benchmarks/DATE-plan-real

`run`: in each round the workers are calibrated first (`gossamer.plan.calibrate`: computation with its sleeps and an
exchange with one other, all workers at a time; links in pairs; an all-reduce alone and beside backward). From that
profile follows what an iteration of DDP and of `gossamer.decentralize` on four topologies will take; then each of them
is measured, in random order. A calibration or a turn in which others used more than 5 % of the cores is made again, up
to three times; rows say what they used.

A prediction and a measurement are medians over the rounds.
"""

import csv
import io
import json
import signal
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from gossamer._files import write_text
from gossamer.plan import Profile, predict
from iteration_time import environment
from side_by_side.cases import Case
from side_by_side.contenders import chosen
from side_by_side.launch import rows_of
from side_by_side.network import check_possible

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
CONTENDERS = ["ddp", "gossamer"]
CASES = [
    *(
        Case(workers=workers, model=model, jitter_ms=jitter_ms)
        for workers in (4, 8)
        for model in ("small", "middle")
        for jitter_ms in (0.0, 20.0)
    ),
    *(
        Case(workers=workers, model="small", jitter_ms=jitter_ms, links=links)
        for workers, links in {4: "100mbit", 8: "100mbit-8"}.items()
        for jitter_ms in (0.0, 20.0)
    ),
]
_ITERATIONS = {False: 36, True: 18}
"""By whether there are slow links."""
_MOST_DISTURBED = 0.05
Row = dict[str, Any]


Out = Annotated[Path, typer.Option(help="Folder for rows.csv, profiles.json and environment.json.")]
WHICH = Annotated[
    str, typer.Option("--links", help="with: only cases with slow links, which mind others less; without.")
]


@app.command()
def run(
    out: Out,
    rounds: Annotated[int, typer.Option(help="Rounds, each with a calibration and a turn of each contender.")] = 3,
    links: WHICH = "both",
    again: Annotated[bool, typer.Option("--again", help="More rounds of cases that have some.")] = False,
) -> None:
    """Measure, and predict from what was calibrated."""
    if links not in ("both", "with", "without"):
        raise ValueError(f"--links {links}: take with, without or both")
    if links != "without":
        check_possible()
    out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        is_there = any(row["case"] == str(case) for row in read(out))
        if (is_there and not again) or (bool(case.links) != (links == "with") and links != "both"):
            continue
        print(case, flush=True)
        fresh, found = measured(case, rounds)
        _keep(out, fresh, found)
    table(out)


def measured(case: Case, rounds: int) -> tuple[list[Row], list[Row]]:
    """Rows with a prediction beside each measurement, and the profiles that these are from."""
    profiles: dict[int, Profile] = {}
    rows, told = [], []
    for row in rows_of(
        case,
        chosen(CONTENDERS),
        rounds=rounds,
        iterations=_ITERATIONS[bool(case.links)],
        calibrates=True,
        most_disturbed=_MOST_DISTURBED,
    ):
        if "profile" in row:
            profiles[row["round"]] = Profile.from_json(json.dumps(row["profile"]))
            told.append({"case": str(case), "round": row["round"], "others": row["others"], **row["profile"]})
            continue
        schedule = case.schedule(row["topology"]) if row["topology"] else None
        foreseen = predict(profiles[row["round"]], schedule)
        rows.append(_row(case, row, 1e3 * foreseen.iteration_s))
    return rows, told


def _row(case: Case, row: Row, predicted_ms: float) -> Row:
    return {
        "case": str(case),
        "name": row["name"],
        "topology": row["topology"],
        "round": row["round"],
        "measured_ms": round(row["iteration_ms"], 3),
        "predicted_ms": round(predicted_ms, 3),
        "others": round(row["others"], 4),
    }


def summaries(rows: list[Row]) -> list[Row]:
    """Medians over the rounds, and the error."""
    found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["case"], row["name"], row["topology"]].append(row)
    said = []
    for (case, name, topology), each in sorted(found.items()):
        real, foreseen = (median(float(row[key]) for row in each) for key in ("measured_ms", "predicted_ms"))
        error = foreseen / real - 1
        said.append(
            {
                "case": case,
                "method": topology or name,
                "measured_ms": real,
                "predicted_ms": foreseen,
                "error": error,
            }
        )
    return said


@app.command()
def table(folder: Annotated[Path, typer.Argument(help="Folder that `run` has filled.")]) -> None:
    """Print what was predicted beside what was measured."""
    said = summaries(read(folder))
    if not said:
        raise ValueError(f"there is no rows.csv in {folder}: give a folder that `run` has filled")
    for row in said:
        print(
            f"{row['case']:<40} {row['method']:<14} measured {row['measured_ms']:7.1f} ms, "
            f"predicted {row['predicted_ms']:7.1f} ms, {row['error']:+.0%}"
        )
    for what, chosen_rows in (
        ("all", said),
        ("Gossamer", [row for row in said if row["method"] != "ddp"]),
        ("DDP", [row for row in said if row["method"] == "ddp"]),
    ):
        errors = [abs(row["error"]) for row in chosen_rows]
        print(f"{what}: median error {median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)}")


def _keep(out: Path, rows: list[Row], profiles: list[Row]) -> None:
    """Add to what is there."""
    rows, profiles = read(out) + rows, _read_profiles(out) + profiles
    if rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(out / "rows.csv", text.getvalue())
    lines = ",\n".join(json.dumps(profile) for profile in profiles)
    write_text(out / "profiles.json", f"[{lines}]\n")
    write_text(out / "environment.json", json.dumps(environment(), indent=1) + "\n")


def read(folder: Path) -> list[Row]:
    path = folder / "rows.csv"
    return list(csv.DictReader(path.open(newline=""))) if path.is_file() else []


def _read_profiles(folder: Path) -> list[Row]:
    path = folder / "profiles.json"
    return json.loads(path.read_text()) if path.is_file() else []


def main() -> None:
    try:
        app()
    except ValueError as error:
        print(f"plan_real: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and namespaces go too
    main()
