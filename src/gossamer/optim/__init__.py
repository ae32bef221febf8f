"""Optimizers for small local batches. Each is a `torch.optim.Optimizer`, elementwise, and knows nothing of workers."""

from .accum_adam import AccumAdam, AccumAdamW
from .window import betas_for, window_for

__all__ = ["AccumAdam", "AccumAdamW", "betas_for", "window_for"]
