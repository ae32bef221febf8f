"""Tasks, one a file."""

from ._task import Dataset, Decay, LrRule, Samples, Task, compute_dtype, top1
from .digits import DIGITS

TASKS: dict[str, Task] = {task.name: task for task in (DIGITS,)}
"""Names on the command line. A new task is one file and one entry here."""

__all__ = ["TASKS", "Dataset", "Decay", "LrRule", "Samples", "Task", "compute_dtype", "top1"]
