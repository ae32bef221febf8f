"""The planner: how long an iteration will take on a cluster, and whether decentralizing pays. Numbers only, no torch.

>>> from gossamer.clock import Cluster, Computation, Link
>>> from gossamer.plan import Profile, Work, plan
>>> nodes = Cluster(
...     workers=32, local_size=4, computation=Computation(jitter="lognormal:spread=0.116"),
...     link=Link(latency_s=20e-6, bytes_per_s=3.125e9), inside=Link(latency_s=20e-6, bytes_per_s=37.5e9),
... )
>>> found = plan(Profile(work=Work.of_figures(computation_s=0.06, model_bytes=252e6), cluster=nodes))
>>> found.all_reduce.prediction.bound, found.best.graph
('links', 'alternating-exponential-ring')
"""

from ._advice import Plan, Row, plan
from ._calibrate import calibrate
from ._figures import profile_of_figures
from ._map_drawing import draw_map_svg, map_page
from ._predict import Prediction, predict
from ._profile import Pair, Profile
from ._recurrences import AllReduce, Decentralized, Gradients
from ._regimes import Regimes, regimes
from ._show import as_data, map_as_data, print_map, print_plan
from ._work import Work

__all__ = [
    "AllReduce",
    "Decentralized",
    "Gradients",
    "Pair",
    "Plan",
    "Prediction",
    "Profile",
    "Regimes",
    "Row",
    "Work",
    "as_data",
    "calibrate",
    "draw_map_svg",
    "map_as_data",
    "map_page",
    "plan",
    "predict",
    "print_map",
    "print_plan",
    "profile_of_figures",
    "regimes",
]
