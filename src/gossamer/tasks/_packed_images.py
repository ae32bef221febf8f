"""A folder of image files packed once into one file of bytes of equal size, read from the disk by number."""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from gossamer._files import write_whole

_SUFFIXES = (".jpeg", ".jpg", ".png")
_AT_ONCE = 256
"""Images handed to the threads in one go."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedImages:
    """Images `[S, 3, side, side]` in a file that is mapped into memory: only what is asked for is read."""

    pixels: NDArray[np.uint8]
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, indices: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.pixels[indices.cpu().numpy()])).to(self.device)

    def to(self, device: str) -> "PackedImages":
        return replace(self, device=device)


def image_files(folder: Path) -> list[Path]:
    """The images of a folder of classes, `class/image.jpeg`, by name."""
    return sorted(path for path in folder.glob("*/*") if path.suffix.lower() in _SUFFIXES)


def packed(files: list[Path], *, name: str, side: int, cache: Path) -> PackedImages:
    """The images of these files, decoded into `cache` unless it has them; other files or sizes are packed anew."""
    listed = [[str(file.relative_to(cache.parent)), file.stat().st_size] for file in files]
    digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
    whole = cache / f"{name}-{digest}.npy"
    if not whole.is_file():
        _make_room(cache, num_bytes=len(files) * 3 * side * side)
        write_whole(whole, lambda temporary: _pack(files, temporary, name=name, side=side))
        for outdated in set(cache.glob(f"{name}-*.npy")) - {whole}:
            outdated.unlink()
    return PackedImages(pixels=np.load(whole, mmap_mode="r"))


def decoded(file: Path, side: int) -> NDArray[np.uint8]:
    """The middle of an image `[3, side, side]`, its shorter side made `side` pixels long."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            scale = side / min(image.size)
            width, height = (max(round(scale * length), side) for length in image.size)
            resized = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{file} is not an image that can be read ({error}): replace it or take it away") from error
    left, top = (width - side) // 2, (height - side) // 2
    return np.asarray(resized)[top : top + side, left : left + side].transpose(2, 0, 1)


def _pack(files: list[Path], path: Path, *, name: str, side: int) -> None:
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(len(files), 3, side, side))

    def one(number: int) -> None:
        pixels[number] = decoded(files[number], side)

    starts = range(0, len(files), _AT_ONCE)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding frees the interpreter's lock
        for start in track(starts, f"packing {len(files):,} images ({name})", console=Console(stderr=True)):
            list(pool.map(one, range(start, min(start + _AT_ONCE, len(files)))))
    pixels.flush()


def _make_room(cache: Path, *, num_bytes: int) -> None:
    try:
        cache.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write the packed images to {cache}: {error.strerror}; make {cache.parent} writable, or link its "
            "train/ and val/ into a folder that is and give that"
        ) from error
    free = shutil.disk_usage(cache).free
    if free < num_bytes:  # a mapped file on a full disk would end the process
        raise ValueError(
            f"the packed images take {num_bytes / 1e9:.1f} GB and {cache.parent} has {free / 1e9:.1f} GB left: "
            "link its train/ and val/ into a folder on a larger disk and give that"
        )


def require_pillow(task: str) -> None:
    """Refuse now what would fail at the first image."""
    if find_spec("PIL") is None:
        raise ValueError(f"task {task!r} reads images with Pillow: pip install 'gossamer[images]'")
