"""Latent-variable deep Gaussian processes and importance-weighted ELBOs for Pyro."""

from pyro_dgp.gp import (
    GaussianEncoder,
    GaussianLikelihood,
    GPLayer,
    LatentDGP,
    LatentLayer,
    Layer,
    Likelihood,
)
from pyro_dgp.infer import (
    VIMCOIWELBO,
    DRegIWELBO,
    GDRegIWELBO,
    NaturalGradient,
    PartiallyCollapsedIWELBO,
    SNRProfiler,
    fit,
    snr_sweep,
)

__version__ = "0.1.0"

__all__ = [
    "VIMCOIWELBO",
    "DRegIWELBO",
    "GDRegIWELBO",
    "GPLayer",
    "GaussianEncoder",
    "GaussianLikelihood",
    "LatentDGP",
    "LatentLayer",
    "Layer",
    "Likelihood",
    "NaturalGradient",
    "PartiallyCollapsedIWELBO",
    "SNRProfiler",
    "fit",
    "snr_sweep",
]
