"""The likelihoods of a deep GP's targets, one family per module."""

from pyro_dgp.gp.likelihoods.base import Likelihood, check_likelihood
from pyro_dgp.gp.likelihoods.binary import Bernoulli, Binomial
from pyro_dgp.gp.likelihoods.classes import Categorical, Ordinal
from pyro_dgp.gp.likelihoods.collapsed import CollapsedObservation
from pyro_dgp.gp.likelihoods.counts import NegativeBinomial, Poisson
from pyro_dgp.gp.likelihoods.gaussian import ExpectedNormal, GaussianLikelihood
from pyro_dgp.gp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from pyro_dgp.gp.likelihoods.intervals import Rounded
from pyro_dgp.gp.likelihoods.named import LIKELIHOODS, described, likelihood_for, rebuilt
from pyro_dgp.gp.likelihoods.positive import Gamma, LogNormal
from pyro_dgp.gp.likelihoods.proportions import Beta
from pyro_dgp.gp.likelihoods.quadrature import Bends
from pyro_dgp.gp.likelihoods.student_t import StudentT
from pyro_dgp.gp.likelihoods.zero_inflated import ZeroInflated

__all__ = [
    "LIKELIHOODS",
    "Bends",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "CollapsedObservation",
    "ExpectedNormal",
    "Gamma",
    "GaussianLikelihood",
    "HeteroscedasticGaussian",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Rounded",
    "StudentT",
    "ZeroInflated",
    "check_likelihood",
    "described",
    "likelihood_for",
    "rebuilt",
]
