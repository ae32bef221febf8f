"""Tasks, one a file."""

from ._task import Dataset, Task, top1
from .digits import DIGITS

TASKS: dict[str, Task] = {task.name: task for task in (DIGITS,)}
"""Names on the command line. A new task is one file and one entry here."""

__all__ = ["TASKS", "Dataset", "Task", "top1"]
