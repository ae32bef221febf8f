"""White-box measures: pure functions of tensors with a leading replica axis."""

from .compiled import Level, compiled_look, cut
from .consensus import consensus_distance, relative_consensus
from .dispersion import coefficient_of_variation, gini, index_of_dispersion, quartile_coefficient
from .norms import Look, look, mean_of_near, span_norms

__all__ = [
    "Level",
    "Look",
    "coefficient_of_variation",
    "compiled_look",
    "consensus_distance",
    "cut",
    "gini",
    "index_of_dispersion",
    "look",
    "mean_of_near",
    "quartile_coefficient",
    "relative_consensus",
    "span_norms",
]
