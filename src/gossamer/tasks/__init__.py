"""Tasks, one a file, and the data they share."""

from ._task import Dataset, Decay, LrRule, Samples, Task, compute_dtype, top1
from .chargpt import CHARGPT
from .densenet import DENSENET100
from .digits import DIGITS
from .lstm import LSTM, LSTM_SGD
from .resnet import RESNET8, RESNET20, RESNET20_GN
from .resnet50 import RESNET50
from .translation import TRANSLATION
from .vgg import VGG16

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        DIGITS,
        RESNET8,
        RESNET20,
        RESNET20_GN,
        DENSENET100,
        VGG16,
        RESNET50,
        LSTM,
        LSTM_SGD,
        CHARGPT,
        TRANSLATION,
    )
}
"""Names on the command line. A new task is one file and one entry here."""

__all__ = ["TASKS", "Dataset", "Decay", "LrRule", "Samples", "Task", "compute_dtype", "top1"]
