"""The arrows of the design: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "gossamer"
MAY_IMPORT: dict[str, set[str]] = {
    "_names": set(),
    "_files": set(),
    "topologies": {"_names"},
    "clock": {"_names", "topologies"},
    "plan": {"_decentralize", "_files", "_names", "algorithms", "clock", "topologies"},
    "algorithms": {"_names"},
    "metrics": set(),
    "optim": set(),
    "tasks": {"_files"},
    "engines": {"_files", "algorithms", "clock", "topologies"},
    "_chosen": {"algorithms", "topologies"},
    "_decentralize": {"_chosen", "algorithms", "engines", "topologies"},
    "_simulate": {"_chosen", "algorithms", "engines", "topologies"},
    "recipes": {"_names", "bench", "clock", "tasks", "topologies"},
    "cli": {"_files", "_names", "bench", "clock", "engines", "plan", "recipes", "tasks", "topologies"},
    "bench": {"_files", "_names", "algorithms", "clock", "engines", "metrics", "plan", "tasks", "topologies"},
}
"""Parts of the package, and which of the others each may import."""


def imported_parts(file: Path) -> set[str]:
    """Parts of gossamer that a file imports."""
    parts = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "gossamer":
            parts |= {alias.name for alias in node.names} - {"__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gossamer."):
            parts.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            parts |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gossamer.")}
    return parts


@pytest.mark.parametrize("part", list(MAY_IMPORT))
def test_imports_follow_the_arrows(part: str) -> None:
    files = list((SRC / part).rglob("*.py")) or [SRC / f"{part}.py"]
    for file in files:
        assert imported_parts(file) <= MAY_IMPORT[part] | {part}, file


def test_every_part_is_listed() -> None:
    parts = {path.stem for path in SRC.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert parts == {part for part in MAY_IMPORT if not part.startswith("_")}


@pytest.mark.parametrize(
    "code",
    [
        "import gossamer.cli",
        "from gossamer.cli import app; app(['topo', 'ring'], standalone_mode=False)",
        "from gossamer.recipes import straggler; straggler().page()",
        "from gossamer.cli import app; app('plan -n 8 --params 1M --compute 1ms --inter 1gbit --map'.split(), "
        "standalone_mode=False)",
    ],
)
def test_torch_stays_out_of_what_must_answer_at_once(code: str) -> None:
    check = f"{code}\nimport sys; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_tree_in_the_readme_has_every_file() -> None:
    tree = (SRC.parents[1] / "README.md").read_text().partition("## The tree")[2]
    missing = [file for file in SRC.rglob("*.py") if file.name != "__init__.py" and f"{file.name} " not in tree]
    assert not missing, "give each a line"
