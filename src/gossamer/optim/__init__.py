"""Optimizers for small local batches. Each is a `torch.optim.Optimizer`, elementwise, and knows nothing of workers."""

from .accum_adam import AccumAdam, AccumAdamW
from .window import window_for

__all__ = ["AccumAdam", "AccumAdamW", "window_for"]
