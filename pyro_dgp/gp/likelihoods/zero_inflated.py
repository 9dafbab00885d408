"""Targets with a point mass at one value."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid

from pyro_dgp.gp.likelihoods.base import Likelihood, check_likelihood
from pyro_dgp.gp.likelihoods.collapsed import drawn
from pyro_dgp.gp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from pyro_dgp.gp.likelihoods.modes import where_modes_are_found
from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected
from pyro_dgp.gp.likelihoods.special import log_mean_exp
from pyro_dgp.gp.predictive.derived import Composite

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
        self.likelihood.check_targets(self.elsewhere(y), **covariates)

    def functions(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        rest_loc, rest_var = self.likelihood.functions(loc[1:], var[1:])
        return torch.cat([loc[:1] + self.log_odds, rest_loc]), torch.cat([var[:1], rest_var])

    def expected_log_prob(
        self, y: Tensor, loc: Tensor, var: Tensor, **covariates: Tensor
    ) -> Tensor:
        here = self.has_mass(y)
        sign = torch.where(here, 1.0, -1.0).to(loc.dtype)
        chosen = expected(lambda f: logsigmoid(sign * f), loc[:1], var[:1], Bends((0.0,), math.pi))
        rest = self.likelihood.expected_log_prob(self.elsewhere(y), loc[1:], var[1:], **covariates)
        return chosen + torch.where(here, 0.0, rest)

    def marginal(self, loc: Tensor, var: Tensor, **covariates: Tensor) -> Distribution:
        """The value with the probability E[sigma(f_1)], or else the other likelihood's marginal."""
        rest = self.likelihood.marginal(loc[1:], var[1:], **covariates)
        with where_modes_are_found():
            m, v = loc[:1].clone().double(), var[:1].clone().double()
            p = expected(torch.sigmoid, m, v, Bends((0.0,), math.pi))
            log_p = log_expected(logsigmoid, m, v).to(loc)
            log_q = log_expected(logsigmoid, -m, v).to(loc)
        return Inflated(self, p.to(loc), log_p, log_q, rest, validate_args=False)

    def log_marginal_by_draws(
        self, y: Tensor, loc: Tensor, var: Tensor, standard: Tensor, **covariates: Tensor
    ) -> Tensor:
        here, f = self.has_mass(y), loc[0] + var[0].sqrt() * standard[:, 0]
        chosen = log_mean_exp(logsigmoid(torch.where(here, f, -f)))
        rest = self.likelihood.log_marginal_by_draws(
            self.elsewhere(y), loc[1:], var[1:], standard[:, 1:], **covariates
        )
        return chosen + torch.where(here, 0.0, rest)

    def marginal_moments(
        self, loc: Tensor, var: Tensor, **covariates: Tensor
    ) -> tuple[Tensor, Tensor]:
        marginal = self.marginal(loc, var, **covariates)
        return marginal.mean, marginal.variance

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The other likelihood's encoding, and an indicator of the value."""
        rest = self.likelihood.encode(self.elsewhere(y), dtype)
        parts = [v if v.dim() > 1 else v.unsqueeze(-1) for v in (rest, self.has_mass(y).to(dtype))]
        return torch.cat(parts, -1)

    def has_mass(self, y: Tensor) -> Tensor:
        """True at the value."""
        return (y - self.value).abs() < 1e-6 * max(1.0, abs(self.value))

    def at_mass(self, y: Tensor) -> Tensor:
        return torch.where(self.has_mass(y), self.value, y)

    def elsewhere(self, y: Tensor) -> Tensor:
        """y, with a target that the other likelihood accepts in place of the value."""
        return torch.where(self.has_mass(y), self._filler, y)


class Inflated(Composite):
    """A value with a probability p, and otherwise another distribution.

    :param ZeroInflated likelihood: Likelihood, which knows the value.
    :param torch.Tensor p: Probabilities of the value.
    :param torch.Tensor log_p: Their logarithms, also where p underflows.
    :param torch.Tensor log_q: Logarithms of 1 - p.
    :param rest: Distribution of the other targets, of the same batch shape.
    """

    def __init__(
        self,
        likelihood: ZeroInflated,
        p: Tensor,
        log_p: Tensor,
        log_q: Tensor,
        rest: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self.likelihood, self.rest = likelihood, rest
        self.p, self.log_p, self.log_q = p, log_p, log_q
        super().__init__(p.shape, validate_args=validate_args)

    @property
    def num_nodes(self) -> int:
        return getattr(self.rest, "num_nodes", 1)

    @property
    def support(self) -> constraints.Constraint:
        return _ValueOr(self.likelihood)

    def has_mass(self, value: Tensor) -> Tensor:
        """True at the value."""
        return self.likelihood.has_mass(value)

    def at_mass(self, value: Tensor) -> Tensor:
        return self.likelihood.at_mass(value)

    def log_prob(self, value: Tensor) -> Tensor:
        rest = self.rest.log_prob(self.likelihood.elsewhere(value))
        return torch.where(self.has_mass(value), self.log_p, self.log_q + rest)

    def cdf(self, value: Tensor) -> Tensor:
        return self._with_step(value, self.rest.cdf(value))

    def coarse_cdf(self, value: Tensor) -> Tensor:
        return self._with_step(value, getattr(self.rest, "coarse_cdf", self.rest.cdf)(value))

    def _with_step(self, value: Tensor, rest: Tensor) -> Tensor:
        from_value = (value >= self.likelihood.value) | self.has_mass(value)
        return self.p * from_value + (1 - self.p) * rest

    @property
    def mean(self) -> Tensor:
        return self.p * self.likelihood.value + (1 - self.p) * self.rest.mean

    @property
    def variance(self) -> Tensor:
        between = self.p * (self.rest.mean - self.likelihood.value).square()
        return (1 - self.p) * (self.rest.variance + between)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        rest = self.rest.sample(torch.Size(sample_shape))
        return torch.where(torch.rand_like(rest) < self.p, self.likelihood.value, rest)

    def drawn(self, generator: torch.Generator | None = None) -> "Inflated":
        """With a closed form of the other distribution, by draws, where there is one."""
        rest = drawn(self.rest, generator)
        return Inflated(self.likelihood, self.p, self.log_p, self.log_q, rest, validate_args=False)


class _ValueOr(constraints.Constraint):
    """The value, and the other targets."""

    def __init__(self, likelihood: ZeroInflated) -> None:
        self.likelihood = likelihood

    def check(self, value: Tensor) -> Tensor:
        y = self.likelihood.elsewhere(value)
        return self.likelihood.likelihood.support.check(y)


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
