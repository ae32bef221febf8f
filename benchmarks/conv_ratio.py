"""What tiles make of a gradient of VGG-16 on 96 replicas, beside one model on the same samples: for `conv_tiles.py`."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gossamer.engines.kernels import conv_tiles
from gossamer.engines.kernels.conv_tiles import Layer, Tile
from gossamer.tasks import TASKS
from stacked_speed import ON_GPU, compared, made_up, one_model, say, say_kernels, seconds_of_four, stacked

TileFor = Callable[[str, Layer], Tile]


class Ratios:
    """As `stacked_speed.py` measures it."""

    def __init__(self) -> None:
        name, self.num_replicas, batch_size = ON_GPU["vgg16-96"]
        self.task = TASKS[name]
        inputs, self.targets = made_up(self.task, self.num_replicas, batch_size)
        draws = torch.rand(self.num_replicas, batch_size, self.task.num_draws, device="cuda")
        self.ready = torch.compile(self.task.prepare, dynamic=False)(inputs, draws)
        self.theirs, _ = one_model(self.task, inputs.flatten(0, 1), self.targets.flatten(0, 1), draws)
        say(f"one model: compiled in {seconds_of_four(self.theirs):.0f} s")

    def line(self, title: str, tile_for: TileFor, turns: int = 5) -> str:
        """The ratio with these tiles."""
        with tiles(tile_for):
            engine = stacked(self.task, self.task.model(), self.num_replicas, "cuda")
            first_s = seconds_of_four(partial(engine.step, self.ready, self.targets))
            gradient = partial(engine._gradients, self.ready, self.targets)
            row = compared("gradient", gradient, self.theirs, turns)
        say_kernels(title, gradient, num=4)
        del engine, gradient
        gc.collect()
        torch.cuda.empty_cache()
        return (
            f"VGG-16 {title}: ours {row['ours_ms']:.2f} ms, theirs {row['theirs_ms']:.2f} ms, RATIO {row['ratio']:.3f} "
            f"({row['ratio_min']:.3f} to {row['ratio_max']:.3f}); first {first_s:.0f} s"
        )

    def say_kernels(self) -> None:
        say_kernels("one model", self.theirs, num=4)


@contextmanager
def tiles(tile_for: TileFor) -> Iterator[None]:
    """Other rules than are set, until a step is recorded."""
    usual = conv_tiles.tile_for_weights, conv_tiles.tile_for_images
    conv_tiles.tile_for_weights = lambda layer: tile_for("weights", layer)
    conv_tiles.tile_for_images = lambda layer: tile_for("turned" if layer.turned else "images", layer)
    try:
        yield
    finally:
        conv_tiles.tile_for_weights, conv_tiles.tile_for_images = usual
