"""WikiText-2: two million words of Wikipedia (Merity et al. 2016), in windows of 35."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ._folder import data_folder, first_file
from ._language import windows
from ._task import Dataset

VOCABULARY = 33_278
"""Different words of the training text, with `<unk>` and `<eos>`: what models are built for."""
WINDOW = 35
_HOLDS = "WikiText-2's train.txt and test.txt (or wiki.train.tokens and wiki.test.tokens)"


def load(data: Path | None, *, task: str) -> Dataset:
    """Windows `[S, 35]` of word numbers; the targets are the same windows one word further on.

    Each window stands alone, so that any of them can be in any batch. Tested on the test text; the validation text is
    not read, as nothing here is chosen by it. `task` is for messages.
    """
    folder = data_folder(data, task=task, holds=_HOLDS)
    folder = folder / "wikitext-2" if (folder / "wikitext-2").is_dir() else folder
    train, test = (
        first_file(folder, (f"{part}.txt", f"wiki.{part}.tokens"), task=task, holds=_HOLDS)
        for part in ("train", "test")
    )
    return _read(train, test)


@cache
def _read(train: Path, test: Path) -> Dataset:
    words = _words(train)
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    unknown = numbers.setdefault("<unk>", len(numbers))
    if len(numbers) > VOCABULARY:
        raise ValueError(
            f"{train} has {len(numbers):,} different words, and the model knows {VOCABULARY:,}: "
            "write its rare words as <unk>"
        )
    train_inputs, train_targets = _windows(train, words, numbers, unknown)
    test_inputs, test_targets = _windows(test, _words(test), numbers, unknown)
    return Dataset(
        train_inputs=train_inputs, train_targets=train_targets, test_inputs=test_inputs, test_targets=test_targets
    )


def _words(file: Path) -> list[str]:
    """The words of a text, each line with an end of its own."""
    with file.open(encoding="utf-8") as lines:
        return [word for line in lines for word in (*line.split(), "<eos>")]


def _windows(file: Path, words: list[str], numbers: dict[str, int], unknown: int) -> tuple[Tensor, Tensor]:
    if len(words) <= WINDOW:
        raise ValueError(f"{file} has {len(words)} words: {WINDOW + 1} make the first sample")
    return windows(torch.tensor([numbers.get(word, unknown) for word in words]), WINDOW)
