"""Likelihoods by name."""

from typing import Any

from torch import Tensor

from pyro_dgp.gp.likelihoods.base import Likelihood, check_likelihood
from pyro_dgp.gp.likelihoods.binary import Bernoulli, Binomial
from pyro_dgp.gp.likelihoods.classes import Categorical, Ordinal
from pyro_dgp.gp.likelihoods.counts import NegativeBinomial, Poisson
from pyro_dgp.gp.likelihoods.gaussian import GaussianLikelihood
from pyro_dgp.gp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from pyro_dgp.gp.likelihoods.intervals import Rounded
from pyro_dgp.gp.likelihoods.positive import Gamma, LogNormal
from pyro_dgp.gp.likelihoods.proportions import Beta
from pyro_dgp.gp.likelihoods.student_t import StudentT
from pyro_dgp.gp.likelihoods.zero_inflated import ZeroInflated

__all__ = ["LIKELIHOODS", "described", "likelihood_for", "rebuilt"]

#: Likelihoods by their names in configurations and on the command line.
LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": GaussianLikelihood,
    "heteroscedastic": HeteroscedasticGaussian,
    "student_t": StudentT,
    "bernoulli": Bernoulli,
    "binomial": Binomial,
    "categorical": Categorical,
    "ordinal": Ordinal,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "gamma": Gamma,
    "log_normal": LogNormal,
    "beta": Beta,
    "rounded": Rounded,
    "zero_inflated": ZeroInflated,
}


def likelihood_for(y: Tensor, likelihood: Likelihood | type[Likelihood] | str) -> Likelihood:
    """A likelihood for training targets.

    :param torch.Tensor y: Training targets, [N] or [N, P].
    :param likelihood: Likelihood, or a class or a name in :data:`LIKELIHOODS`, for initial values
        from y.
    :raises TypeError: If it is something else.
    :raises ValueError: If there is no such name, or y holds targets that it does not accept.
    """
    if isinstance(likelihood, str):
        if likelihood not in LIKELIHOODS:
            raise ValueError(
                f"likelihood must be one of {', '.join(LIKELIHOODS)}, but it is '{likelihood}'."
            )
        likelihood = LIKELIHOODS[likelihood]
    if isinstance(likelihood, type) and issubclass(likelihood, Likelihood):
        return likelihood.for_targets(y)
    check_likelihood(likelihood)
    return likelihood


def described(likelihood: Likelihood) -> dict:
    """A likelihood's name and settings as plain data, from which :func:`rebuilt` makes it again.

    :param Likelihood likelihood: One of :data:`LIKELIHOODS`.

    :raises ValueError: If it is none of :data:`LIKELIHOODS`.
    """
    names = [name for name, cls in LIKELIHOODS.items() if type(likelihood) is cls]
    if not names:
        raise ValueError(
            f"{type(likelihood).__name__} is none of the likelihoods that have a name "
            f"({', '.join(LIKELIHOODS)}), so that a file cannot say what it is."
        )
    settings = likelihood.settings()
    return {"name": names[0]} | {
        key: described(value) if isinstance(value, Likelihood) else value
        for key, value in settings.items()
    }


def rebuilt(description: dict) -> Likelihood:
    """The likelihood of a description, with initial values of its parameters.

    :param description: Result of :func:`described`.

    :raises ValueError: If it describes none.
    """
    settings: dict[str, Any] = {
        key: rebuilt(value) if isinstance(value, dict) else value
        for key, value in description.items()
    }
    name = settings.pop("name", None)
    if name not in LIKELIHOODS:
        raise ValueError(f"There is no likelihood '{name}'.")
    return LIKELIHOODS[name](**settings)
