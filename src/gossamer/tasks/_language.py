"""What tasks on text share: windows of a token stream, and loss and accuracy by token."""

from torch import Tensor
from torch.nn import functional as F


def windows(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets `[S, length]`: the stream cut into windows, and the same one token further on.

    >>> import torch
    >>> windows(torch.arange(8), 3)
    (tensor([[0, 1, 2],
            [3, 4, 5]]), tensor([[1, 2, 3],
            [4, 5, 6]]))
    """
    end = (len(tokens) - 1) // length * length
    return tokens[:end].view(-1, length), tokens[1 : end + 1].view(-1, length)


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of outputs `[B, T, C]` and tokens `[B, T]`; its exponential is the perplexity."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def token_top1(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the tokens `[B, T]` of each sample that the largest outputs `[..., B, T, C]` name."""
    return (outputs.argmax(-1) == targets).float().mean(-1)
