"""Targets with a point mass at one value."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pyro_dgp.gp.likelihoods.base import Likelihood, check_likelihood
from pyro_dgp.gp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected
from pyro_dgp.gp.likelihoods.special import log_mean_exp

__all__ = ["ZeroInflated"]


class ZeroInflated(Likelihood):
    r"""y is ``value`` with probability sigma(f_1), and else has another, continuous likelihood.

    The first of its functions is the log odds of the value; the others are the other likelihood's.
    ``log_prob`` of the value is the logarithm of a probability, that of other targets the logarithm
    of a density: the two cannot be compared.

    :param Likelihood likelihood: Continuous likelihood of the other targets.
    :param float value: Value with a probability, such as 0. Targets within 1e-6 of it are equal.
    :param float probability: Initial probability of the value.
    :raises ValueError: If the other likelihood is discrete, or the probability is not between 0
        and 1.
    """

    def __init__(
        self, likelihood: Likelihood, value: float = 0.0, probability: float = 0.5
    ) -> None:
        check_likelihood(likelihood)
        if likelihood.discrete:
            raise ValueError(
                f"{type(likelihood).__name__} is discrete: it gives {value} a probability already."
            )
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, but it is {probability}.")
        super().__init__(likelihood.event_dim)
        self.num_functions = 1 + likelihood.num_functions
        self.covariates, self.needed = likelihood.covariates, likelihood.needed
        self.value = float(value)
        self.log_odds = nn.Parameter(torch.tensor(math.log(probability / (1 - probability))))
        self.likelihood = likelihood
        self._filler = _accepted(likelihood, self.value)

    def settings(self) -> dict:
        return {"likelihood": self.likelihood, "value": self.value}

    @classmethod
    def for_targets(cls, y: Tensor) -> "ZeroInflated":
        """The most frequent target as the value, and heteroscedastic Gaussian noise elsewhere.

        :raises ValueError: If it is not the most frequent one in each of several columns, as after
            standardisation.
        """
        values, counts = torch.unique(y, return_counts=True)
        value = values[counts.argmax()].item()
        for column in y.unbind(-1) if y.dim() > 1 else ():
            most = torch.unique(column, return_counts=True)[1].max()
            if most > (column == value).sum().clamp_min(1):
                raise ValueError(
                    f"{cls.__name__} has one value with a probability for all targets, but the "
                    "most frequent values of the columns differ, if only because each was "
                    "standardised: fit a model to each column."
                )
        rest = y[y != value] if y.dim() == 1 else y
        inner = HeteroscedasticGaussian.for_targets(rest if len(rest) > 1 else y)
        share = min(max(counts.max().item() / y.numel(), 0.01), 0.99)
        return cls(inner, value, share)

    def check_covariates(self, covariates: Mapping[str, Tensor]) -> None:
        """The checks of the other likelihood."""
        self.likelihood.check_covariates(covariates)

    def check_targets(self, y: Tensor, **covariates: Tensor) -> None:
        """
        :raises ValueError: If a target is neither the value nor one of the other likelihood's.
        """
        self.likelihood.check_targets(self._elsewhere(y), **covariates)

    def functions(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        rest_loc, rest_var = self.likelihood.functions(loc[1:], var[1:])
        return torch.cat([loc[:1] + self.log_odds, rest_loc]), torch.cat([var[:1], rest_var])

    def expected_log_prob(
        self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor
    ) -> Tensor:
        here = self.has_mass(y)
        sign = torch.where(here, 1.0, -1.0).to(loc.dtype)
        chosen = expected(lambda f: logsigmoid(sign * f), loc[:1], var[:1], Bends((0.0,), math.pi))
        rest = self.likelihood.expected_log_prob(self._elsewhere(y), loc[1:], var[1:], **covariates)
        return chosen + torch.where(here, 0.0, rest)

    def log_marginal(self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        here = self.has_mass(y)
        sign = torch.where(here, 1.0, -1.0).to(loc.dtype)
        chosen = log_expected(lambda f: logsigmoid(sign * f), loc[:1], var[:1])
        rest = self.likelihood.marginal(loc[1:], var[1:], **covariates)
        return chosen + torch.where(here, 0.0, rest.log_prob(self._elsewhere(y)))

    def log_marginal_by_draws(
        self, y: Tensor, loc: Tensor, var: Tensor, standard: Tensor, **covariates: Tensor
    ) -> Tensor:
        here, f = self.has_mass(y), loc[0] + var[0].sqrt() * standard[:, 0]
        chosen = log_mean_exp(logsigmoid(torch.where(here, f, -f)))
        rest = self.likelihood.log_marginal_by_draws(
            self._elsewhere(y), loc[1:], var[1:], standard[:, 1:], **covariates
        )
        return chosen + torch.where(here, 0.0, rest)

    def marginal_cdf(self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        p = self._probability(loc, var)
        rest = self.likelihood.marginal(loc[1:], var[1:], **covariates)
        return p * ((y >= self.value) | self.has_mass(y)) + (1 - p) * rest.cdf(y)

    def coarse_cdf(self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        return self.marginal_cdf(y, loc, var, **covariates)

    def marginal_moments(
        self, loc: Tensor, var: Tensor, **covariates: Tensor
    ) -> tuple[Tensor, Tensor]:
        p = self._probability(loc, var)
        rest = self.likelihood.marginal(loc[1:], var[1:], **covariates)
        mean = p * self.value + (1 - p) * rest.mean
        between = p * (1 - p) * (rest.mean - self.value).square()
        return mean, (1 - p) * rest.variance + between

    def marginal_sample(self, loc: Tensor, var: Tensor, **covariates: Tensor) -> Tensor:
        f = loc[0] + var[0].sqrt() * torch.randn_like(loc[0])
        here = torch.rand_like(f) < f.sigmoid()
        rest = self.likelihood.marginal(loc[1:], var[1:], **covariates).sample()
        return torch.where(here, self.value, rest)

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The other likelihood's encoding, and an indicator of the value."""
        rest = self.likelihood.encode(self._elsewhere(y), dtype)
        parts = [v if v.dim() > 1 else v.unsqueeze(-1) for v in (rest, self.has_mass(y).to(dtype))]
        return torch.cat(parts, -1)

    def _probability(self, loc: Tensor, var: Tensor) -> Tensor:
        return expected(torch.sigmoid, loc[:1], var[:1], Bends((0.0,), math.pi))

    def has_mass(self, y: Tensor) -> Tensor:
        """True at the value."""
        return (y - self.value).abs() < 1e-6 * max(1.0, abs(self.value))

    def at_mass(self, y: Tensor) -> Tensor:
        return torch.where(self.has_mass(y), self.value, y)

    def _elsewhere(self, y: Tensor) -> Tensor:
        """y, with a target that the other likelihood accepts in place of the value."""
        return torch.where(self.has_mass(y), self._filler, y)


def _accepted(likelihood: Likelihood, value: float) -> float:
    """A target that the likelihood accepts."""
    for candidate in (0.5, 1.5, value + 1, value - 1, 10.0, -10.0):
        try:
            likelihood.check_targets(torch.tensor([candidate]))
        except ValueError:
            continue
        return candidate
    raise ValueError(
        f"{type(likelihood).__name__} accepts none of the targets that were tried in place of "
        f"{value}."
    )
