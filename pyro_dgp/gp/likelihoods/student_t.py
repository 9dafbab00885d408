"""Student-t noise, for outliers."""

import math

import pyro.distributions as dist
import torch
from scipy.special import stdtr
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.gp.constraints import constrained, softplus_above
from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import Bends
from pyro_dgp.gp.likelihoods.special import with_scipy

__all__ = ["StudentT"]


class StudentT(Likelihood):
    r"""y = f + scale t, with t Student-t distributed with df degrees of freedom, both trained.

    The predictive distribution is that of a normal whose variance is random,

    .. math:: p(y) = \int N(y; m, v + s^2 / \lambda)\,
        \mathrm{Gamma}(\lambda; \nu / 2, \nu / 2)\, d\lambda,

    which is smooth in y even if s^2 is much smaller than v.

    :param float scale: Initial scale s.
    :param float df: Initial degrees of freedom, above 1.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is out of range.
    """

    def __init__(self, scale: float = 0.1, df: float = 4.0, event_dim: int = 0) -> None:
        if not 1e-3 < scale < math.inf:
            raise ValueError(f"scale must be above 0.001 and finite, but it is {scale}.")
        if not 1 < df < math.inf:
            raise ValueError(f"df must be above 1, or there is no mean, but it is {df}.")
        super().__init__(event_dim)
        self.scale = constrained(torch.tensor(float(scale)), softplus_above(1e-3))
        self.df = constrained(torch.tensor(float(df)), softplus_above(1.0))

    def conditional(self, f: Tensor) -> Distribution:
        """f + scale t."""
        # In the dtype of f: the log gamma functions of a large df need the digits.
        return _StudentT(self.df.to(f.dtype), f, self.scale.to(f.dtype), validate_args=False)

    def bends(self, y: Tensor) -> Bends:
        """At y: log p has singularities at y +- i sqrt(df) scale."""
        return Bends((y,), self.df.sqrt() * self.scale)

    def log_marginal(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        variance, log_w = self._normals(y - loc[0], var[0])
        p = dist.Normal(loc[0], variance.sqrt(), validate_args=False)
        return (p.log_prob(y) + log_w).logsumexp(0)

    def marginal_cdf(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        variance, log_w = self._normals(y - loc[0], var[0])
        return (log_w.exp() * torch.special.ndtr((y - loc[0]) / variance.sqrt())).sum(0)

    def coarse_cdf(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        variance, log_w = self._normals(y - loc[0], var[0], 24)
        return (log_w.exp() * torch.special.ndtr((y - loc[0]) / variance.sqrt())).sum(0)

    def narrowest(self, highest: Tensor) -> Tensor:
        # P(target <= y | f) is a distribution function of f. The Fourier transform of its density,
        # (d k)^(df / 2) K_(df / 2)(d k) with d = sqrt(df) scale, is some 1e-12 where that of a
        # normal of this standard deviation is 1e-13.
        return (self.df.sqrt() / 4.5).clamp_max(0.65) * self.scale

    def marginal_moments(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        factor = torch.where(self.df > 2, self.df / (self.df - 2), math.inf)
        return loc[0], var[0] + self.scale.square() * factor

    def _normals(
        self, distance: Tensor, var: Tensor, num_nodes: int = 128
    ) -> tuple[Tensor, Tensor]:
        """Variances of normals [num_nodes, ...], and logarithms of their weights.

        The trapezoidal rule in u = log lambda, whose error falls exponentially with its step.
        """
        half, s2 = 0.5 * self.df, self.scale.square()
        # Between these ends, exp(half (1 + u - e^u)) falls from 1 at u = 0 to e^-30.
        c = 30 / half
        low = -torch.minimum(c + 1, (2 * c).sqrt() + c)
        high = torch.minimum((2 * c).sqrt(), (4 + 2 * c).log())
        # Far from the mean, the normals that are as wide as the distance dominate.
        far = (distance.square() - var).clamp_min(0) / s2
        low = low + ((half + 0.5) / (half + 0.5 * far)).log().clamp_max(0)
        u = torch.linspace(0, 1, num_nodes, dtype=var.dtype, device=var.device)
        u = low + (high - low) * u.reshape(-1, *[1] * low.dim())
        log_w = half * (u - u.exp())
        return var + s2 * (-u).exp(), log_w - log_w.logsumexp(0)


class _StudentT(dist.StudentT):
    def cdf(self, value: Tensor) -> Tensor:
        """Differentiable, once, by the value, the location and the scale."""
        t = (value - self.loc) / self.scale
        standard = dist.StudentT(self.df, validate_args=False)
        rise = (t - t.detach()) * standard.log_prob(t.detach()).exp()
        found = with_scipy(lambda t, df: stdtr(df, t), t, self.df)
        return found + torch.where(t.isinf(), 0.0, rise)
