"""Small data folders in the layouts that the tasks read."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def cifar_batch(num: int, seed: int) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    return {
        b"batch_label": b"made up",
        b"labels": rng.integers(10, size=num).tolist(),
        b"data": rng.integers(256, size=(num, 3072), dtype=np.uint8),
        b"filenames": [b"a.png"] * num,
    }


def cifar_folder(folder: Path, num_each: int) -> Path:
    """Six files in `folder/cifar-10-batches-py`, pickled as for Python 2, as the original ones are."""
    inner = folder / "cifar-10-batches-py"
    inner.mkdir()
    for seed, name in enumerate(CIFAR_FILES):
        (inner / name).write_bytes(pickle.dumps(cifar_batch(num_each, seed), protocol=2))
    return inner


def image(file: Path, colour: tuple[int, int, int], size: tuple[int, int] = (20, 30)) -> None:
    """One file of one colour; `size` is width and height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


def image_folder(folder: Path) -> Path:
    """Two classes, red and blue, in all formats and both orientations."""
    image(folder / "train" / "blue" / "one.png", (0, 0, 255))
    image(folder / "train" / "blue" / "two.JPEG", (0, 0, 255), (30, 20))
    image(folder / "train" / "red" / "one.jpg", (255, 0, 0))
    image(folder / "val" / "blue" / "three.png", (0, 0, 255))
    image(folder / "val" / "red" / "three.png", (255, 0, 0))
    return folder


GERMAN = ("Ein Hund läuft .", "Zwei Hunde laufen .", "Ein Hund und zwei Hunde .", "Ein Mann läuft .")
ENGLISH = ("A dog runs.", "Two dogs run.", "A dog and two dogs.", "A man runs.")


def translation_folder(folder: Path, *, packed: bool) -> Path:
    """Four sentences to train on, twice, so that every word counts, and two of them to test."""
    for part, num in (("train", 8), ("test_2016_flickr", 2)):
        for language, sentences in (("de", GERMAN), ("en", ENGLISH)):
            text = "".join(f"{sentence}\n" for sentence in (*sentences, *sentences)[:num]).encode()
            if packed:
                (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(text))
            else:
                (folder / f"{part}.{language}").write_bytes(text)
    return folder
