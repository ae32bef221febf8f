"""What holds for every task of the table."""

import ast
from pathlib import Path

import pytest
import torch
from small_models import SMALL, batch

from gossamer import tasks
from gossamer.tasks import TASKS
from gossamer.tasks.imagenet import STORED

NEED_DATA = [name for name, task in TASKS.items() if task.needs_data]


@pytest.mark.parametrize("name", NEED_DATA)
def test_tasks_that_need_data_say_so_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^task '{name}' needs data: give --data DIR with .* in it$"):
        TASKS[name].load(None)


@pytest.mark.parametrize("name", sorted(set(TASKS) - set(NEED_DATA)))
def test_the_others_bring_their_data_along(name: str) -> None:
    data = TASKS[name].load(None)
    assert data.num_train > data.num_test > 0
    assert TASKS[name].load(None) is data


@pytest.mark.parametrize("name", TASKS)
def test_names_and_summaries(name: str) -> None:
    task = TASKS[name]
    assert task.name == name
    assert len(task.summary) < 100
    assert "\n" not in task.summary
    assert 0 < task.good < 1
    assert task.warmup_epochs < task.epochs


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.num_draws])
def test_augmentation_takes_the_number_of_draws_that_it_asks_for(name: str) -> None:
    task = TASKS[name]
    side = STORED if name == "resnet50" else 32
    images = torch.randint(256, (2, 2, 3, side, side), dtype=torch.uint8)
    augmented = task.prepare(images, torch.rand(2, 2, task.num_draws))
    assert augmented.shape == task.prepare(images, None).shape
    assert augmented.dtype == torch.float32


@pytest.mark.parametrize("name", TASKS)
def test_small_models_learn_a_batch_by_heart_with_the_optimizer_of_the_task(name: str) -> None:
    task = TASKS[name]
    torch.manual_seed(0)
    model = SMALL[name]()
    inputs, targets = (part[0] for part in batch(name))
    inputs = inputs.to(next(model.parameters()).dtype) if inputs.is_floating_point() else inputs
    rate = 1.0 if name == "lstm-sgd" else 0.02 if task.is_language else 0.05
    optimizer = task.optimizer(model.parameters(), rate)
    losses: list[float] = []
    while len(losses) < 200 and not (losses and losses[-1] < 0.1 * losses[0]):
        loss = task.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    right = task.correct(model(inputs), targets)
    assert right.shape == targets.shape[:1]
    assert right.mean() > 0.7


def test_what_only_some_tasks_need_is_not_imported_with_the_others() -> None:
    folder = Path(tasks.__file__).parent
    at_the_top = [node for file in folder.glob("*.py") for node in ast.parse(file.read_text()).body]
    imported = {alias.name for node in at_the_top if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in at_the_top if isinstance(node, ast.ImportFrom)}
    assert "torch" in imported
    assert {name.split(".")[0] for name in imported}.isdisjoint({"PIL", "sacrebleu"})
