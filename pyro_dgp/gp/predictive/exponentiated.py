"""The distribution of a positive target whose logarithm a model predicts."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_dgp.gp.predictive.crps import evenly, integrated_crps
from pyro_dgp.gp.predictive.derived import Derived
from pyro_dgp.gp.predictive.mixture import _TAIL, PredictiveMixture
from pyro_dgp.gp.predictive.recalibration import Recalibrated, moments_about

__all__ = ["Exponentiated"]


class Exponentiated(Derived[PredictiveMixture | Recalibrated]):
    r"""The distribution of e^y for a predictive distribution of y = log t.

    .. math:: p(t) = p_y(\log t) / t, \qquad P(\text{target} \le t) = F_y(\log t)

    :param base: Predictive distribution of y, with batch shape [N] and event shape () or [P],
        without a lattice.
    :raises ValueError: If the base has a lattice, because e^y has none.
    """

    lattice = None

    def __init__(
        self, base: PredictiveMixture | Recalibrated, validate_args: bool | None = None
    ) -> None:
        if base.lattice is not None:
            raise ValueError("base has probabilities of a lattice, but e^y has no lattice.")
        super().__init__(base, validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.positive, len(self.event_shape))

    def marginal(self, output: int) -> "Exponentiated":
        """The distribution of one of several outputs; see :meth:`PredictiveMixture.marginal`."""
        return self._with(self.base.marginal(output))

    @property
    def mean(self) -> Tensor:
        """Mean of the targets, [N] or [N, P]; see :attr:`variance`."""
        return self._moments[0]

    @property
    def variance(self) -> Tensor:
        """Variance of the targets, [N] or [N, P].

        Like the mean, it neglects the tails beyond 1e-9. For a long-tailed distribution it means
        little, and may be infinite.
        """
        return self._moments[1]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of a target, the joint one of several outputs; -inf if it is not positive.

        It is the logarithm of a probability where the base's is one.

        :param torch.Tensor value: Targets, [..., N] or [..., N, P].
        :returns: Log densities, [..., N].
        """
        value, y = self._logarithm(value)
        found = self.base.log_prob(y)
        outside, jacobian = value <= 0, torch.where(self.base.has_mass(y), 0.0, y)
        if self.event_shape:
            outside, jacobian = outside.any(-1), jacobian.sum(-1)
        return torch.where(outside, -torch.inf, found - jacobian)

    def has_mass(self, value: Tensor) -> Tensor:
        """Whether ``log_prob`` at a value is the logarithm of a probability, not of a density."""
        return self.base.has_mass(self._logarithm(value)[1])

    def cdf(self, value: Tensor) -> Tensor:
        """P(target <= value) of each output's marginal; the shape of ``value``."""
        value, y = self._logarithm(value)
        return torch.where(value <= 0, 0.0, self.base.cdf(y))

    def icdf(self, value: Tensor) -> Tensor:
        """Inverse of :meth:`cdf`; see :meth:`PredictiveMixture.icdf`."""
        return self.base.icdf(value).exp()

    def quantile(self, q: Tensor | float) -> Tensor:
        """Quantiles of each output's marginal.

        :param q: Probability, or a tensor of probabilities of any shape.
        :returns: ``q.shape`` + [N] or [N, P].
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        return self.base.quantile(q).exp()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, ``sample_shape`` + [N] or [N, P]."""
        return self.base.sample(sample_shape).exp()

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score of each output's marginal; smaller is better.

        It is computed by an integral over the distribution function.

        :param torch.Tensor value: Targets, [..., N] or [..., N, P].
        :returns: Scores, of the shape and in the units of ``value``.
        """
        value = self._tensor(value)
        if not value.numel():
            return value
        low, high = self.base.quantile(torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64))
        return integrated_crps(self._score_cdf, evenly(low, high).exp(), value)

    @cached_property
    def _moments(self) -> Tensor:
        """Mean and variance, [2, N] or [2, N, P]."""
        if self.event_shape:
            outputs = range(self.event_shape[-1])
            return torch.stack([self.marginal(i)._moments for i in outputs], -1)
        base = self.base
        if not isinstance(base, Recalibrated):
            base = Recalibrated(base, 1.0, validate_args=False)  # the same, with its points
        exact = base._with(base._exact)
        return base._like_base(exact._by_rows(lambda d, _: _moments(d)))

    def _score_cdf(self, value: Tensor) -> Tensor:
        value, y = self._logarithm(value)
        return torch.where(value <= 0, 0.0, self.base._score_cdf(y))

    def _logarithm(self, value: Tensor | float) -> tuple[Tensor, Tensor]:
        """A value in the base's dtype and its logarithm, finite where it is not positive."""
        value = self._tensor(value)
        return value, value.clamp_min(torch.finfo(value.dtype).tiny).log()

    def _with(self, base: PredictiveMixture | Recalibrated) -> "Exponentiated":
        return Exponentiated(base, validate_args=False)


def _moments(d: Recalibrated) -> Tensor:
    """Mean and variance of e^y, [2, N]."""
    c, first, second = moments_about(d, lambda x: (x.expm1(), x.exp()))
    scale = c.exp()
    return torch.stack([scale * (1 + first), scale.square() * (second - first.square())])
