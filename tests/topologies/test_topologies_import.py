"""`gossamer topo` must answer at once: topologies import neither torch nor networkx nor SciPy's solvers."""

from __future__ import annotations

import json
import subprocess
import sys

import gossamer.topologies

PROGRAM = """
import json, sys
import gossamer.topologies as topologies
slow = ("torch", "networkx", "scipy.linalg", "scipy.sparse.linalg")
at_import = [name for name in slow if name in sys.modules]
for name in topologies.names():
    topologies.draw_schedule_svg(topologies.build(name, 16))
    topologies.steady_consensus_variance(topologies.build(name, 16))
print(json.dumps([at_import, "torch" in sys.modules]))
"""


def test_nothing_slow_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], False]


def test_all_names_are_there() -> None:
    assert list(gossamer.topologies.__all__) == sorted(gossamer.topologies.__all__)
    for name in gossamer.topologies.__all__:
        assert getattr(gossamer.topologies, name).__doc__
