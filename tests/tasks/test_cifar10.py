"""CIFAR-10: its files, what is said when they are wrong, and its augmentation."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_data import CIFAR_FILES, cifar_batch, cifar_folder
from torch import Tensor

from gossamer.tasks import TASKS, cifar10

CIFAR_TASKS = ("resnet20", "resnet20-gn", "densenet100", "vgg16")


def test_images_and_labels_are_those_of_the_files_in_order(tmp_path: Path) -> None:
    data = cifar10.read(cifar_folder(tmp_path, num_each=7), num_each=7)
    assert (data.num_train, data.num_test) == (35, 7)
    assert data.labels is not None
    assert data.train_inputs[0:1].dtype == torch.uint8
    for seed in range(6):
        batch = cifar_batch(7, seed)
        images, labels = (
            (data.test_inputs, data.test_targets)
            if seed == 5
            else (data.train_inputs[7 * seed : 7 * seed + 7], data.train_targets[7 * seed : 7 * seed + 7])
        )
        # a row is 1024 red pixels, then green, then blue, line by line
        assert np.array_equal(images, batch[b"data"].reshape(7, 3, 32, 32))
        assert labels.tolist() == batch[b"labels"]


def test_read_once(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path, num_each=2)
    assert cifar10.read(folder, num_each=2) is cifar10.read(folder, num_each=2)


@pytest.mark.parametrize("task", CIFAR_TASKS)
def test_says_what_to_put_where(tmp_path: Path, task: str) -> None:
    load = TASKS[task].load
    with pytest.raises(ValueError, match=f"^task '{task}' needs data: give --data DIR with cifar-10-batches-py/ "):
        load(None)
    with pytest.raises(ValueError, match=f"nowhere is not a folder: task '{task}' needs one with cifar-10-batches-py/"):
        load(tmp_path / "nowhere")
    (cifar_folder(tmp_path, num_each=1) / "data_batch_4").unlink()
    for folder in (tmp_path, tmp_path / "cifar-10-batches-py"):
        with pytest.raises(
            ValueError, match=f"cifar-10-batches-py has no data_batch_4: task '{task}' needs --data DIR"
        ):
            load(folder)


def test_a_cut_off_batch_is_named_with_what_it_has(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path, num_each=7)
    (folder / "data_batch_2").write_bytes(pickle.dumps(cifar_batch(6, 0), protocol=2))
    with pytest.raises(
        ValueError, match=r"data_batch_2 has images of shape \(6, 3072\) and 6 labels .*\(7, 3072\) and 7"
    ):
        cifar10.read(folder, num_each=7)
    with pytest.raises(ValueError, match=r"data_batch_1 has images of shape \(7, 3072\) .*\(10000, 3072\)"):
        TASKS["resnet20"].load(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{**cifar_batch(1, 0), b"labels": [10]}, {b"data": np.zeros((1, 3072)), b"labels": [0]}, {b"labels": [0]}, [1, 2]],
)
def test_other_contents_are_refused(tmp_path: Path, wrong: object) -> None:
    folder = cifar_folder(tmp_path, num_each=1)
    (folder / "test_batch").write_bytes(pickle.dumps(wrong, protocol=2))
    with pytest.raises(ValueError, match="test_batch has images of shape"):
        cifar10.read(folder, num_each=1)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path, num_each=1)
    whole = (folder / "data_batch_3").read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PK\x03\x04 not a pickle"):
        (folder / "data_batch_3").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"data_batch_3 cannot be read as a CIFAR-10 file: .*; unpack the archive"):
            cifar10.read(folder, num_each=1)


class _RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    folder = cifar_folder(tmp_path, num_each=1)
    (folder / CIFAR_FILES[0]).write_bytes(pickle.dumps({b"data": _RunsCode(tmp_path / "touched")}))
    with pytest.raises(ValueError, match="data_batch_1 cannot be read as a CIFAR-10 file: it asks for "):
        cifar10.read(folder, num_each=1)
    assert not (tmp_path / "touched").exists()


# ---- augmentation -----------------------------------------------------------------------------------------------


def shifted_and_mirrored(image: Tensor, draws: Tensor) -> Tensor:
    """`prepare` of one image, pixel by pixel."""
    down, across = (int(draw * 9) - 4 for draw in draws[:2].tolist())
    out = torch.zeros(3, 32, 32)
    for row in range(32):
        for column in range(32):
            y, x = row + down, across + (31 - column if draws[2] < 0.5 else column)
            if 0 <= y < 32 and 0 <= x < 32:
                for channel in range(3):
                    value = image[channel, y, x].item() / 255
                    out[channel, row, column] = (value - cifar10.MEAN[channel]) / cifar10.STD[channel]
    return out


@pytest.fixture(name="images")
def some_images() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(256, size=(2, 3, 3, 32, 32), dtype=np.uint8))


@pytest.fixture(name="draws")
def some_draws() -> Tensor:
    drawn = torch.from_numpy(np.random.default_rng(1).random((2, 3, 3), dtype=np.float32))
    drawn[0, 0] = torch.tensor([0.0, 1 - 2**-24, 0.0])  # the ends of the interval
    drawn[0, 1] = torch.tensor([0.5, 0.5, 0.9])  # neither shifted nor mirrored
    return drawn


def test_augmentation_is_what_it_says_pixel_by_pixel(images: Tensor, draws: Tensor) -> None:
    augmented = cifar10.prepare(images, draws)
    assert augmented.dtype == torch.float32
    expected = [
        shifted_and_mirrored(image, drawn)
        for image, drawn in zip(images.flatten(0, 1), draws.flatten(0, 1), strict=True)
    ]
    torch.testing.assert_close(augmented.flatten(0, 1), torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_without_draws_images_are_only_normalised(images: Tensor, draws: Tensor) -> None:
    plain = cifar10.prepare(images, None)
    assert torch.equal(plain[0, 1], cifar10.prepare(images, draws)[0, 1])
    assert plain.shape == images.shape


def test_replicas_do_not_see_each_other(images: Tensor, draws: Tensor) -> None:
    together = cifar10.prepare(images, draws)
    for replica in range(2):
        assert torch.equal(together[replica], cifar10.prepare(images[replica], draws[replica]))


def test_augmentation_compiles_as_one_graph(images: Tensor, draws: Tensor) -> None:
    compiled = torch.compile(cifar10.prepare, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(images, draws), cifar10.prepare(images, draws))


def test_augmentation_never_asks_the_host(images: Tensor, draws: Tensor) -> None:
    # tensors without values: whatever needed one would fail
    assert cifar10.prepare(images.to("meta"), draws.to("meta")).shape == images.shape
