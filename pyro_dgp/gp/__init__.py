"""The model: the layers of a deep GP, its likelihood, and its predictive distributions.

Nothing here depends on an ELBO.
"""

from pyro_dgp.gp.encoders import GaussianEncoder
from pyro_dgp.gp.kernels import kernel_named
from pyro_dgp.gp.latent_dgp import LatentDGP
from pyro_dgp.gp.layers import GPLayer, LatentLayer, Layer
from pyro_dgp.gp.likelihoods import ExpectedNormal, GaussianLikelihood, Likelihood
from pyro_dgp.gp.predictive.exponentiated import Exponentiated
from pyro_dgp.gp.predictive.mixture import PredictiveMixture
from pyro_dgp.gp.predictive.recalibration import Recalibrated

__all__ = [
    "ExpectedNormal",
    "Exponentiated",
    "GPLayer",
    "GaussianEncoder",
    "GaussianLikelihood",
    "LatentDGP",
    "LatentLayer",
    "Layer",
    "Likelihood",
    "PredictiveMixture",
    "Recalibrated",
    "kernel_named",
]
