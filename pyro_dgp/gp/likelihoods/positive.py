"""Positive targets: gamma and log-normal."""

import math

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_dgp.gp.constraints import constrained, softplus_above
from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.gaussian import ExpectedNormal
from pyro_dgp.gp.likelihoods.quadrature import Bends
from pyro_dgp.gp.likelihoods.special import log_gamma_width

__all__ = ["Gamma", "LogNormal"]


class _Positive(Likelihood):
    """Targets of scale e^f."""

    support = constraints.positive
    accepts = "positive targets"

    def __init__(self, level: float | Tensor = 1.0, event_dim: int = 0) -> None:
        level = torch.as_tensor(level, dtype=torch.get_default_dtype())
        if level.dim() > event_dim or not bool(((level > 0) & torch.isfinite(level)).all()):
            raise ValueError(f"level must be positive and finite, but it is {level}.")
        super().__init__(event_dim, level.log().unsqueeze(0))

    @classmethod
    def for_targets(cls, y: Tensor) -> "Likelihood":
        """Starts from the geometric mean of the targets."""
        cls().check_targets(y)
        y = y.to(torch.get_default_dtype())
        return cls(level=y.log().mean(0).exp(), event_dim=y.dim() - 1)

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """log y."""
        return y.to(dtype).log()


class Gamma(_Positive):
    r"""y ~ Gamma with mean e^f and a trained shape a.

    .. math:: E[\log p(y | f)] = a \log a - a m + (a - 1) \log y - a y e^{-m + v / 2}
        - \log \Gamma(a), \qquad f \sim N(m, v)

    :param level: Initial e^f; one, or with ``event_dim=1`` one per output [P].
    :param float shape: Initial shape a.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is not positive.
    """

    def __init__(self, level: float | Tensor = 1.0, shape: float = 2.0, event_dim: int = 0) -> None:
        if not 1e-3 < shape < math.inf:
            raise ValueError(f"shape must be above 0.001 and finite, but it is {shape}.")
        super().__init__(level, event_dim)
        self.shape = constrained(torch.tensor(float(shape)), softplus_above(1e-3))

    def conditional(self, f: Tensor) -> Distribution:
        """Gamma(a, a e^-f)."""
        return _Gamma(self.shape, self.shape * (-f).exp(), validate_args=False)

    def conditional_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        a = self.shape.to(f.dtype)  # large, its log gamma function needs the digits
        constant = a * a.log() + (a - 1) * y.log() - a.lgamma()
        return constant - a * (f + y * (-f).exp())

    def bends(self, y: Tensor) -> Bends:
        """Around the mean y: for the distribution function."""
        return Bends((y.clamp_min(torch.finfo(y.dtype).tiny).log(),), self.shape.rsqrt())

    def narrowest(self, highest: Tensor) -> Tensor:
        # P(target <= y | f) is a distribution function of f - log y.
        return log_gamma_width(self.shape)

    def expected_log_prob(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        a, m = self.shape, loc[0]
        constant = a * a.log() + (a - 1) * y.log() - a.lgamma()
        return constant - a * (m + y * (0.5 * var[0] - m).exp())

    def marginal_moments(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        mean = (loc[0] + 0.5 * var[0]).exp()
        square = mean.square() * var[0].exp()
        return mean, square * (1 + 1 / self.shape) - mean.square()


class LogNormal(_Positive):
    """log y = f + N(0, variance); all expectations have a closed form.

    :param level: Initial e^f; one, or with ``event_dim=1`` one per output [P].
    :param float variance: Initial variance of the noise of log y.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is not positive.
    """

    closed_marginal = True

    def __init__(
        self, level: float | Tensor = 1.0, variance: float = 0.1, event_dim: int = 0
    ) -> None:
        if not 1e-6 < variance < math.inf:
            raise ValueError(f"variance must be above 1e-6 and finite, but it is {variance}.")
        super().__init__(level, event_dim)
        self.variance = constrained(torch.tensor(float(variance)), softplus_above(1e-6))

    def conditional(self, f: Tensor) -> Distribution:
        """LogNormal(f, variance)."""
        return _LogNormal(f, self.variance.sqrt(), validate_args=False)

    def expected_log_prob(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        log_y = y.log()
        normal = ExpectedNormal(loc[0], var[0], self.variance, validate_args=False)
        return normal.log_prob(log_y) - log_y

    def marginal(self, loc: Tensor, var: Tensor) -> Distribution:
        """LogNormal(m, v + variance)."""
        return _LogNormal(loc[0], (var[0] + self.variance).sqrt(), validate_args=False)


class _Gamma(dist.Gamma):
    def cdf(self, value: Tensor) -> Tensor:
        tiny = torch.finfo(value.dtype).tiny
        return torch.where(value <= 0, 0.0, super().cdf(value.clamp_min(tiny)))


class _LogNormal(dist.LogNormal):
    def log_prob(self, value: Tensor) -> Tensor:
        log_y = value.clamp_min(torch.finfo(value.dtype).tiny).log()
        normal = dist.Normal(self.loc, self.scale, validate_args=False)  # the base refuses NaN
        return torch.where(value <= 0, -torch.inf, normal.log_prob(log_y) - log_y)

    def cdf(self, value: Tensor) -> Tensor:
        tiny = torch.finfo(value.dtype).tiny
        return torch.where(value <= 0, 0.0, super().cdf(value.clamp_min(tiny)))
