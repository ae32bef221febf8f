"""Recipes: functions that return experiments, one for each published table or figure.

Importing this does not import torch: `gossamer recipes` answers at once. Calling a recipe does.
"""

from ._recipe import Recipe
from ._timetable import Times, TimeTable, print_times
from .ada_96 import ada_96
from .ada_1008 import ada_1008
from .ada_schedules import ada_schedules
from .adpsgd_accuracy import adpsgd_accuracy
from .heterogeneous import heterogeneous
from .lr_rules import lr_rules
from .methods import methods
from .scale import scale
from .straggler import straggler
from .straggler_processes import straggler_on_processes, times_of

RECIPES: dict[str, Recipe] = {
    "ada-96": Recipe(
        make=ada_96, summary="Ada against fixed graphs at 96 workers: resnet20, densenet100, lstm-sgd (or one: --task)"
    ),
    "ada-1008": Recipe(
        make=ada_1008, summary="Ada against fixed graphs at 1008 workers: resnet20, batches of 8, 150 epochs"
    ),
    "scale": Recipe(make=scale, summary="what more workers cost: resnet20 at 12, 24, 48 and 96 workers, all graphs"),
    "lr-rules": Recipe(
        make=lr_rules,
        summary="how the learning rate should follow the batch: linear, square root, not; 24 and 96 workers",
    ),
    "ada-schedules": Recipe(
        make=ada_schedules, summary="how fast and how far Ada may thin out: accuracy against bytes at 96 workers"
    ),
    "adpsgd-accuracy": Recipe(
        make=adpsgd_accuracy,
        summary="what asynchrony costs: AD-PSGD, all-reduce, D-PSGD, a parameter server; resnet20, vgg16; 16 workers",
    ),
    "methods": Recipe(make=methods, summary="every method by accuracy, bytes and virtual time: resnet20, 16 workers"),
    "heterogeneous": Recipe(
        make=heterogeneous, summary="the same where workers see unlike data: resnet20-gn, Dirichlet(0.1), 16 workers"
    ),
}
"""Names on the command line. A new recipe is one file and one entry here."""

TIME_TABLES: dict[str, TimeTable] = {
    "straggler": TimeTable(
        make=straggler,
        summary="one of 16 workers slowed up to 10000 times: epochs of AD-PSGD, all-reduce, D-PSGD, a parameter server",
        experiments=straggler_on_processes,
        measured=times_of,
    ),
}
"""Recipes of which the clock alone tells the outcome; real processes can be asked too."""

__all__ = [
    "RECIPES",
    "TIME_TABLES",
    "Recipe",
    "TimeTable",
    "Times",
    "ada_96",
    "ada_1008",
    "ada_schedules",
    "adpsgd_accuracy",
    "heterogeneous",
    "lr_rules",
    "methods",
    "print_times",
    "scale",
    "straggler",
    "straggler_on_processes",
]
