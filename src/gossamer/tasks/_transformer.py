"""The parts of transformers (Vaswani et al. 2017), with the norm before each part.

Attention is two matrix products and a softmax: the fused one of torch takes minutes to compile with stacked replicas.
"""

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Who may look at whom, `[length, length]`: each position at itself and those before it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class Attention(nn.Module):
    """Attention with several heads, from `x` `[B, T, W]` to `memory` `[B, S, W]`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """`mask` is true where looking is allowed; it broadcasts to `[B, heads, T, S]`, and no row is all false."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, T or S, W / heads]
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        scores = query @ key.transpose(-1, -2) / sqrt(query.shape[-1])
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        said: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return said


class FeedForward(nn.Module):
    """Two linear layers, each position for itself."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.down(F.gelu(self.up(x)))
        return said


class Block(nn.Module):
    """Self-attention and a feed-forward part; a decoder's looks at the encoder's memory in between."""

    def __init__(self, width: int, heads: int, *, hidden: int, dropout: float, looks_at_memory: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.feed_forward = nn.LayerNorm(width), FeedForward(width, hidden)
        if looks_at_memory:
            self.norm_memory, self.attention_to_memory = nn.LayerNorm(width), Attention(width, heads)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        here = self.norm1(x)
        x = x + self.dropout(self.attention(here, here, mask))
        if memory is not None:
            x = x + self.dropout(self.attention_to_memory(self.norm_memory(x), memory, memory_mask))
        out: Tensor = x + self.dropout(self.feed_forward(self.norm2(x)))
        return out


class TokensAndPlaces(nn.Module):
    """Tokens `[B, T]` to vectors `[B, T, W]`: what they are plus where they are."""

    def __init__(self, vocabulary: int, length: int, width: int, *, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])
        return x
