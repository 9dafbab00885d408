"""Gaussian noise of one variance."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from pyro_dgp.gp.constraints import constrained, softplus_above
from pyro_dgp.gp.likelihoods.base import Likelihood

__all__ = ["ExpectedNormal", "GaussianLikelihood"]


class ExpectedNormal(dist.TorchDistribution):
    r"""An observation y = f + noise whose f ~ N(f_loc, f_var) is integrated under the logarithm.

    .. math:: \log\_prob(y) = E_f[\log N(y; f, s^2)] = \log N(y; f\_loc, s^2) - f\_var / (2 s^2)

    with :math:`s^2` the noise variance: the closed form of :math:`\log\mathcal F` in the paper's
    eq. 1. A sample, the mean and the variance are those of the predictive distribution
    N(f_loc, f_var + s^2). ``exp(log_prob)`` is not its density; it lies below it.

    :param torch.Tensor f_loc: Mean of f.
    :param torch.Tensor f_var: Variance of f, at least 0.
    :param torch.Tensor noise_variance: Variance of y given f.
    """

    arg_constraints = {  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
        "f_loc": constraints.real,
        "f_var": constraints.nonnegative,
        "noise_variance": constraints.positive,
    }
    has_rsample = True

    def __init__(
        self,
        f_loc: Tensor,
        f_var: Tensor,
        noise_variance: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.f_loc, self.f_var, self.noise_variance = broadcast_all(f_loc, f_var, noise_variance)
        super().__init__(self.f_loc.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "ExpectedNormal":
        moments = (t.expand(batch_shape) for t in (self.f_loc, self.f_var, self.noise_variance))
        new = ExpectedNormal(*moments, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return self.f_loc

    @property
    def variance(self) -> Tensor:
        return self.f_var + self.noise_variance

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, dtype=self.f_loc.dtype, device=self.f_loc.device)
        return self.f_loc + self.variance.sqrt() * noise

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        given_loc = dist.Normal(self.f_loc, self.noise_variance.sqrt(), validate_args=False)
        return given_loc.log_prob(value) - 0.5 * self.f_var / self.noise_variance


class GaussianLikelihood(Likelihood):
    """y = f + N(0, variance), integrated over f in closed form; the observation is the site ``y``.

    :param variance: Initial noise variance, a scalar or, with targets [N, P], one per output [P].
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If a noise variance is not above 1e-6 or its shape fits no target.
    """

    closed_marginal = True

    def __init__(self, variance: Tensor | float = 0.01, event_dim: int = 0) -> None:
        super().__init__(event_dim)
        variance = torch.as_tensor(variance)
        if variance.dim() > event_dim:
            raise ValueError(
                f"variance has shape {tuple(variance.shape)} with event_dim={event_dim}; give a "
                "scalar, or with event_dim=1 one variance per output."
            )
        if not bool((variance > 1e-6).all()) or not bool(torch.isfinite(variance).all()):
            raise ValueError(f"variance must be finite and above 1e-6, but it is {variance}.")
        self.variance = constrained(variance, softplus_above(1e-6))

    def check_output_dim(self, output_dim: int) -> None:
        """
        :raises ValueError: If a last layer of that width fits neither ``event_dim`` nor the
            variances.
        """
        super().check_output_dim(output_dim)
        if self.variance.numel() not in (1, output_dim):
            raise ValueError(
                f"The likelihood has {self.variance.numel()} noise variances, but the last layer "
                f"has {output_dim} outputs."
            )

    def conditional(self, f: Tensor) -> Distribution:
        """N(f, variance)."""
        return dist.Normal(f, self.variance.sqrt(), validate_args=False)

    def expected_log_prob(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        """See :class:`ExpectedNormal`."""
        return ExpectedNormal(loc[0], var[0], self.variance, validate_args=False).log_prob(y)

    def collapsed(self, loc: Tensor, var: Tensor) -> Distribution:
        return ExpectedNormal(loc[0], var[0], self.variance).to_event(self.event_dim)

    def marginal(self, loc: Tensor, var: Tensor) -> Distribution:
        """N(loc, var + variance)."""
        return dist.Normal(loc[0], (var[0] + self.variance).sqrt(), validate_args=False)
