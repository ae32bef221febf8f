"""Text: windows, vocabularies, sentence pairs, BLEU, and what is said when the data are wrong."""

import sysconfig
from pathlib import Path

import pytest
import torch
from made_up_data import ENGLISH, GERMAN, translation_folder
from torch import Tensor

from gossamer.tasks import TASKS, translation, wikitext
from gossamer.tasks._language import token_loss, token_top1
from gossamer.tasks._parallel_text import BOS, EOS, PAD, UNK, Sentences
from gossamer.tasks.translation import LENGTH, Translator, word_loss, word_top1

# ---- WikiText ---------------------------------------------------------------------------------------------------

LINES = [" = Title = ", "", *(f"the cat number {i} sat on the mat ." for i in range(20))]
NAMES = {"": ("train.txt", "test.txt"), "wikitext-2": ("wiki.train.tokens", "wiki.test.tokens")}


@pytest.mark.parametrize("inner", NAMES)
def test_wikitext_windows_are_the_words_in_order_and_one_further_on(tmp_path: Path, inner: str) -> None:
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    train, test = NAMES[inner]
    (folder / train).write_text("\n".join([*LINES, "an <unk> word"]) + "\n")
    (folder / test).write_text("the unheard cat sat <unk> \n" * 8)
    data = TASKS["lstm"].load(tmp_path)
    words = [word for line in [*LINES, "an <unk> word"] for word in (*line.split(), "<eos>")]
    vocabulary = list(dict.fromkeys(words))
    assert data.num_train == (len(words) - 1) // 35
    assert data.labels is None
    stream = [vocabulary[token] for token in data.train_inputs[torch.arange(data.num_train)].flatten().tolist()]
    assert stream == words[: len(stream)]
    assert [vocabulary[token] for token in data.train_targets.flatten().tolist()] == words[1 : len(stream) + 1]
    heard = [vocabulary[token] for token in data.test_inputs[torch.tensor([0])].flatten().tolist()]
    assert heard[:6] == ["the", "<unk>", "cat", "sat", "<unk>", "<eos>"]


def test_wikitext_refuses_what_it_cannot_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = TASKS["lstm"].load
    with pytest.raises(ValueError, match=r"^task 'lstm' needs data: give --data DIR with WikiText-2's train\.txt"):
        load(None)
    with pytest.raises(ValueError, match=r"has no train\.txt or wiki\.train\.tokens: task 'lstm' needs"):
        load(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(LINES))
    (tmp_path / "test.txt").write_text("too short")
    with pytest.raises(ValueError, match=r"test\.txt has 3 words: 36 make the first sample"):
        load(tmp_path)
    monkeypatch.setattr(wikitext, "VOCABULARY", 10)
    with pytest.raises(ValueError, match=r"train\.txt has 31 different words, and the model knows 10: write its rare"):
        load(tmp_path)


def test_loss_and_accuracy_by_token() -> None:
    targets = torch.tensor([[0, 1, 2], [2, 2, 2]])
    outputs = torch.full((2, 3, 4), -20.0)
    outputs[0, [0, 1, 2], [0, 1, 3]] = 20.0  # two of three right
    outputs[1, :, 2] = 20.0
    assert token_top1(outputs, targets).tolist() == pytest.approx([2 / 3, 1.0])
    assert token_top1(outputs.expand(5, 2, 3, 4), targets).shape == (5, 2)
    assert token_loss(outputs, targets).item() == pytest.approx(40 / 6)


# ---- characters -------------------------------------------------------------------------------------------------


def test_chargpt_reads_the_standard_library() -> None:
    data = TASKS["chargpt"].load(None)
    assert 1_000_000 < 64 * (data.num_train + data.num_test) <= 2_000_000
    text = bytes(data.train_inputs[torch.arange(data.num_train)].flatten().tolist()).decode("ascii")
    first = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[0]
    assert text.startswith(first.read_text()[:200])
    assert TASKS["chargpt"].load(None) is data


def test_chargpt_reads_a_folder_of_texts_instead(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("y" * 640)
    (tmp_path / "a.txt").write_text("xé☃" * 640)
    (tmp_path / "c.md").write_text("z" * 640)
    data = TASKS["chargpt"].load(tmp_path)
    text = bytes(data.train_inputs[torch.arange(data.num_train)].flatten().tolist())
    assert text == b"x" * 640 + b"y" * (64 * data.num_train - 640)
    assert set(data.test_inputs[torch.arange(data.num_test)].flatten().tolist()) == {ord("y")}


def test_chargpt_refuses_a_folder_without_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(ValueError, match=r"has 5 ASCII characters in its \*\.txt files: 'chargpt' needs at least 650"):
        TASKS["chargpt"].load(tmp_path)


# ---- translation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_pairs_are_source_and_shifted_target(tmp_path: Path, packed: bool) -> None:
    data = TASKS["translation"].load(translation_folder(tmp_path, packed=packed))
    assert (data.num_train, data.num_test) == (8, 2)
    test = data.to("cpu").test_inputs
    assert isinstance(test, Sentences)
    tokens, targets = test[torch.tensor([1])][0], data.test_targets[1]
    assert [test.vocabulary[token] for token in targets[:5].tolist()] == ["two", "dogs", "run", ".", "<eos>"]
    assert (targets[5:] == PAD).all()
    assert tokens[LENGTH] == BOS
    assert torch.equal(tokens[LENGTH + 1 :], targets[:-1])
    assert (tokens[:LENGTH] != PAD).sum() == len(GERMAN[1].split()) + 1
    assert not (tokens == UNK).any()
    assert test.references == ENGLISH[:2]


def test_long_pairs_are_not_trained_on_and_unknown_words_are_marked(tmp_path: Path) -> None:
    folder = translation_folder(tmp_path, packed=False)
    for language in ("de", "en"):
        with (folder / f"train.{language}").open("a") as file:
            file.write("a " * LENGTH + "\n" + "once\n")
    data = TASKS["translation"].load(folder)
    assert data.num_train == 9
    assert data.train_targets[8, :3].tolist() == [UNK, EOS, PAD]


def test_bleu_of_the_references_is_100_and_of_other_words_0(tmp_path: Path) -> None:
    data = TASKS["translation"].load(translation_folder(tmp_path, packed=False))
    vocabulary = 20

    def knows_all(tokens: Tensor) -> Tensor:
        """Says the next word of the right translation, whichever sentence it is asked for."""
        answers = {
            tuple(row[:LENGTH].tolist()): target for row, target in zip(test.tokens, data.test_targets, strict=True)
        }
        right = torch.stack([answers[tuple(row[:LENGTH].tolist())] for row in tokens])
        said = tokens[:, LENGTH + 1 :]
        for row, words in zip(said, right, strict=True):  # what it has said itself so far is what it is asked with
            so_far = row[row != PAD]
            assert torch.equal(so_far, words[: len(so_far)])
        return torch.nn.functional.one_hot(right, vocabulary).float()

    test = data.test_inputs
    assert isinstance(test, Sentences)
    assert translation.score(knows_all, data)["bleu"] == pytest.approx(100.0)
    for word in (5, vocabulary - 1):  # the model has outputs beyond the words of this small text
        always = torch.nn.functional.one_hot(torch.full((2, LENGTH), word), vocabulary).float()
        assert translation.score(lambda tokens, always=always: always, data)["bleu"] < 10


def test_a_translator_that_has_learnt_the_sentences_translates_them(tmp_path: Path) -> None:
    data = TASKS["translation"].load(translation_folder(tmp_path, packed=False))
    torch.manual_seed(0)
    model = Translator(vocabulary=20, width=32, layers=1)
    optimizer = TASKS["translation"].optimizer(model.parameters(), 0.01)
    assert translation.score(model.eval(), data)["bleu"] < 50
    model.train()
    for _ in range(80):
        loss = word_loss(model(data.train_inputs[torch.arange(8)]), data.train_targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert translation.score(model.eval(), data)["bleu"] == pytest.approx(100.0)


def test_padding_counts_neither_for_the_loss_nor_as_right() -> None:
    targets = torch.tensor([[4, 5, EOS, PAD], [4, EOS, PAD, PAD]])
    outputs = torch.randn(2, 4, 7)
    changed = outputs.clone()
    changed[targets == PAD] = torch.randn(3, 7)
    changed[targets == PAD, PAD] += 100
    assert torch.equal(word_loss(outputs, targets), word_loss(changed, targets))
    right = torch.nn.functional.one_hot(torch.tensor([[4, 5, 4, 0], [4, EOS, 0, 0]]), 7).float()
    assert word_top1(right, targets).tolist() == pytest.approx([2 / 3, 1.0])
    assert word_top1(right.expand(3, 2, 4, 7), targets).shape == (3, 2)


def test_translation_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = TASKS["translation"].load
    with pytest.raises(ValueError, match=r"^task 'translation' needs data: give --data DIR with train\.de, train\.en"):
        load(None)
    with pytest.raises(ValueError, match=r"has no train\.de or train\.de\.gz: task 'translation' needs"):
        load(tmp_path)
    folder = translation_folder(tmp_path, packed=False)
    (folder / "train.en").write_text("only one line\n")
    with pytest.raises(ValueError, match=r"train\.de has 8 lines and .*train\.en has 1: both need the same sentences"):
        load(folder)
    monkeypatch.setattr(translation, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"counts BLEU with sacrebleu: pip install 'gossamer\[translation\]'"):
        load(folder)
