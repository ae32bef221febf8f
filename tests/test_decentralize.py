"""The two lines around a loop of the user's own: whatever is in the loop, they do what a plain loop by hand does."""

import copy
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gossamer import _decentralize, algorithms, decentralize, topologies
from loops import BATCHES, Loop, agree, backward, by_hand, decentralized, fixed, flat, sgd, take_steps
from problems import network, network_batch, network_loss
from ranks import run_ranks
from trajectories import perturbed
from worlds import in_processes

N, STEPS = 4, 6
PAIRS = topologies.build("one-peer-exponential", N)
PARTS = pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "in-parts"])

# ---- what is in a loop --------------------------------------------------------------------------------------


def test_gradient_accumulation_from_the_first_iteration_on() -> None:
    """Several backward() calls before each step, before the first one too: every gradient counts."""

    def three_times(model: nn.Module, rank: int, step: int) -> None:
        for part in range(3):
            backward(model, rank, 3 * step + part)

    loop = Loop(backward=three_times)
    trained = decentralized(loop, N, STEPS, topology=PAIRS)
    agree(trained, by_hand(loop, PAIRS, STEPS))
    assert (trained[0] - flat(network())).abs().max() > 0.1, "it has learned"


def test_clipping_is_of_the_whole_model() -> None:
    def clipped(model: nn.Module, rank: int, step: int) -> None:
        backward(model, rank, step)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    def kept_to_it(training: Any) -> tuple[Tensor, Tensor]:
        return flat(training.model), torch.cat([p.grad.flatten() for p in training.model.parameters()]).norm()

    loop = Loop(backward=clipped)
    results = decentralized(loop, N, STEPS, kept_to_it, topology=PAIRS, bucket_mib=1e-4)
    agree([trained for trained, _ in results], by_hand(loop, PAIRS, STEPS))
    for _, norm in results:
        assert float(norm) == pytest.approx(0.05, rel=1e-4), "of all parts together, and the user still sees it"


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("in_front", [True, False], ids=["before-forward", "after-the-step"])
def test_zero_grad_before_forward_drops_no_gradient(in_front: bool, set_to_none: bool) -> None:
    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        optimizer = sgd(model)
        with decentralize(model, optimizer, group=group, topology=PAIRS, bucket_mib=1e-4):
            for step in range(STEPS):
                if in_front:
                    optimizer.zero_grad(set_to_none=set_to_none)
                backward(model, group.rank(), step)
                optimizer.step()
                if not in_front:
                    optimizer.zero_grad(set_to_none=set_to_none)
        return flat(model)

    agree(run_ranks(N, rank), by_hand(Loop(), PAIRS, STEPS))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.early, self.late = (nn.Linear(5, size).double() for size in (5, 3, 3))

    def forward(self, inputs: Tensor, late: bool) -> Tensor:
        return (self.late if late else self.early)(self.body(inputs).tanh())


@PARTS
@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "all-reduce"])
def test_parameters_unused_in_the_first_iteration_are_trained_later(algorithm: str, bucket_mib: float) -> None:
    """One head is used in the first steps, the other from then on; on rank 0 both from the start."""

    def by_turns(model: nn.Module, rank: int, step: int) -> None:
        inputs, targets = network_batch(step, BATCHES)
        network_loss(model(inputs[rank], late=step >= 3), targets[rank]).backward()
        if rank == 0 and step < 3:
            network_loss(model(inputs[rank], late=True), targets[rank]).backward()

    make = fixed(TwoHeads)
    loop = Loop(model=make, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1), backward=by_turns)
    settings = {"topology": PAIRS, "algorithm": algorithm, "bucket_mib": bucket_mib}
    for num_steps in (2, STEPS):
        trained = decentralized(loop, N, num_steps, lambda training: copy.deepcopy(training.model), **settings)
        agree([flat(model) for model in trained], by_hand(loop, PAIRS, num_steps, algorithm))
    for model in trained:
        assert (model.late.weight - make().late.weight).abs().min() > 0
        assert (model.early.weight - make().early.weight).abs().min() > 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.frozen, self.last = (nn.Linear(5, 5).double() for _ in range(3))
        self.last.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.frozen(self.embed(inputs)).tanh())


@pytest.mark.parametrize("algorithm", ["d-psgd-overlapped", "all-reduce"])
@pytest.mark.parametrize("given", ["all", "those that are trained"])
def test_frozen_and_tied_parameters(given: str, algorithm: str) -> None:
    """Frozen ones stay, even if the optimizer has them, decays its weights and all gradients are averaged."""
    make = fixed(Tied)

    def optimizer(model: nn.Module) -> Optimizer:
        params = [p for p in model.parameters() if given == "all" or p.requires_grad]
        return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)

    loop = Loop(model=make, optimizer=optimizer)
    trained = decentralized(
        loop, N, STEPS, lambda training: copy.deepcopy(training.model), topology=PAIRS, algorithm=algorithm
    )
    for model in trained:
        assert model.last.weight is model.embed.weight
        assert torch.equal(model.frozen.weight, make().frozen.weight)
    if algorithm != "all-reduce":
        agree([flat(model) for model in trained], by_hand(loop, PAIRS, STEPS))


class OfSeveralTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        types = (torch.float32, torch.bfloat16, torch.float64)
        self.layers = nn.ModuleList(nn.Linear(5, 5, dtype=dtype) for dtype in types)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs.to(layer.weight.dtype)).tanh()
        return inputs


@pytest.mark.parametrize("topology", ["one-peer-exponential", "ring", "complete"])
def test_parameters_of_several_types(topology: str) -> None:
    make = fixed(OfSeveralTypes)
    loop = Loop(model=make, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    trained = decentralized(loop, N, STEPS, lambda training: copy.deepcopy(training.model), topology=topology)
    assert [p.dtype for p in trained[0].parameters()] == [p.dtype for p in make().parameters()]
    expected = by_hand(loop, topologies.build(topology, N), STEPS)
    agree([flat(model) for model in trained], expected, tolerance=0.01)  # of bfloat16
    assert (expected - flat(make())).abs().max() > 0.05


def test_autocast() -> None:
    """The forward pass in bfloat16, the parameters and what is sent in float32."""

    def in_bfloat16(model: nn.Module, rank: int, step: int) -> None:
        inputs, targets = network_batch(step, BATCHES)
        with torch.autocast("cpu", torch.bfloat16):
            loss = network_loss(model(inputs[rank].float()), targets[rank])
        loss.backward()

    loop = Loop(model=lambda: network().float(), backward=in_bfloat16)
    agree(decentralized(loop, N, STEPS, topology=PAIRS), by_hand(loop, PAIRS, STEPS), tolerance=1e-3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(backend: str) -> None:
    """Compiled and run before its parameters move into the flat buffer: the code must read them where they lie now."""

    def compiled() -> nn.Module:
        model = torch.compile(network().eval(), backend=backend)
        model(network_batch(0, 1)[0][0])
        return model.train()

    loop = Loop(model=compiled)
    agree(decentralized(loop, 1, 3), by_hand(Loop(), topologies.build("ring", 1), 3))


# ---- topologies and algorithms ------------------------------------------------------------------------------

CONNECTED = [name for name in topologies.names() if name != "nodes"]
SIZES = dict.fromkeys(CONNECTED, 4) | {"ring": 5, "base-2": 3, "random-matching": 5, "torus": 6, "ada": 5}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_every_topology_by_name(name: str, size: int) -> None:
    """Of one size that it takes; a few are odd."""
    context = {"steps_per_epoch": 2, "epochs": 3, "local_size": 1 if size % 2 else 2}
    schedule = topologies.build(name, size, **context)
    agree(decentralized(Loop(), size, STEPS, topology=name, **context), by_hand(Loop(), schedule, STEPS))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "algorithm", ["all-reduce", "d-psgd", "d-psgd-cta", "d-psgd-overlapped", "local-sgd", "local-sgd:every=2"]
)
def test_an_algorithm_as_by_hand(algorithm: str, size: int) -> None:
    schedule = topologies.build("base-2", size)
    spelled_out = "local-sgd:every=4" if algorithm == "local-sgd" else algorithm
    trained = decentralized(Loop(), size, STEPS, topology=schedule, algorithm=algorithm)
    agree(trained, by_hand(Loop(), schedule, STEPS, spelled_out))


def test_a_graph_that_was_made() -> None:
    trained = decentralized(Loop(), 5, STEPS, topology=topologies.ring(5))
    agree(trained, by_hand(Loop(), topologies.build("ring", 5), STEPS))


def test_an_algorithm_that_was_made() -> None:
    trained = decentralized(Loop(), 2, STEPS, topology="ring", algorithm=algorithms.LocalSGD(every=3))
    agree(trained, by_hand(Loop(), topologies.build("ring", 2), STEPS, "local-sgd:every=3"))


def test_ada_follows_the_epochs() -> None:
    """Everybody at first, two neighbours at the end: what each step sends shows it."""

    def rank(group: ProcessGroup) -> list[float]:
        model = network()
        settings = {"topology": "ada", "steps_per_epoch": 2, "epochs": 4}
        with decentralize(model, sgd(model), group=group, **settings) as training:
            sent = [0.0]
            for step in range(8):
                take_steps(training, range(step, step + 1))
                sent.append(training.metrics()["bytes_sent"])
        return sent

    schedule = topologies.build("ada", 7, steps_per_epoch=2, epochs=4)
    model_bytes = 8 * flat(network()).numel()
    per_step = [schedule(step).bytes_per_step(model_bytes) for step in range(8)]
    assert len(set(per_step)) > 2
    for sent in run_ranks(7, rank):
        assert sent == pytest.approx([sum(per_step[:step]) for step in range(9)])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_alternating_exponential_ring_on_one_node_and_groups_of_one(size: int) -> None:
    """The default. On one node everybody averages with everybody; nodes of one worker are groups of one every other
    step."""
    agree(decentralized(Loop(), size, 5), by_hand(Loop(), topologies.build("complete", size), 5))
    ones = topologies.build("alternating-exponential-ring:local_size=1", size)
    agree(decentralized(Loop(), size, 5, local_size=1), by_hand(Loop(), ones, 5))


def test_a_large_model_goes_in_parts_to_other_hosts_and_whole_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is declared to be a node: what counts is whether workers read each other's models in shared memory."""

    def num_parts(group: ProcessGroup) -> int:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))  # 6 MiB, in parts of 4
        with decentralize(model, sgd(model), group=group, topology="complete", local_size=1) as training:
            return len(training.replicas)

    assert run_ranks(3, num_parts) == [1, 1, 1]
    monkeypatch.setattr(_decentralize, "host", lambda: str(uuid4()))
    assert run_ranks(3, num_parts) == [2, 2, 2]


def test_one_process_is_a_world_too() -> None:
    """Without a group, a launcher or a neighbour, a script trains as it does without the two lines."""
    model, plain = network(), network()
    with decentralize(model, sgd(model)) as training:
        take_steps(training, range(STEPS))
        with training.averaged() as average:
            assert torch.equal(flat(average), flat(model))
    optimizer = sgd(plain)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(plain, 0, step)
        optimizer.step()
    assert torch.equal(flat(model), flat(plain))
    assert (training.rank, training.size, training.consensus_distance()) == (0, 1, 0.0)


# ---- what stays the user's ----------------------------------------------------------------------------------


def test_state_dicts_are_those_of_a_model_and_an_optimizer_alone() -> None:
    """Same keys, same layout, nothing of ours; and a plain model's state goes in before the start."""
    other = perturbed(network(), by=0.5)

    def rank(group: ProcessGroup) -> None:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        with decentralize(model, optimizer, group=group, topology="ring") as training:
            model.load_state_dict(other.state_dict())
            take_steps(training, range(2))
            kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        plain = network()
        plain.load_state_dict(other.state_dict())
        alone = torch.optim.AdamW(plain.parameters())
        backward(plain, 0, 0)
        alone.step()
        assert list(kept[0]) == list(plain.state_dict())
        assert kept[1].keys() == alone.state_dict().keys()
        assert kept[1]["param_groups"] == alone.state_dict()["param_groups"]
        assert {i: set(state) for i, state in kept[1]["state"].items()} == {
            i: set(state) for i, state in alone.state_dict()["state"].items()
        }
        plain.load_state_dict(kept[0])
        alone.load_state_dict(kept[1])
        assert torch.equal(flat(plain), flat(model))

    run_ranks(2, rank)


def test_a_plain_state_that_was_loaded_before_the_first_step_is_what_is_trained() -> None:
    other = perturbed(network(), by=0.5)

    def rank(group: ProcessGroup) -> Tensor:
        model = network()
        with decentralize(model, sgd(model), group=group, topology=PAIRS) as training:
            model.load_state_dict(other.state_dict())
            take_steps(training, range(STEPS))
        return flat(model)

    agree(run_ranks(N, rank), by_hand(Loop(model=lambda: copy.deepcopy(other)), PAIRS, STEPS))


# ---- refusals -----------------------------------------------------------------------------------------------


UNEVEN = topologies.from_matrix([[0.5, 0.5], [0.1, 0.9]], "uneven")


def refusal(size: int, **settings: Any) -> str:
    """What one rank is told."""

    def rank(group: ProcessGroup) -> str:
        model = network()
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the callers match
            decentralize(model, sgd(model), group=group, **settings)
        return str(caught.value)

    (message, *others) = run_ranks(size, rank)
    assert set(others) <= {message}
    return message


def test_a_model_that_holds_what_is_no_number_is_refused_by_all() -> None:
    """That of rank 0, which all would begin with; and the optimizer is the user's own again."""

    def rank(group: ProcessGroup) -> str:
        model = network()
        optimizer = sgd(model)
        if group.rank() == 0:
            with torch.no_grad():
                next(model.parameters())[0] = torch.nan
        with pytest.raises(ValueError, match="no numbers") as caught:
            decentralize(model, optimizer, group=group, topology=PAIRS)
        optimizer.step()
        return str(caught.value)

    assert len(set(run_ranks(N, rank))) == 1


@pytest.mark.parametrize(
    ("size", "settings", "words"),
    [
        (3, {"topology": "one-peer-exponential"}, ["n=3", "take base-2"]),
        (3, {"local_size": 1}, ["3/1 = 3", "alternating-nodes"]),
        (3, {"topology": "alternating-ring"}, ["n=3", "take 2 or 4 workers"]),
        (2, {"topology": "rign"}, ["'rign'", "did you mean 'ring'?"]),
        (2, {"topology": topologies.build("ring", 3)}, ["3 workers", "has 2", "build it for 2"]),
        (2, {"algorithm": "d-psdg"}, ["'d-psdg'", "did you mean 'd-psgd'?"]),
        (2, {"algorithm": "local-sgd:every=0"}, ["every 0 steps", "1 or more"]),
        (2, {"local_size": 3}, ["local_size=3", "the 2 workers"]),
        (2, {"local_size": 0}, ["local_size=0", "the 2 workers"]),
        (1, {"bucket_mib": 0}, ["bucket_mib=0", "more than 0"]),
        (1, {"timeout_s": -1}, ["timeout_s=-1", "more than 0"]),
        (1, {"wire_dtype": torch.int8}, ["torch.int8", "torch.bfloat16"]),
        (5, {"topology": "ada"}, ["ada changes from epoch to epoch", "got None and None"]),
        (5, {"topology": "ada:k_min=2", "steps_per_epoch": 9}, ["give steps_per_epoch", "got 9 and None"]),
        (2, {"topology": "ada", "steps_per_epoch": 0, "epochs": 2}, ["steps_per_epoch", "got 0"]),
        (2, {"topology": UNEVEN}, ["the model of rank 1 counts 1.4 times, that of rank 0 0.6 times", "take push-sum"]),
        (1, {"topology": 3}, ["topology=3", "such as 'ring'"]),
        (1, {"algorithm": algorithms.DPSGD}, ["DPSGD", "gossamer.algorithms.DPSGD() returns"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_work_is_refused_with_the_remedy(size: int, settings: dict[str, Any], words: list[str]) -> None:
    message = refusal(size, **settings)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            lambda rank: {"topology": "base-2" if rank == 2 else "ring"},
            "rank 2 has the topology base-2, but rank 0 has",
        ),
        (lambda rank: {"bucket_mib": 1e-5 if rank == 1 else 25.0}, "rank 1 has bucket_mib 1e-05, but rank 0 has 25.0"),
        (lambda rank: {"algorithm": f"local-sgd:every={rank + 2}"}, "rank 1 has the algorithm LocalSGD"),
        (lambda rank: {"topology": "ada", "steps_per_epoch": 9 - rank, "epochs": 4}, "rank 1 has steps_per_epoch 8"),
    ],
    ids=["topology", "parts", "algorithm", "epochs"],
)
def test_ranks_with_different_settings_are_told_so(settings: Callable[[int], dict[str, Any]], words: str) -> None:
    def rank(group: ProcessGroup) -> str:
        model = network()
        with pytest.raises(ValueError, match="give the same on all ranks") as caught:
            decentralize(model, sgd(model), group=group, **settings(group.rank()))
        return str(caught.value)

    for told in run_ranks(5, rank):
        assert told.startswith(words)


def test_ranks_with_different_models_are_told_so() -> None:
    def rank(group: ProcessGroup) -> str:
        model = nn.Linear(4, 2 + (group.rank() == 1))
        with pytest.raises(ValueError, match="give the same on all ranks") as caught:
            decentralize(model, sgd(model), group=group)
        return str(caught.value)

    for told in run_ranks(2, rank):
        assert told.startswith("rank 1 has a model of 2 tensors of 15 numbers")
        assert "but rank 0 has 2 tensors of 10 numbers" in told


def test_parameters_added_before_the_start_are_trained_and_later_ones_refused() -> None:
    def rank(group: ProcessGroup) -> Tensor:
        first, second, third = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(3))
        optimizer = torch.optim.SGD([first], lr=0.5)
        optimizer.add_param_group({"params": [second], "lr": 0.25})
        model = nn.ParameterList([first, second])
        with decentralize(model, optimizer, group=group, topology="ring", algorithm="d-psgd") as training:
            first.grad, second.grad = torch.ones_like(first), torch.full_like(second, group.rank())
            optimizer.step()
            optimizer.add_param_group({"params": [third]})
            with pytest.raises(ValueError, match=r"steps 3 parameters, but had 2 .* add parameters first"):
                optimizer.step()
            assert training.num_steps == 1
            return torch.stack([first.detach(), second.detach()])

    for trained in run_ranks(2, rank):  # gradients 0 and 1 of the second, and a mean of both replicas
        assert trained.tolist() == [[0.5, 0.5], [0.875, 0.875]]


def test_a_model_without_its_optimizer_is_refused() -> None:
    model, other = network(), network()
    with pytest.raises(ValueError, match="a model and its optimizer, got SGD and Sequential"):
        decentralize(sgd(model), model)
    with pytest.raises(ValueError, match=r"steps none of the model's parameters: make it for model.parameters\(\)"):
        decentralize(model, sgd(other))


def test_an_optimizer_is_decentralized_once_at_a_time() -> None:
    model = network()
    optimizer = sgd(model)
    with decentralize(model, optimizer) as training:
        with pytest.raises(ValueError, match=r"decentralized already: call close\(\)"):
            decentralize(model, optimizer)
        take_steps(training, range(2))
    with decentralize(model, optimizer) as training:
        take_steps(training, range(2))
    assert training.num_steps == 2


def test_complex_parameters_are_refused_with_the_remedy() -> None:
    model = nn.ParameterList([torch.ones(2, dtype=torch.complex64)])
    with pytest.raises(ValueError, match=r"'0' is torch.complex64.*keep torch.view_as_real of it"):
        decentralize(model, torch.optim.SGD(model.parameters()))


def _wrapped(group: ProcessGroup) -> dict[str, str]:
    """What is said to models that others average or have taken apart, in a world of one."""
    mesh = init_device_mesh("cpu", (1,))
    parallel = DistributedDataParallel(network())
    apart = fully_shard(network(), mesh=mesh)
    tensor_parallel = nn.Linear(4, 4)
    tensor_parallel.weight = nn.Parameter(distribute_tensor(tensor_parallel.weight.detach(), mesh, [Shard(0)]))
    models = {
        "ddp": parallel,
        "ddp inside": nn.Sequential(nn.Identity(), parallel),
        "fsdp": apart,
        "dtensor": tensor_parallel,
        "module": parallel.module,
    }
    said = {}
    for name, model in models.items():
        try:
            decentralize(model, sgd(model)).close()
            said[name] = "fine"
        except ValueError as error:
            said[name] = str(error)
    return said


def test_models_that_others_average_or_have_taken_apart_are_refused_with_the_remedy() -> None:
    (said,) = in_processes(1, _wrapped).values()
    assert said.pop("module") == "fine"
    starts = {
        "ddp": "the model is in DistributedDataParallel",
        "ddp inside": "the model's '1' is in DistributedDataParallel",
        "fsdp": "the model is sharded by FSDP",
        "dtensor": "parameter 'weight' is a DTensor",
    }
    assert said.keys() == starts.keys()
    for name, start in starts.items():
        assert said[name].startswith(start)
        assert "hand over" in said[name]


@pytest.mark.parametrize("bad_step", ["closure", "moved"])
def test_steps_that_could_not_be_mixed_are_refused_and_change_nothing(bad_step: str) -> None:
    def rank(group: ProcessGroup) -> None:
        model = network()
        optimizer = sgd(model)
        with decentralize(model, optimizer, group=group, topology="ring") as training:
            take_steps(training, range(2))
            before = flat(model)
            if bad_step == "closure":
                with pytest.raises(ValueError, match=r"call backward\(\) first, then step\(\) without a closure"):
                    optimizer.step(lambda: 0.0)
                assert torch.equal(flat(model), before)
                take_steps(training, range(2, 3))
                assert training.num_steps == 3
            else:
                model.float()
                with pytest.raises(ValueError, match="move the model first"):
                    optimizer.step()

    run_ranks(2, rank)
