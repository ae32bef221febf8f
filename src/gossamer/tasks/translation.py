"""German to English with a small transformer, on Multi30k (Elliott et al. 2016): captions of 30,000 photographs."""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._folder import data_folder, first_file
from ._optimizers import adamw
from ._parallel_text import BOS, EOS, PAD, Sentences, lines_of, numbered, text_of, vocabulary_of, words_of
from ._task import Dataset, Task
from ._transformer import Block, TokensAndPlaces, causal_mask

VOCABULARY = 8_000
"""Entries of each language at most, which is what the model is built for."""
LENGTH = 32
"""Tokens of a sentence with its end, in both languages; longer pairs, one in 500, are not trained on."""
_HOLDS = "train.de, train.en, test_2016_flickr.de and test_2016_flickr.en (or the same with .gz)"
_SCORED_AT_ONCE = 250


def load(data: Path | None) -> Dataset:
    """Pairs as `[S, 64]` tokens: the German sentence, then the English one shifted right; it is the target `[S, 32]`.

    Tested on `test_2016_flickr`; the validation text is not read, as nothing here is chosen by it.
    """
    folder = data_folder(data, task="translation", holds=_HOLDS)
    require_sacrebleu()
    files = [
        first_file(folder, (f"{part}.{language}", f"{part}.{language}.gz"), task="translation", holds=_HOLDS)
        for part in ("train", "test_2016_flickr")
        for language in ("de", "en")
    ]
    return _read(*files)


@cache
def _read(train_de: Path, train_en: Path, test_de: Path, test_en: Path) -> Dataset:
    sources, targets = _pairs(train_de, train_en)
    test_sources, test_targets = _pairs(test_de, test_en)
    source_words, target_words = (vocabulary_of(side, most=VOCABULARY) for side in (sources, targets))
    fitting = [pair for pair in zip(sources, targets, strict=True) if max(map(len, pair)) < LENGTH]
    answers = numbered([target for _, target in fitting], target_words, length=LENGTH)
    test_answers = numbered(test_targets, target_words, length=LENGTH)
    questions = numbered([source for source, _ in fitting], source_words, length=LENGTH)
    test_questions = numbered(test_sources, source_words, length=LENGTH)
    return Dataset(
        train_inputs=_joined(questions, answers),
        train_targets=answers,
        test_inputs=Sentences(
            tokens=_joined(test_questions, test_answers), vocabulary=target_words, references=lines_of(test_en)
        ),
        test_targets=test_answers,
    )


def _pairs(source: Path, target: Path) -> tuple[list[list[str]], list[list[str]]]:
    sides = [[words_of(line) for line in lines_of(file)] for file in (source, target)]
    if len(sides[0]) != len(sides[1]) or not sides[0]:
        raise ValueError(
            f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}: "
            "both need the same sentences, a line each"
        )
    return sides[0], sides[1]


def _joined(sources: Tensor, targets: Tensor) -> Tensor:
    """What the model gets: to say each word, it may see those before it."""
    return torch.cat((sources, torch.full((len(targets), 1), BOS), targets[:, :-1]), 1)


class Translator(nn.Module):
    """Source and shifted target `[B, 2 T]` to the target's words `[B, T, vocabulary]`.

    The output layer has the weights of the target's embedding.
    """

    def __init__(
        self, *, vocabulary: int = VOCABULARY, length: int = LENGTH, width: int = 256, heads: int = 4, layers: int = 3
    ) -> None:
        super().__init__()
        self.length = length
        self.source, self.target = (TokensAndPlaces(vocabulary, length, width, dropout=0.2) for _ in range(2))
        block = partial(Block, width, heads, hidden=2 * width, dropout=0.2)
        self.encoder = nn.ModuleList(block() for _ in range(layers))
        self.decoder = nn.ModuleList(block(looks_at_memory=True) for _ in range(layers))
        self.norm_memory, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        source, target = tokens[:, : self.length], tokens[:, self.length :]
        is_word = (source != PAD)[:, None, None, :]  # [B, 1, 1, T]: every head and position may look at words only
        memory = self.source(source)
        for block in self.encoder:
            memory = block(memory, is_word)
        memory = self.norm_memory(memory)
        before = causal_mask(self.length, tokens.device)
        x = self.target(target)
        for block in self.decoder:
            x = block(x, before, memory, is_word)
        return F.linear(self.norm(x), self.target.tokens.weight, self.bias)


def word_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the words of a batch and their ends, without padding."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def word_top1(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the words of each sentence, its end among them, that the largest outputs name."""
    is_word = targets != PAD
    return ((outputs.argmax(-1) == targets) & is_word).sum(-1) / is_word.sum(-1)


@torch.no_grad()
def translate(say: Callable[[Tensor], Tensor], sources: Tensor) -> Tensor:
    """Sources `[B, T]` to the likeliest next word, one after the other, `[B, T]`."""
    length = sources.shape[1]
    tokens = torch.full((len(sources), length + 1), PAD, device=sources.device)
    tokens[:, 0] = BOS
    for place in range(length):
        tokens[:, place + 1] = say(torch.cat((sources, tokens[:, :-1]), 1))[:, place].argmax(-1)
        if (tokens == EOS).any(1).all():
            break
    return tokens[:, 1:]


def score(say: Callable[[Tensor], Tensor], data: Dataset) -> dict[str, float]:
    """BLEU of the translated test sentences against the references, upper and lower case alike, as sacrebleu counts."""
    require_sacrebleu()
    from sacrebleu import corpus_bleu

    test = data.test_inputs
    assert isinstance(test, Sentences)
    translated = [
        text_of(row, test.vocabulary)
        for start in range(0, len(test), _SCORED_AT_ONCE)
        for row in translate(say, test.tokens[start : start + _SCORED_AT_ONCE, :LENGTH]).tolist()
    ]
    # signs stand apart in what the model writes; that is what BLEU's own tokens are, so nothing need be put together
    return {"bleu": corpus_bleu(translated, [list(test.references)], lowercase=True, force=True).score}


def require_sacrebleu() -> None:
    """Refuse now what would fail at the end of the training."""
    if find_spec("sacrebleu") is None:
        raise ValueError("task 'translation' counts BLEU with sacrebleu: pip install 'gossamer[translation]'")


TRANSLATION = Task(
    name="translation",
    summary="German to English on Multi30k, a transformer of 3 + 3 layers, words, 8.1 M parameters",
    load=load,
    needs_data=True,
    model=Translator,
    loss=word_loss,
    correct=word_top1,
    optimizer=partial(adamw, weight_decay=0.01),
    lr=5e-4,
    lr_batch=128,
    batch_size=8,
    epochs=30,
    warmup_epochs=2,
    good=0.60,
    is_language=True,
    score=score,
    half=True,
)
