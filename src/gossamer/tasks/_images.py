"""Images as bytes to what a net takes: cut out, mirrored, normalised, all samples at once and without the host."""

import torch
from torch import Tensor

NUM_DRAWS = 3
"""Random numbers for one sample: down, across, mirrored or not."""


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes `[..., C, H, W]` to float32: 0..255 to 0..1, then each channel by its mean and standard deviation."""
    return (images - _per_channel(mean, images.device)) / _per_channel(std, images.device)


def cut_normalised(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    mirrored: Tensor,
    *,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    """From each of the images `[..., B, C, H, W]` the square with its corner at `top`, `left` `[..., B]`, normalised.

    The part of a square that lies outside its image is zero, which is the mean colour. Where `mirrored` `[..., B]` is
    true, left and right change places.
    """
    height, width = images.shape[-2:]
    along = torch.arange(size, device=images.device)
    rows = top.unsqueeze(-1) + along  # [..., B, size]
    columns = left.unsqueeze(-1) + torch.where(mirrored.unsqueeze(-1), size - 1 - along, along)
    inside_rows, inside_columns = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    inside = inside_rows.unsqueeze(-1) & inside_columns.unsqueeze(-2)  # [..., B, size, size]
    at = rows.clamp(0, height - 1).unsqueeze(-1) * width + columns.clamp(0, width - 1).unsqueeze(-2)
    # the bytes are gathered, not the floats, and one index serves all channels: a quarter of the memory traffic
    index = at.flatten(-2).unsqueeze(-2).expand(*images.shape[:-2], size * size)
    pixels = images.flatten(-2).gather(-1, index).reshape(*images.shape[:-2], size, size)
    return normalised(pixels, mean, std) * inside.unsqueeze(-3)


def one_of(num: int, draws: Tensor) -> Tensor:
    """Draws, uniform in [0, 1), to whole numbers from 0 to `num` - 1.

    >>> one_of(3, torch.tensor([0.0, 0.4, 0.99]))
    tensor([0, 1, 2])
    """
    return (draws * num).long().clamp_max(num - 1)  # a draw just below 1 may round up to `num`


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    # filled on the device: a tensor made of a list would be copied from the host, which waits and cannot be recorded
    return torch.cat([torch.full((1, 1, 1), 255 * value, device=device) for value in values])
