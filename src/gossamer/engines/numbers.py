"""Refuses a model that holds what is no number, before one step has made all of it such."""

from itertools import chain

from torch import nn


def check_numbers(model: nn.Module) -> None:
    """Of parameters neither NaN nor infinity is a number; buffers may hold infinity, as masks do."""
    parameters = (("parameter", name, p, ~p.isfinite()) for name, p in model.named_parameters())
    buffers = (("buffer", name, b, b.isnan()) for name, b in model.named_buffers())
    for kind, name, tensor, is_none in chain(parameters, buffers):
        if is_none.any():
            raise ValueError(
                f"{kind} {name!r} holds {int(is_none.sum())} of {tensor.numel()} values that are no numbers, and would "
                "make the whole model such: look at how it was made, or at the file that it was loaded from"
            )
