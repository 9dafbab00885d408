"""Amortised q(z | x, y)."""

from collections.abc import Sequence
from itertools import pairwise

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

__all__ = ["GaussianEncoder"]


class GaussianEncoder(nn.Module):
    """The paper's recognition network: q(z | x, y) = N(loc, scale^2) from a tanh network.

    ``[x, y] -> tanh layers -> [loc, head]`` with ``scale = softplus(head - 3)``, a skip connection
    where a layer's input and output widths are equal, Glorot-normal weights and zero biases.

    Source: Rudner et al. (2021), appendix "Parameterization of q(z)". Any module that maps
    ``(X, y)`` to a distribution over z may take its place.

    :param int input_dim: Width of ``[x, y]``, D + P.
    :param int latent_dim: Dimension of z.
    :param widths: Widths of the hidden layers.
    :param torch.dtype dtype: Dtype of the parameters; None for torch's default.
    """

    def __init__(
        self,
        input_dim: int,
        latent_dim: int,
        widths: Sequence[int] = (20, 20),
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dims = [input_dim, *widths, 2 * latent_dim]
        linears = [nn.Linear(i, o, dtype=dtype) for i, o in pairwise(dims)]
        for linear in linears:
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.linears = nn.ModuleList(linears)

    def forward(self, X: Tensor, y: Tensor) -> dist.Independent:
        """
        :param torch.Tensor X: Inputs, [..., D].
        :param torch.Tensor y: Targets, [...] or [..., P].
        :returns: A normal distribution with batch shape [...] and event shape [latent_dim].
        """
        a = torch.cat([X, y if y.dim() == X.dim() else y.unsqueeze(-1)], -1)
        for linear in self.linears[:-1]:
            a = self._skip(a, torch.tanh(linear(a)))
        loc, head = self._skip(a, self.linears[-1](a)).chunk(2, -1)
        # The floor only matters where softplus underflows.
        return dist.Normal(loc, softplus(head - 3.0).clamp(min=1e-6)).to_event(1)

    @staticmethod
    def _skip(a: Tensor, b: Tensor) -> Tensor:
        return a + b if a.shape[-1] == b.shape[-1] else b
