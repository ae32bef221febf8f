"""White-box measures: pure functions of tensors with a leading replica axis."""

from .consensus import consensus_distance, relative_consensus
from .dispersion import coefficient_of_variation, gini, index_of_dispersion, quartile_coefficient
from .norms import square_norms

__all__ = [
    "coefficient_of_variation",
    "consensus_distance",
    "gini",
    "index_of_dispersion",
    "quartile_coefficient",
    "relative_consensus",
    "square_norms",
]
