"""How it is inferred: bounds and their gradients for any Pyro model. Knows no Gaussian process."""

from pyro_dgp.infer.elbo import DRegIWELBO, PartiallyCollapsedIWELBO
from pyro_dgp.infer.training import NonFiniteError, TrainingHistory, fit

__all__ = [
    "DRegIWELBO",
    "NonFiniteError",
    "PartiallyCollapsedIWELBO",
    "TrainingHistory",
    "fit",
]
