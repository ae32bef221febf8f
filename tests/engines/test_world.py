"""Where the processes come from: torchrun, Slurm, a group that is there, or nowhere."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

import gossamer
from gossamer import decentralize, topologies
from gossamer.engines import NeighborLost, join_world
from gossamer.engines.world import slurm_address
from gossamer.optim import AccumAdamW, betas_for, window_for
from loops import Loop, by_hand, flat, sgd, take_steps
from problems import network
from ranks import run_ranks
from worlds import as_torchrun, free_port, in_processes, under

LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has started these tests."""
    for key in [key for key in os.environ if key in LAUNCHERS or key.startswith("SLURM_")]:
        monkeypatch.delenv(key)


def agrees(trained: dict[int, list[float]], topology: str, size: int, num_steps: int, **context: Any) -> None:
    assert set(trained) == set(range(size))
    expected = by_hand(Loop(), topologies.build(topology, size, **context), num_steps)
    got = torch.tensor([trained[rank] for rank in range(size)], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


# ---- torchrun -----------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
import torch.distributed as dist
from gossamer import decentralize
from loops import flat, sgd, take_steps
from problems import network

torch.set_num_threads(1)
model = network()
with decentralize(model, sgd(model), topology="base-2") as training:
    take_steps(training, range(4))
    own = flat(model).tolist()
with training.averaged():
    average = flat(model).tolist()
(Path(sys.argv[2]) / f"{training.rank}.json").write_text(
    json.dumps(
        {
            "size": training.size,
            "own": own,
            "average": average,
            "distance": training.consensus_distance(),
            "environment": dict(os.environ),
        }
    )
)
"""


def test_torchrun(tmp_path: Path) -> None:
    """Three processes; the model is averaged after the end too, and nothing is printed that would worry anybody."""
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [*launch, str(tmp_path / "script.py"), tests, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for word in ("Warning", "Error", "Traceback", "destroy_process_group"):
        assert word not in done.stderr
    said = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)}
    agrees({rank: result["own"] for rank, result in said.items()}, "base-2", 3, 4)
    mean = torch.tensor([result["own"] for result in said.values()], dtype=torch.float64).mean(0)
    for result in said.values():
        assert result["size"] == 3
        assert result["distance"] == said[0]["distance"] > 0
        torch.testing.assert_close(torch.tensor(result["average"], dtype=torch.float64), mean, rtol=0, atol=1e-12)
    for rank, ours in enumerate(as_torchrun(3)):
        theirs = said[rank]["environment"]
        assert ours | {"MASTER_PORT": "", "TORCHELASTIC_RUN_ID": ""} == {
            name: theirs[name] if name not in ("MASTER_PORT", "TORCHELASTIC_RUN_ID") else "" for name in ours
        }


# ---- environments, groups -----------------------------------------------------------------------------------


def _train_with_the_default_topology() -> list[float]:
    model = network()
    with decentralize(model, sgd(model)) as training:
        take_steps(training, range(4))
        return flat(model).tolist()


def test_slurm() -> None:
    """Four tasks on two nodes: the default topology knows that there are two on each."""
    common = {
        "SLURM_NTASKS": "4",
        "SLURM_STEP_NODELIST": "localhost,elsewhere",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_JOB_ID": "7",
        "MASTER_PORT": str(free_port()),
    }
    trained = under([common | {"SLURM_PROCID": str(rank)} for rank in range(4)], _train_with_the_default_topology)
    agrees(trained, "alternating-exponential-ring", 4, 4, local_size=2)


def _in_the_default_group(group: ProcessGroup) -> tuple[list[float], bool]:
    trained = _train_with_the_default_topology()
    return trained, dist.is_initialized() and dist.group.WORLD is group


def test_torchs_own_group_where_there_is_one() -> None:
    results = in_processes(2, _in_the_default_group)
    agrees({rank: trained for rank, (trained, _) in results.items()}, "complete", 2, 4)
    assert all(is_open for _, is_open in results.values()), "it stays the user's"


def _with_a_group_for_gpus_only() -> tuple[list[float], list[str]]:
    dist.init_process_group("cuda:gloo")
    group = dist.group.WORLD
    assert group is not None
    return _train_with_the_default_topology(), [device.type for device in group._device_types]


def test_a_group_that_knows_only_gpus_gets_one_for_the_cpu_beside_it() -> None:
    """As one made for NCCL is: what is exchanged lies in the CPU's memory."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    results = under([common | {"RANK": str(rank)} for rank in range(2)], _with_a_group_for_gpus_only)
    assert [devices for _, devices in results.values()] == [["cuda"]] * 2
    agrees({rank: trained for rank, (trained, _) in results.items()}, "complete", 2, 4)


def _waits_for_rank_0() -> tuple[int, str]:
    model = network()
    try:
        with decentralize(model, sgd(model), topology="ring", timeout_s=60) as training:
            take_steps(training, range(2))
            if training.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    except NeighborLost as lost:
        return lost.rank, str(lost)
    return -1, "nothing happened"


def test_the_store_dies_with_rank_0() -> None:
    """The others are done and wait for it, without an exchange under way that could break."""
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    told = under([common | {"RANK": str(rank)} for rank in range(3)], _waits_for_rank_0)
    assert {rank: culprit for rank, (culprit, _) in told.items()} == {1: 0, 2: 0}
    assert "most likely with rank 0" in told[1][1]


def test_slurm_with_one_task_is_a_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    world = join_world()
    assert (world.group.size(), world.local_size, dist.is_initialized()) == (1, 1, False)


@pytest.mark.parametrize(
    ("environment", "local_size"),
    [
        ({}, 4),
        ({"LOCAL_WORLD_SIZE": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, 2),
        ({"SLURM_NTASKS_PER_NODE": "1"}, 1),
        ({"LOCAL_WORLD_SIZE": "2", "SLURM_NTASKS_PER_NODE": "1"}, 2),
        ({"LOCAL_WORLD_SIZE": "8"}, 4),  # the group is a part of what was launched
        ({"SLURM_STEP_TASKS_PER_NODE": "3,1"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2(x1),1"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "3"}, None),
    ],
    ids=str,
)
def test_workers_on_a_node(
    environment: dict[str, str], local_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)

    def rank(group: ProcessGroup) -> tuple[int | None, int | None]:
        return join_world(group).local_size, join_world(group, local_size=1).local_size

    assert run_ranks(4, rank) == [(local_size, 1)] * 4


@pytest.mark.parametrize(("tasks", "numbers"), [("2,1,1", "2, 1, 1"), ("1,3", "1, 3"), ("1(x2),2", "1, 1, 2")])
def test_nodes_of_unequal_size_trouble_only_the_topologies_that_mind_nodes(
    tasks: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the first number divides the workers."""
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)

    def rank(group: ProcessGroup) -> None:
        model = network()
        refused = f"averages within nodes, .* these have {numbers}: start as many on each .* local_size=1 .* base-2"
        with pytest.raises(ValueError, match=refused):
            decentralize(model, sgd(model), group=group)
        for settings in (
            {"topology": "ring"},
            {"topology": "alternating-exponential-ring:local_size=2"},
            {"local_size": 1},
        ):
            with decentralize(model, sgd(model), group=group, **settings) as training:
                take_steps(training, range(1))
            assert training.num_steps == 1
        with pytest.raises(ValueError, match="local_size=3 does not divide the 4 workers"):
            join_world(group, local_size=3)

    run_ranks(4, rank)


# ---- the number of workers before the start -----------------------------------------------------------------


def _plans_for_its_workers() -> tuple[int, int, int, float]:
    world = gossamer.join_world()
    model = network()
    window = window_for(world.size)
    optimizer = AccumAdamW(model.parameters(), window=window, betas=betas_for(window))
    topology = {"topology": "ada", "steps_per_epoch": 12 // world.size, "epochs": 2}
    with gossamer.decentralize(model, optimizer, **topology) as training:
        take_steps(training, range(2 * 12 // world.size))
    assert (training.rank, training.size) == (world.rank, world.size)
    return world.size, training.num_steps, optimizer.param_groups[0]["window"], optimizer.param_groups[0]["betas"][0]


def test_a_script_can_know_its_workers_before_it_makes_an_optimizer() -> None:
    common = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    told = under([common | {"RANK": str(rank)} for rank in range(4)], _plans_for_its_workers)
    assert told == dict.fromkeys(range(4), (4, 6, 2, 0.8))


def test_a_script_alone_knows_its_workers_too() -> None:
    assert _plans_for_its_workers() == (1, 24, 1, 0.9)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("solo", "solo"),
        ("a,b", "a"),
        ("gpu-[3,5-7]", "gpu-3"),
        ("nid[000012-000015]", "nid000012"),
        ("rack[1-2]node[03-04],login", "rack1node03"),
        ("n[1-2]-ib.cluster,m3", "n1-ib.cluster"),
    ],
)
def test_the_first_node_of_slurms_list(nodes: str, first: str) -> None:
    assert slurm_address({"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_ID": "1"}) == f"tcp://{first}:20001"


def test_slurm_without_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="start the script with srun"):
        slurm_address({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
