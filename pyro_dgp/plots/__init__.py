"""Pictures of predictions and of training.

Each function draws into ``ax``, or a new one, and returns it. Needs Matplotlib:
``pip install 'pyro_dgp[plot]'``.
"""

from pyro_dgp.plots._axes import label, plain, pyplot
from pyro_dgp.plots.calibration import calibration_curve, pit_histogram, reliability_curve
from pyro_dgp.plots.classes import probabilities_along_input
from pyro_dgp.plots.densities import (
    density_along_input,
    fan_chart,
    latent_traversal,
    marginal_densities,
)
from pyro_dgp.plots.importance import importances
from pyro_dgp.plots.training import snr_along_training, training_curve

__all__ = [
    "calibration_curve",
    "density_along_input",
    "fan_chart",
    "importances",
    "label",
    "latent_traversal",
    "marginal_densities",
    "pit_histogram",
    "plain",
    "probabilities_along_input",
    "pyplot",
    "reliability_curve",
    "snr_along_training",
    "training_curve",
]
