r"""Distributions averaged over many normal distributions of f, by nodes that these share.

.. math:: \frac1S \sum_s E_{f \sim N(m_s, v_s)}[P(y \le t \mid f)]
    \approx \sum_k w_k\, P(y \le t \mid f_k), \qquad w_k \propto \sum_s N(f_k; m_s, v_s)

The nodes are equally spaced: that rule converges geometrically for analytic functions that vanish
at both ends. (Source: Trefethen and Weideman 2014, "The exponentially convergent trapezoidal
rule".) Where the normal densities have standard deviations of s at least, and the distribution
function rises in f no faster than one of a standard deviation w, the Fourier transform of their
product falls like :math:`e^{-e^2 k^2 / 2}` with :math:`e^{-2} = s^{-2} + w^{-2}`, and a spacing h
has an error of :math:`e^{-2 \pi^2 e^2 / h^2}`.

The same nodes give the density, :math:`\sum_k w_k\, p(t \mid f_k)`, as far in the tails as the
integrand vanishes and falls at both ends. Beyond, functions explain the target that no node stands
for.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_dgp.gp.predictive.derived import Composite

if TYPE_CHECKING:
    from pyro_dgp.gp.likelihoods.base import Likelihood

__all__ = ["Averaged"]

# The spacing in units of e, for an error of 1e-13; the reach of nodes in standard deviations; and
# the largest number of nodes per normal distribution.
_SPACING, _REACH, _MOST_NODES = 0.8, 8.5, 5
# The largest share of a density that the integrand at an end may have.
_AT_ENDS = 1e-13
# Elements of a temporary array.
_CHUNK = 2**17


class Averaged(Composite):
    """The distribution of y averaged over normal distributions of f: its ``cdf``, and its density
    but for the far tails.

    :param likelihood: Likelihood of one function, with values in place of parameters.
    :param torch.Tensor nodes: Nodes f_k, [..., K].
    :param torch.Tensor log_weights: Logarithms of their weights, which sum to 1, [..., K].
    """

    def __init__(
        self,
        likelihood: "Likelihood",
        nodes: Tensor,
        log_weights: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.likelihood, self.nodes, self.log_weights = likelihood, nodes, log_weights
        super().__init__(nodes.shape[:-1], validate_args=validate_args)

    @property
    def lattice(self) -> tuple[float, float] | None:
        """See :meth:`~pyro_dgp.gp.Likelihood.lattice`."""
        return self.likelihood.lattice()

    def has_mass(self, value: Tensor) -> Tensor:
        """See :meth:`~pyro_dgp.gp.Likelihood.has_mass`."""
        return self.likelihood.has_mass(value)

    @classmethod
    @torch.no_grad()
    def of(cls, likelihood: "Likelihood", loc: Tensor, var: Tensor) -> "Averaged | None":
        """The average over the first dimension; None if it would take too many nodes, or their
        distance is not known.

        :param likelihood: Likelihood of one function, with values in place of parameters.
        :param torch.Tensor loc: Means of f, [S, ...].
        :param torch.Tensor var: Variances of f, [S, ...].
        """
        loc, scale = loc.double(), var.double().sqrt()
        low, high = (loc - _REACH * scale).amin(0), (loc + _REACH * scale).amax(0)
        width = likelihood.narrowest(high)
        if width is None or not high.numel():
            return None
        spacing = _SPACING * (scale.amin(0).square().reciprocal() + width.double() ** -2).rsqrt()
        K = ((high - low) / spacing).max().item() + 2
        if not _MOST_NODES * len(loc) >= K:
            return None
        share = torch.linspace(0, 1, int(K), dtype=loc.dtype, device=loc.device)
        nodes = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * share
        log_w, step = torch.full_like(nodes, -torch.inf), max(1, _CHUNK // nodes.numel())
        for m, s in zip(
            loc.unsqueeze(-1).split(step), scale.unsqueeze(-1).split(step), strict=True
        ):
            # By logarithms: a target may be explained by an f far from all means.
            log_w = log_w.logaddexp((-0.5 * ((nodes - m) / s).square() - s.log()).logsumexp(0))
        return cls(likelihood, nodes, log_w.log_softmax(-1), False)

    def cdf(self, value: Tensor) -> Tensor:
        """P(target <= value), [..., *batch_shape]; the shape of ``value``."""
        y, step = value.double(), max(1, _CHUNK // max(1, value.numel()))
        parts = zip(self.nodes.split(step, -1), self.log_weights.exp().split(step, -1), strict=True)
        found = torch.zeros_like(y)
        for f, weights in parts:
            found = found + (weights * self.likelihood.conditional(f).cdf(y.unsqueeze(-1))).sum(-1)
        return found.to(value.dtype)

    def log_prob_where_exact(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Log densities (or log probabilities), and whether their errors are below 1e-7.

        :param torch.Tensor value: Targets in double precision, [..., *batch_shape].
        :returns: Two tensors of the shape of ``value``.
        """
        y = value.unsqueeze(-1)
        found, exact = [], []
        # As many targets [..., *batch_shape] at once as fit.
        y = y.reshape(-1, *y.shape[value.dim() - len(self.batch_shape) :])
        for some in y.split(max(1, _CHUNK // self.nodes.numel())):
            terms = self.log_weights + self.likelihood.conditional_log_prob(some, self.nodes)
            total, ends = terms.logsumexp(-1), terms[..., [0, -1]]
            falls = (ends <= terms[..., [1, -2]]).all(-1)
            found.append(total)
            # Not so either if all are -inf.
            exact.append(falls & (ends.amax(-1) - total <= math.log(_AT_ENDS)))
        return torch.cat(found).reshape(value.shape), torch.cat(exact).reshape(value.shape)
