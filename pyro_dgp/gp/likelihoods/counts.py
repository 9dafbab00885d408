"""Unbounded counts: Poisson and negative binomial."""

import math
from collections.abc import Mapping

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.constraints import constrained, softplus_above
from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected
from pyro_dgp.gp.likelihoods.special import incomplete_beta, log_gamma_width

__all__ = ["NegativeBinomial", "Poisson"]


class _Counts(Likelihood):
    """Counts of rate exposure * exp(f)."""

    discrete = True
    support = constraints.nonnegative_integer
    accepts = "counts 0, 1, 2, ..."
    covariates = ("exposure",)

    def __init__(self, rate: float | Tensor = 1.0, event_dim: int = 0) -> None:
        rate = torch.as_tensor(rate, dtype=torch.get_default_dtype())
        if rate.dim() > event_dim or not bool(((rate > 0) & torch.isfinite(rate)).all()):
            raise ValueError(f"rate must be positive and finite, but it is {rate}.")
        super().__init__(event_dim, rate.log().unsqueeze(0))

    @classmethod
    def for_targets(cls, y: Tensor) -> "Likelihood":
        """Starts from the mean of the targets as the rate."""
        cls().check_targets(y)
        return cls(y.to(torch.get_default_dtype()).mean(0).clamp_min(1e-3), event_dim=y.dim() - 1)

    def check_covariates(self, covariates: Mapping[str, Tensor]) -> None:
        """
        :raises ValueError: If an exposure is not positive.
        """
        super().check_covariates(covariates)
        exposure = covariates.get("exposure")
        if exposure is not None and not bool((exposure > 0).all()):
            raise ValueError(f"exposure must be positive, but has {exposure.min()}.")

    def check_targets(self, y: Tensor, exposure: Tensor | None = None) -> None:
        super().check_targets(y)

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """log(1 + y)."""
        return y.to(dtype).log1p()


class Poisson(_Counts):
    r"""y ~ Poisson(exposure e^f).

    .. math:: E[\log p(y | f)] = y m - e^{m + v / 2} - \log y!, \qquad f \sim N(m, v),

    with log(exposure) added to m. The covariate ``exposure`` > 0, [N], is for instance a time at
    risk; if it is not given, in training or prediction, it is 1.

    :param rate: Initial rate e^f; one, or with ``event_dim=1`` one per output [P].
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If the rate is not positive.
    """

    def conditional(self, f: Tensor, exposure: Tensor | float = 1.0) -> Distribution:
        """Poisson(exposure e^f)."""
        return _Poisson(exposure * f.exp(), validate_args=False)

    def conditional_log_prob(self, y: Tensor, f: Tensor, exposure: Tensor | float = 1.0) -> Tensor:
        log_rate = f + torch.as_tensor(exposure, dtype=f.dtype, device=f.device).log()
        return y * log_rate - log_rate.exp() - (y + 1).lgamma()

    def bends(self, y: Tensor, exposure: Tensor | float = 1.0) -> Bends:
        """Around the rate y: for the distribution function."""
        y = y.clamp_min(0)
        return Bends((((y + 0.5) / exposure).log(),), (y + 1).rsqrt())

    def narrowest(self, highest: Tensor) -> Tensor:
        # P(target <= y | f) is one less a distribution function of f, that of the logarithm of a
        # gamma variable of shape y + 1. For y above the highest rate it is 1 for all f that matter.
        return log_gamma_width(highest.exp())

    def expected_log_prob(
        self, y: Tensor, loc: Tensor, var: Tensor, exposure: Tensor | float = 1.0
    ) -> Tensor:
        m = loc[0] + torch.as_tensor(exposure, dtype=loc.dtype, device=loc.device).log()
        y = y.to(m.dtype)
        return y * m - (m + 0.5 * var[0]).exp() - (y + 1).lgamma()

    def marginal_moments(
        self, loc: Tensor, var: Tensor, exposure: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        mean = exposure * (loc[0] + 0.5 * var[0]).exp()
        return mean, mean + mean.square() * var[0].expm1()


class NegativeBinomial(_Counts):
    r"""Counts of mean mu = exposure e^f and variance mu + mu^2 / r, for a trained r.

    The covariate ``exposure`` > 0, [N], is 1 if it is not given.

    :param rate: Initial rate e^f; one, or with ``event_dim=1`` one per output [P].
    :param float concentration: Initial r; the Poisson distribution is its limit for large r.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is not positive.
    """

    def __init__(
        self, rate: float | Tensor = 1.0, concentration: float = 1.0, event_dim: int = 0
    ) -> None:
        if not 1e-3 < concentration < math.inf:
            raise ValueError(f"concentration must be above 0.001, but it is {concentration}.")
        super().__init__(rate, event_dim)
        self.concentration = constrained(torch.tensor(float(concentration)), softplus_above(1e-3))

    def conditional(self, f: Tensor, exposure: Tensor | float = 1.0) -> Distribution:
        """Negative binomial with odds mu / r."""
        r = self.concentration
        logits = f + torch.as_tensor(exposure, dtype=f.dtype, device=f.device).log() - r.log()
        return _NegativeBinomial(r, logits=logits, validate_args=False)

    def bends(self, y: Tensor, exposure: Tensor | float = 1.0) -> Bends:
        """Where mu = r: log p has singularities at pi i from there."""
        exposure = torch.as_tensor(exposure, dtype=self.concentration.dtype)
        at = self.concentration.log() - exposure.to(self.concentration.device).log()
        return Bends((at,), math.pi)

    def log_marginal(
        self, y: Tensor, loc: Tensor, var: Tensor, exposure: Tensor | float = 1.0
    ) -> Tensor:
        log_prob, steps = self.conditional_log_prob, self._steps(y, exposure)
        return log_expected(lambda f: log_prob(y, f, exposure=exposure), loc, var, bends=steps)

    def marginal_cdf(
        self, y: Tensor, loc: Tensor, var: Tensor, exposure: Tensor | float = 1.0
    ) -> Tensor:
        conditional, steps = self.conditional, self._steps(y, exposure)
        return expected(lambda f: conditional(f, exposure).cdf(y), loc, var, steps)

    def _steps(self, y: Tensor, exposure: Tensor | float) -> Bends:
        """Where probabilities rise and fall with f: around the mean y."""
        y = y.clamp_min(0)
        width = (1 / (y + 1) + 1 / self.concentration).sqrt()
        return Bends((((y + 0.5) / exposure).log(),), width)

    def narrowest(self, highest: Tensor) -> Tensor:
        # For a large y that of its gamma distributed rate; for a small one it is wider.
        return log_gamma_width(self.concentration)

    def marginal_moments(
        self, loc: Tensor, var: Tensor, exposure: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        mean = exposure * (loc[0] + 0.5 * var[0]).exp()
        relative = var[0].expm1() + var[0].exp() / self.concentration
        return mean, mean + mean.square() * relative


class _Poisson(dist.Poisson):
    def cdf(self, value: Tensor) -> Tensor:
        # Clamped below 0, where the integral is not defined.
        found = torch.special.gammaincc(value.floor().clamp_min(0) + 1, self.rate)
        return torch.where(value < 0, 0.0, found)


class _NegativeBinomial(dist.NegativeBinomial):
    def cdf(self, value: Tensor) -> Tensor:
        k = value.floor().clamp_min(0)
        found = incomplete_beta(self.total_count, k + 1, (-self.logits).sigmoid())
        return torch.where(value < 0, 0.0, found)
