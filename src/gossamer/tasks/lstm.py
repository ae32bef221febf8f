"""A word-level LSTM language model on WikiText-2 (after Zaremba et al., "Recurrent neural network regularization")."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import wikitext
from ._language import token_loss, token_top1
from ._optimizers import adamw, sgd
from ._task import Task


class LstmLayer(nn.Module):
    """One LSTM layer from a zero state, `[B, T, I]` to `[B, T, W]`, as equations:

        i, f, g, o = A x_t + B h_{t-1} + b
        c_t = σ(f) c_{t-1} + σ(i) tanh(g),   h_t = σ(o) tanh(c_t)

    Written out because `nn.LSTM` calls a kernel that knows nothing of stacked replicas.
    """

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width_in, 4 * width)
        self.from_state = nn.Linear(width, 4 * width, bias=False)
        self.width = width
        # a state that is kept to begin with: the model leaves plain word frequencies behind sooner
        self.from_input.bias.data[width : 2 * width] += 1.0

    def forward(self, x: Tensor) -> Tensor:
        from_input = self.from_input(x)  # [B, T, 4 W], all times in one product
        state = cell = x.new_zeros(x.shape[0], self.width)
        states = []
        for now in from_input.unbind(1):
            i, f, g, o = (now + self.from_state(state)).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, 1)


class LstmLanguageModel(nn.Module):
    """Words `[B, T]` to what comes next, `[B, T, vocabulary]`; the output layer has the embedding's weights."""

    def __init__(self, *, vocabulary: int = wikitext.VOCABULARY, width: int = 200, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LstmLayer(width, width) for _ in range(layers))
        self.dropout = nn.Dropout(0.2)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.embedding.weight, std=0.3)  # smaller, as is usual, the first steps see little of the words

    def forward(self, words: Tensor) -> Tensor:
        x = self.dropout(self.embedding(words))
        for layer in self.layers:
            x = self.dropout(layer(x))
        return F.linear(x, self.embedding.weight, self.bias)


LSTM = Task(
    name="lstm",
    summary="a 2-layer LSTM of width 200 on WikiText-2, words, 7.3 M parameters",
    load=partial(wikitext.load, task="lstm"),
    needs_data=True,
    model=LstmLanguageModel,
    loss=token_loss,
    correct=token_top1,
    optimizer=partial(adamw, weight_decay=0.0),
    lr=1e-3,
    lr_batch=128,
    batch_size=8,
    epochs=20,
    warmup_epochs=1,
    good=0.22,
    is_language=True,
    half=True,
    compiles=False,
)
LSTM_SGD = replace(
    LSTM,
    name="lstm-sgd",
    summary="the LSTM of `lstm`, trained with SGD, under which it shows what a graph costs",
    load=partial(wikitext.load, task="lstm-sgd"),
    optimizer=sgd,
    lr=12.0,  # gradients of a mean over many words are small; the best of 1, 4 and 12 for two epochs
    lr_batch=768,
)
