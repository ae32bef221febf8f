"""A small GPT that writes Python, letter by letter, from Python's own standard library: nothing to download."""

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ._folder import data_folder
from ._language import token_loss, token_top1, windows
from ._optimizers import adamw
from ._task import Dataset, Task
from ._transformer import Block, TokensAndPlaces, causal_mask

VOCABULARY = 128
"""ASCII."""
WINDOW = 64
_MAX_CHARACTERS = 2_000_000
_TEST_SHARE = 0.1


def load(data: Path | None = None) -> Dataset:
    """Windows `[S, 64]` of characters; the targets are the same windows one further on. The last tenth is to test.

    The text is that of the modules of the standard library, by name, up to 2 million characters: the same for one
    version of Python, another for the next. With a folder, it is that of its `*.txt` files instead, all of it.
    """
    if data is None:
        return _read(Path(sysconfig.get_paths()["stdlib"]), "*.py", _MAX_CHARACTERS)
    return _read(data_folder(data, task="chargpt", holds="*.txt"), "*.txt", None)


@cache
def _read(folder: Path, pattern: str, most: int | None) -> Dataset:
    text = b"".join(_ascii(file) for file in sorted(folder.glob(pattern)))[:most]
    first_test = len(text) - int(_TEST_SHARE * len(text))
    if len(text) - first_test <= WINDOW:
        raise ValueError(
            f"{folder} has {len(text)} ASCII characters in its {pattern} files: 'chargpt' needs at least "
            f"{int((WINDOW + 1) / _TEST_SHARE)}; give --data DIR with *.txt in it"
        )
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    train_inputs, train_targets = windows(tokens[:first_test], WINDOW)
    test_inputs, test_targets = windows(tokens[first_test:], WINDOW)
    return Dataset(
        train_inputs=train_inputs, train_targets=train_targets, test_inputs=test_inputs, test_targets=test_targets
    )


def _ascii(file: Path) -> bytes:
    """The text of a file without what is not ASCII, lines ended alike on every system."""
    return file.read_text(encoding="utf-8", errors="ignore").encode("ascii", "ignore")


class CharGPT(nn.Module):
    """Characters `[B, T]` to what comes next, `[B, T, 128]`."""

    def __init__(self, *, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.embedding = TokensAndPlaces(VOCABULARY, WINDOW, width, dropout=0.0)
        self.blocks = nn.ModuleList(Block(width, heads, hidden=4 * width, dropout=0.0) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        mask = causal_mask(characters.shape[1], characters.device)
        x = self.embedding(characters)
        for block in self.blocks:
            x = block(x, mask)
        said: Tensor = self.out(self.norm(x))
        return said


CHARGPT = Task(
    name="chargpt",
    summary="a 4-layer GPT on the text of Python's standard library, letters, 0.83 M parameters",
    load=load,
    model=CharGPT,
    loss=token_loss,
    correct=token_top1,
    optimizer=adamw,
    lr=1e-3,
    lr_batch=128,
    batch_size=8,
    epochs=20,
    warmup_epochs=1,
    good=0.55,
    is_language=True,
    half=True,
)
