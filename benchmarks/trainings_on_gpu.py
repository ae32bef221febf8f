"""Trainings that the docs still ask for, several side by side on one GPU until the time is up.

    python benchmarks/trainings_on_gpu.py listening adpsgd --data DIR --out results --minutes 9
    python benchmarks/reproduction.py results --out benchmarks/DATE-NAME            rows of what is finished

DIR holds CIFAR-10 and WikiText-2. Every line of a group below is a process that trains its experiments one after the
other: small models leave a GPU idle between kernels, and another's fill the gap. What is finished is kept; the same
command again trains what is left. Times by the clock of virtual time do not mind company, seconds do.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.bench import Experiment, Run, RunResult, run
from gossamer.recipes.straggler import TRAININGS as LEARNERS

PROFILE = Path(__file__).parent / "2026-11-16-listening-ada/described/profile.json"
SIZES = {
    "resnet20-96": {"task": "resnet20", "workers": 96, "batch_size": 32, "epochs": 60},
    "resnet20-1008": {"task": "resnet20", "workers": 1008, "batch_size": 8, "epochs": 150},
    "lstm-96": {"task": "lstm-sgd", "workers": 96, "batch_size": 8, "epochs": 6},
}
"""The settings of docs/reproduction.md."""
EPOCHS = {"resnet20": 60, "vgg16": 40}
SLOW = "15=10"


@dataclass(frozen=True, kw_only=True)
class Seeds(Experiment):
    """An experiment without its first seeds, which others have trained."""

    first_seed: int = 0

    def runs(self) -> list[Run]:
        return [run for run in super().runs() if run.seed >= self.first_seed]


def centralized(size: str, seeds: int, first: int = 0) -> dict[str, Any]:
    settings = {"algorithm": "all-reduce", "graphs": ("complete",), "profile": str(PROFILE)}
    return SIZES[size] | settings | {"seeds": seeds, "first_seed": first}


def listening(size: str, apart: float, seeds: int = 1, first: int = 0, graph: str = "nodes") -> dict[str, Any]:
    settings = {"algorithm": f"listening-ada:apart={apart:g}", "graphs": (graph,), "profile": str(PROFILE)}
    return SIZES[size] | settings | {"seeds": seeds, "first_seed": first}


def sixteen(
    task: str, algorithm: str, graph: str, seeds: int = 1, first: int = 0, slow: str = "", gbit_per_s: float = 10.0
) -> dict[str, Any]:
    """As the recipe adpsgd-accuracy."""
    learner = LEARNERS[task]
    return {
        "task": task,
        "workers": 16,
        "batch_size": learner.batch_size,
        "compute_s": learner.epoch_s / learner.num_gradients,
        "epochs": EPOCHS[task],
        "algorithm": algorithm,
        "graphs": (graph,),
        "slow": slow,
        "gbit_per_s": gbit_per_s,
        "seeds": seeds,
        "first_seed": first,
    }


PAIRS = "bipartite-exponential"
GROUPS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "listening": {
        "96": [listening("resnet20-96", apart) for apart in (1e-4, 3e-4, 3e-5, 1e-3)],
        "1008": [listening("resnet20-1008", apart) for apart in (3e-4, 1e-3)],
        "lstm": [listening("lstm-96", apart) for apart in (3e-4, 3e-5)] + [centralized("lstm-96", 1)],
    },
    "listening-seeds": {
        "96": [centralized("resnet20-96", 3), listening("resnet20-96", 1e-4, 3, first=1)],
        "1008": [centralized("resnet20-1008", 3), listening("resnet20-1008", 3e-4, 3, first=1)],
        "lstm": [listening("lstm-96", 3e-4, 3, first=1), centralized("lstm-96", 3, first=1)],
    },
    "adpsgd": {
        "slow": [sixteen("resnet20", "ad-psgd", PAIRS, 3, first=1, slow=SLOW)],
        "even": [sixteen("resnet20", "ad-psgd", PAIRS, 3, first=1)],
        "rounds": [
            sixteen("resnet20", "all-reduce", "complete", 3, first=2),
            sixteen("resnet20", "d-psgd", "ring", 3, first=1),
        ],
        "server": [sixteen("resnet20", "parameter-server", "complete", slow=SLOW)],
    },
    "adpsgd-vgg": {
        "pairs": [
            sixteen("vgg16", "ad-psgd", PAIRS, 2, first=1, gbit_per_s=100),
            sixteen("vgg16", "ad-psgd", PAIRS, 2, first=1, slow=SLOW, gbit_per_s=100),
        ],
        "rounds": [
            sixteen("vgg16", "d-psgd", "ring", gbit_per_s=100),
            sixteen("vgg16", "all-reduce", "complete", 2, first=1, gbit_per_s=100),
        ],
        "server": [
            sixteen("vgg16", "parameter-server", "complete", gbit_per_s=gbit_per_s, slow=slow)
            for gbit_per_s in (100, 10)
            for slow in ("", SLOW)
        ],
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", choices=GROUPS, metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--data", required=True, help="folder of CIFAR-10 and WikiText-2")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--minutes", type=float, default=60.0, help="what is not finished by then is left")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.line:
        train_line(GROUPS[given.groups[0]][given.line], given.data, given.out, given.device)
    else:
        sys.exit(side_by_side(given))


def side_by_side(given: argparse.Namespace) -> int:
    """How many lines have failed."""
    ends = time.monotonic() + 60 * given.minutes
    shared = ["--data", given.data, "--out", str(given.out), "--device", given.device]
    lines = {
        f"{group} {line}": subprocess.Popen([sys.executable, __file__, group, "--line", line, *shared])
        for group in given.groups
        for line in GROUPS[group]
    }
    failed = 0
    for name, process in lines.items():
        try:
            code = process.wait(max(ends - time.monotonic(), 0.1))
            failed += bool(code)
            print(name, "is done" if not code else f"has failed: exit code {code}", flush=True)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            print(name, "was stopped: its time was up", flush=True)
    return failed


def train_line(experiments: list[dict[str, Any]], data: str, out: Path, device: str) -> None:
    for settings in experiments:
        results = run(Seeds(**settings, centralized=False, data=data, device=device), out)
        for result in results.runs:
            print(told(result), flush=True)


def told(result: RunResult) -> str:
    run, final = result.run, result.final
    figures: dict[str, Callable[[Any], str]] = {
        "accuracy": lambda share: f"{100 * share:.2f} %",
        "bytes_sent": lambda sent: f"{sent / 1e6:.0f} MB",
        "virtual_s": lambda seconds: f"{seconds:.1f} s by the clock",
        "seconds": lambda seconds: f"{seconds:.0f} s taken",
    }
    said = [say(final[name]) for name, say in figures.items() if name in final]
    settings = [run.task, f"{run.workers} workers", run.algorithm, run.label, f"seed {run.seed}", run.slow]
    return ", ".join(word for word in (*settings, result.status, *said) if word)


if __name__ == "__main__":
    main()
