"""Proportions, between 0 and 1."""

import math

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.constraints import constrained, softplus_above
from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import Bends, expected, log_expected
from pyro_dgp.gp.likelihoods.special import incomplete_beta

__all__ = ["Beta"]


class Beta(Likelihood):
    r"""y ~ Beta(phi mu, phi (1 - mu)) with mean mu = sigma(f) and a trained concentration phi.

    Source: Ferrari and Cribari-Neto (2004), "Beta regression for modelling rates and proportions".

    :param mean: Initial mean; one, or with ``event_dim=1`` one per output [P].
    :param float concentration: Initial concentration phi; the variance of y given f is
        mu (1 - mu) / (1 + phi).
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is out of range.
    """

    support = constraints.unit_interval
    accepts = "targets strictly between 0 and 1"

    def __init__(
        self, mean: float | Tensor = 0.5, concentration: float = 10.0, event_dim: int = 0
    ) -> None:
        mean = torch.as_tensor(mean, dtype=torch.get_default_dtype())
        if mean.dim() > event_dim or not bool(((mean > 0) & (mean < 1)).all()):
            raise ValueError(f"mean must lie between 0 and 1, but it is {mean}.")
        if not 1e-3 < concentration < math.inf:
            raise ValueError(f"concentration must be above 0.001, but it is {concentration}.")
        super().__init__(event_dim, mean.logit().unsqueeze(0))
        self.concentration = constrained(torch.tensor(float(concentration)), softplus_above(1e-3))

    @classmethod
    def for_targets(cls, y: Tensor) -> "Beta":
        """Starts from the mean of the targets."""
        cls().check_targets(y)
        return cls(y.to(torch.get_default_dtype()).mean(0), event_dim=y.dim() - 1)

    def check_targets(self, y: Tensor) -> None:
        """
        :raises ValueError: If a target is not strictly between 0 and 1.
        """
        self.refuse(y, ~((y > 0) & (y < 1)), self.accepts)

    def conditional(self, f: Tensor) -> Distribution:
        """Beta(phi sigma(f), phi sigma(-f))."""
        phi, tiny = self.concentration, torch.finfo(f.dtype).tiny
        a, b = ((phi * g.sigmoid()).clamp_min(tiny) for g in (f, -f))
        return _Beta(a, b, validate_args=False)

    def conditional_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        phi = self.concentration.to(f.dtype)  # large, its log gamma function needs the digits
        a, b = phi * f.sigmoid(), phi * (-f).sigmoid()
        # log Gamma(a) = log Gamma(1 + a) - log a, and log a stays exact where a underflows.
        log_gamma_a = (1 + a).lgamma() - phi.log() + torch.nn.functional.softplus(-f)
        log_gamma_b = (1 + b).lgamma() - phi.log() + torch.nn.functional.softplus(f)
        log_normalizer = log_gamma_a + log_gamma_b - phi.lgamma()
        return (a - 1) * y.log() + (b - 1) * (-y).log1p() - log_normalizer

    def bends(self, y: Tensor) -> Bends:
        """Where phi mu or phi (1 - mu) becomes less than 1."""
        end = self.concentration.log1p()
        return Bends((-end, end), math.pi)

    def log_marginal(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        # At 0 and 1, where the density is 0 or infinite, that next to them, half an epsilon inside.
        end = 0.5 * torch.finfo(y.dtype).eps
        inside = torch.where(y <= 0, end, torch.where(y >= 1, 1 - end, y))
        at = inside.logit().expand(loc.shape[1:])
        found = log_expected(lambda f: self.conditional_log_prob(inside, f), loc, var, at)
        return torch.where((y < 0) | (y > 1), -math.inf, found)

    def marginal_cdf(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        # With a concentration below 1, much of the mass is close to 0 and 1.
        inside = y.clamp(torch.finfo(y.dtype).tiny, 1 - torch.finfo(y.dtype).eps / 2)
        width = (1 + self.concentration).rsqrt().clamp_max(2.0) * 2
        # In the tails, where one of the Beta's parameters is so small that its power of y rises.
        tails = (
            -(self.concentration * -inside.log()).log(),
            (self.concentration * -(-inside).log1p()).log(),
        )
        bends = Bends((inside.logit(), *tails), width)
        return expected(lambda f: self.conditional(f).cdf(y), loc, var, bends)

    def narrowest(self, highest: Tensor) -> Tensor:
        # That of y / mu'(f), for large concentrations; for small ones that of powers of y.
        return (2 * (1 + self.concentration).rsqrt()).clamp_max(0.4)

    def marginal_moments(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        bends = Bends((0.0,), math.pi)
        mean = expected(torch.sigmoid, loc, var, bends)
        square = expected(lambda f: f.sigmoid().square(), loc, var, bends)
        return mean, (mean - square) / (1 + self.concentration) + square - mean.square()

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """logit y."""
        return y.to(dtype).logit(1e-6)


class _Beta(dist.Beta):
    def cdf(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        found = incomplete_beta(a, b, value.clamp(0, 1))
        return torch.where(value <= 0, 0.0, torch.where(value >= 1, 1.0, found))
