"""q(u) over whitened inducing values, as a distribution with a closed-form KL."""

import math
from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Independent, register_kl

from pyro_dgp.gp.conditional import whitened_kl

__all__ = ["InducingNormal"]


class InducingNormal(dist.MultivariateNormal):
    """q(u) = N(loc, S S^T) of whitened inducing values, with a closed-form KL to the prior.

    A hidden layer's S starts near zero and soon becomes too ill-conditioned to be inverted. The
    density of a draw loc + S epsilon is therefore computed from its epsilon.
    """

    _draw: tuple[Tensor, Tensor] | None = None

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        epsilon = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        value = self.loc + (self.scale_tril @ epsilon.unsqueeze(-1)).squeeze(-1)
        self._draw = value, epsilon
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        if self._draw is None or self._draw[0] is not value:
            return super().log_prob(value)
        standard = -0.5 * (self._draw[1].square() + math.log(2 * math.pi)).sum(-1)
        return standard - self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@register_kl(InducingNormal, Independent)
def _kl_inducing_normal(q: InducingNormal, p: Independent) -> Tensor:
    if not (isinstance(p.base_dist, dist.Normal) and p.reinterpreted_batch_ndims == 1):
        raise NotImplementedError
    loc, scale = p.base_dist.loc, p.base_dist.scale
    return whitened_kl((q.loc - loc) / scale, q.scale_tril / scale.unsqueeze(-1))
