"""How it is inferred: bounds and their gradients for any Pyro model. Knows no Gaussian process."""

from pyro_dgp.infer.elbo import VIMCOIWELBO, DRegIWELBO, GDRegIWELBO, PartiallyCollapsedIWELBO
from pyro_dgp.infer.guard import NonFiniteError
from pyro_dgp.infer.natural_gradient import NaturalGradient
from pyro_dgp.infer.snr import SNRProfile, SNRProfiler
from pyro_dgp.infer.snr_sweep import SNRPoint, SNRSweep, snr_sweep
from pyro_dgp.infer.training import TrainingHistory, fit

__all__ = [
    "VIMCOIWELBO",
    "DRegIWELBO",
    "GDRegIWELBO",
    "NaturalGradient",
    "NonFiniteError",
    "PartiallyCollapsedIWELBO",
    "SNRPoint",
    "SNRProfile",
    "SNRProfiler",
    "SNRSweep",
    "TrainingHistory",
    "fit",
    "snr_sweep",
]
