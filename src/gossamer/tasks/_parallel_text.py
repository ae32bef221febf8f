"""Sentences in two languages as numbers: words, vocabularies and fixed lengths."""

import gzip
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

PAD, UNK, BOS, EOS = range(4)
_SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


@dataclass(frozen=True, kw_only=True, eq=False)
class Sentences:
    """Token numbers `[S, ...]` by number, and beside them what it takes to turn answers into text and judge them."""

    tokens: Tensor
    vocabulary: tuple[str, ...]
    """The words of the target language, by number."""
    references: tuple[str, ...]
    """The translations as they were written."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, indices: Tensor) -> Tensor:
        return self.tokens[indices]

    def to(self, device: str) -> "Sentences":
        return replace(self, tokens=self.tokens.to(device))


def lines_of(file: Path) -> tuple[str, ...]:
    """The lines of a text, unpacked if its name ends in `.gz`."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return tuple(raw.decode("utf-8").splitlines())


def words_of(sentence: str) -> list[str]:
    """Lower-case words and signs; inside a word, apostrophes and hyphens stay.

    >>> words_of("The man's T-shirt is red.")
    ['the', "man's", 't-shirt', 'is', 'red', '.']
    """
    return _WORD.findall(sentence.lower())


def vocabulary_of(sentences: Iterable[list[str]], *, most: int) -> tuple[str, ...]:
    """The special entries, then the words that come at least twice, frequent ones first, `most` entries in all.

    >>> vocabulary_of([["a", "dog"], ["the", "dog"], ["a", "cat"]], most=100)
    ('<pad>', '<unk>', '<bos>', '<eos>', 'a', 'dog')
    """
    counts = Counter(word for sentence in sentences for word in sentence)
    frequent = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
    return (*_SPECIAL, *frequent)[:most]


def numbered(sentences: list[list[str]], vocabulary: tuple[str, ...], *, length: int) -> Tensor:
    """Word numbers `[S, length]`, each row with its end and padded; of longer sentences the beginning.

    >>> numbered([["a"], ["dog", "a", "a"]], ("<pad>", "<unk>", "<bos>", "<eos>", "a"), length=3)
    tensor([[4, 3, 0],
            [1, 4, 3]])
    """
    numbers = {word: number for number, word in enumerate(vocabulary)}
    rows = torch.full((len(sentences), length), PAD)
    for row, sentence in zip(rows, sentences, strict=True):
        kept = [numbers.get(word, UNK) for word in sentence[: length - 1]]
        row[: len(kept) + 1] = torch.tensor([*kept, EOS])
    return rows


def text_of(tokens: list[int], vocabulary: tuple[str, ...]) -> str:
    """The words up to the end of the sentence; what is no word, such as an output beyond the vocabulary, is left out.

    >>> text_of([4, 1, 4, 7, 3, 4], ("<pad>", "<unk>", "<bos>", "<eos>", "a"))
    'a a'
    """
    ended = tokens.index(EOS) if EOS in tokens else len(tokens)
    return " ".join(vocabulary[token] for token in tokens[:ended] if len(_SPECIAL) <= token < len(vocabulary))
