"""Folders of images: packing, reading by number, cropping."""

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_data import image, image_folder
from PIL import Image

from gossamer.tasks import TASKS, Dataset, _packed_images, imagenet
from gossamer.tasks._packed_images import PackedImages, decoded


def load(folder: Path) -> Dataset:
    """As if in a new process."""
    imagenet._read.cache_clear()
    return TASKS["resnet50"].load(folder)


def packs(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (folder / ".gossamer-256").iterdir()}


def test_images_of_all_formats_with_the_numbers_of_their_classes(tmp_path: Path) -> None:
    data = load(image_folder(tmp_path))
    assert (data.train_targets.tolist(), data.test_targets.tolist()) == ([0, 0, 1], [0, 1])
    assert data.labels is not None
    blue, red = data.test_inputs[torch.tensor([0, 1])]
    assert blue.shape == (3, 256, 256)
    assert blue.dtype == torch.uint8
    assert (blue.float().mean((1, 2)).tolist(), red.float().mean((1, 2)).tolist()) == ([0, 0, 255], [255, 0, 0])


def test_samples_by_number_have_the_shape_of_the_numbers(tmp_path: Path) -> None:
    samples = load(image_folder(tmp_path)).to("cpu").train_inputs
    assert isinstance(samples, PackedImages)
    indices = torch.tensor([[2, 0], [0, 2]])
    found = samples[indices]
    assert found.shape == (2, 2, 3, 256, 256)
    assert torch.equal(found, torch.from_numpy(np.array(samples.pixels))[indices])
    assert samples.to("meta")[indices].device.type == "meta"


def test_the_middle_is_kept_and_the_shorter_side_fills_it(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(200, dtype=np.uint8)[:, None, None], (1, 100, 3))  # 200 high, 100 wide, grey by row
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels = decoded(tmp_path / "ramp.png", 64)
    assert pixels.shape == (3, 64, 64)
    # scaled by 0.64 to 128 x 64; rows 32 to 95 of those, which were 50 to 150
    assert pixels[0, :, 0].tolist() == pytest.approx([(32 + row + 0.5) / 0.64 - 0.5 for row in range(64)], abs=1)


def test_packed_once_and_anew_when_the_folder_changes(tmp_path: Path) -> None:
    before = image_folder(tmp_path) and load(tmp_path) and packs(tmp_path)
    assert load(tmp_path).num_train == 3
    assert packs(tmp_path) == before
    image(tmp_path / "train" / "red" / "four.png", (250, 0, 0))
    data = load(tmp_path)
    assert data.train_targets.tolist() == [0, 0, 1, 1]
    after = packs(tmp_path)
    assert len(after) == 2  # the outdated one is gone, nothing unfinished is left
    assert len(set(after.items()) & set(before.items())) == 1  # and that of val/ is as it was


def test_a_broken_image_is_named_and_leaves_nothing_half_packed(tmp_path: Path) -> None:
    image_folder(tmp_path)
    good = (tmp_path / "train" / "blue" / "two.JPEG").read_bytes()
    for broken in (b"no image", good[: len(good) // 2], b""):
        (tmp_path / "train" / "red" / "bad.jpg").write_bytes(broken)
        with pytest.raises(ValueError, match=r"train/red/bad\.jpg is not an image that can be read .*: replace it"):
            load(tmp_path)
        assert packs(tmp_path) == {}


def test_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^task 'resnet50' needs data: give --data DIR with train/CLASS/\*\.JPEG and val"
    ):
        TASKS["resnet50"].load(None)
    with pytest.raises(ValueError, match="nowhere is not a folder: task 'resnet50' needs one with train/CLASS"):
        load(tmp_path / "nowhere")
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="has no val/: task 'resnet50' needs"):
        load(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="train has no images: fill it with CLASS"):
        load(tmp_path)


def test_a_class_to_test_that_was_never_trained_is_refused(tmp_path: Path) -> None:
    image(image_folder(tmp_path) / "val" / "green" / "one.png", (0, 255, 0))
    with pytest.raises(ValueError, match=r"val has the class 'green', which .*train has not"):
        load(tmp_path)


def test_more_classes_than_outputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "MAX_CLASSES", 1)
    with pytest.raises(ValueError, match="train has 2 classes: the models here tell 1 apart"):
        load(image_folder(tmp_path))


def test_a_folder_that_takes_no_files_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (image_folder(tmp_path) / ".gossamer-256").write_text("in the way")
    with pytest.raises(
        ValueError, match=r"cannot write the packed images to .*\.gossamer-256: .*; make .* writable, or link"
    ):
        load(tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_packing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"packed images take 1000000000\.0 GB and .* GB left: link"):
        _packed_images._make_room(tmp_path / "cache", num_bytes=10**18)


def test_crops_are_the_squares_that_the_draws_name() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=(2, 3, 256, 256), dtype=np.uint8))
    whole = (images / 255 - torch.tensor(imagenet.MEAN)[:, None, None]) / torch.tensor(imagenet.STD)[:, None, None]
    cropped = imagenet.prepare(images, torch.tensor([[0.0, 1 - 2**-24, 0.7], [0.1, 0.5, 0.2]]))
    torch.testing.assert_close(cropped[0], whole[0, :, :224, 32:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cropped[1], whole[1, :, 3 : 3 + 224, 16 : 16 + 224].flip(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(imagenet.prepare(images, None), whole[..., 16:240, 16:240], rtol=1e-4, atol=1e-5)
