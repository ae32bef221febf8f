"""Starts a process for every worker, here or on hosts of a network, and reads the rows of rank 0."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import LINKS, Case
from .contenders import Contender
from .measure import Assignment
from .network import Host, network

_HERE = Path(__file__).parents[1]
_LAST_WORDS = 2000
_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""Memory that was freed stays with the process. Otherwise it is up to the layout of the heap, and so to whoever had the
turn before, whether the same pages are given back and mapped again in every iteration: up to half of its time."""


def rows_of(
    case: Case,
    contenders: list[Contender],
    *,
    rounds: int,
    iterations: int,
    calibrates: bool = False,
    most_disturbed: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Measure a case; its rows as they come, and profiles among them where it `calibrates`. See `Assignment`."""
    with network(LINKS[case.links]) if case.links else nullcontext(_this_machine(case.workers)) as hosts:
        port = _free_port() if not case.links else 29500
        workers = [
            Assignment(
                rank=rank,
                case=case,
                contenders=contenders,
                rounds=rounds,
                iterations=iterations,
                addresses=[host.address for host in hosts],
                port=port,
                calibrates=calibrates,
                most_disturbed=most_disturbed,
            )
            for rank in range(case.workers)
        ]
        with ExitStack() as stack:
            processes = [stack.enter_context(_Process(*pair)) for pair in zip(hosts, workers, strict=True)]
            for line in processes[0].lines():
                yield json.loads(line)
            failures = [process.failure() for process in processes]
            if any(failures):
                raise RuntimeError("\n".join(filter(None, failures)))


def _this_machine(workers: int) -> list[Host]:
    return [Host(address="127.0.0.1", interface="lo", prefix=())] * workers


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@dataclass
class _Process:
    """A worker that is stopped when the context ends, however that comes."""

    host: Host
    assignment: Assignment

    def __enter__(self) -> "_Process":
        paths = [str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            **_KEEP_MEMORY,
            "PYTHONPATH": os.pathsep.join(paths),
            "GLOO_SOCKET_IFNAME": self.host.interface,
            "OMP_NUM_THREADS": "1",
        }
        if self.assignment.case.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""  # peers take a GPU that they see
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [*self.host.prefix, sys.executable, "-m", "side_by_side.measure", self.assignment.as_json()],
            stdout=subprocess.PIPE if self.assignment.rank == 0 else subprocess.DEVNULL,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        return self

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield line

    def failure(self) -> str | None:
        """Wait for the end; what it says if it was not a good one."""
        status = self._process.wait()
        if not status:
            return None
        self._errors.seek(0)
        return f"worker {self.assignment.rank} ended with status {status}:\n{self._errors.read()[-_LAST_WORDS:]}"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
