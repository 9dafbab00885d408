"""Gaussian noise whose variance is a function of the input."""

import math

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import expected, log_expected
from pyro_dgp.gp.likelihoods.special import log_mean_exp

__all__ = ["HeteroscedasticGaussian"]


class HeteroscedasticGaussian(Likelihood):
    r"""y ~ N(f, e^g): a second function g, the logarithm of the noise variance.

    With f ~ N(m, v), and g ~ N(c + a m_g, a^2 v_g) for a trained constant c and a scale a,

    .. math:: E[\log N(y; f, e^g)] = -\tfrac12 \big[\log 2\pi + E[g]
        + e^{-E[g] + \mathrm{Var}[g] / 2} \big((y - m)^2 + v\big)\big].

    Source: Lazaro-Gredilla and Titsias (2011), whose bound this is.

    :param float noise_variance: Initial noise variance, e^c.
    :param float noise_scale: Factor a of the last layer's second function: the smaller it is, the
        less the noise varies a priori. It is not trained, but the last layer's kernel variance is.
        With few rows a small factor avoids overfitting; if the noise varies by orders of magnitude,
        as with repeated values, 1 gives higher log-likelihoods.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a number is not positive.
    """

    num_functions = 2
    fixed = ("noise_scale",)

    def __init__(
        self, noise_variance: float = 0.05, noise_scale: float = 0.25, event_dim: int = 0
    ) -> None:
        for name, value in (("noise_variance", noise_variance), ("noise_scale", noise_scale)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, but it is {value}.")
        super().__init__(event_dim, torch.tensor([0.0, math.log(noise_variance)]))
        self.noise_scale = noise_scale

    @classmethod
    def for_targets(cls, y: Tensor) -> "HeteroscedasticGaussian":
        """Starts from a noise variance of 5% of the targets' variance."""
        variance = y.to(torch.get_default_dtype()).var(unbiased=False).item()
        return cls(max(0.05 * variance, 1e-4), event_dim=y.dim() - 1)

    def functions(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        a = loc.new_tensor([1.0, self.noise_scale]).reshape(2, *[1] * (loc.dim() - 1))
        return super().functions(a * loc, a.square() * var)

    def conditional(self, f: Tensor, g: Tensor) -> Distribution:
        """N(f, e^g)."""
        return dist.Normal(f, (0.5 * g).exp(), validate_args=False)

    def expected_log_prob(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        (m, mean_g), (v, var_g) = loc, var
        precision = (0.5 * var_g - mean_g).exp()
        return -0.5 * (math.log(2 * math.pi) + mean_g + precision * ((y - m).square() + v))

    def log_marginal(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        """f integrated in closed form, g by quadrature: N(y; m, v + e^g)."""
        (m, mean_g), (v, var_g) = loc, var

        def log_prob(g: Tensor) -> Tensor:
            return dist.Normal(m, (v + g.exp()).sqrt(), validate_args=False).log_prob(y)

        largest = ((y - m).square() - v).clamp_min(1e-3 * v).log()
        return log_expected(log_prob, mean_g[None], var_g[None], largest)

    def log_marginal_by_draws(
        self, y: Tensor, loc: Tensor, var: Tensor, standard: Tensor
    ) -> Tensor:
        """f integrated in closed form, g by draws."""
        return log_mean_exp(self._given_noise(loc, var, standard[:, 1]).log_prob(y))

    def drawn_marginal(
        self, loc: Tensor, var: Tensor, generator: torch.Generator | None = None
    ) -> Distribution:
        """N(m, v + e^g) for a draw of g."""
        m = loc[0]
        shape = m.shape[:1] + (1,) * (m.dim() - 1)
        epsilon = torch.randn(shape, dtype=m.dtype, device=m.device, generator=generator)
        return self._given_noise(loc, var, epsilon)

    def _given_noise(self, loc: Tensor, var: Tensor, standard: Tensor) -> Distribution:
        """N(m, v + e^g) at a standardised g."""
        (m, mean_g), (v, var_g) = loc, var
        variance = v + (mean_g + var_g.sqrt() * standard).exp()
        return dist.Normal(m, variance.sqrt(), validate_args=False)

    def marginal_cdf(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        return self._cdf(y, loc, var, None)

    def _cdf(self, y: Tensor, loc: Tensor, var: Tensor, num_nodes: int | None) -> Tensor:
        """f in closed form, g by quadrature."""
        (m, mean_g), (v, var_g) = loc, var
        return expected(
            lambda g: torch.special.ndtr((y - m) / (v + g.exp()).sqrt()),
            mean_g[None], var_g[None], num_hermite=num_nodes,
        )  # fmt: skip

    def coarse_cdf(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        return self._cdf(y, loc, var, 5)

    def marginal_moments(self, loc: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        (m, mean_g), (v, var_g) = loc, var
        return m, v + (mean_g + 0.5 * var_g).exp()
