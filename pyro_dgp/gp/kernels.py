r"""The RBF kernel with its squared distances in one matrix product.

.. math::
    -\tfrac12 \|x - z\|^2 = [x,\; -\tfrac12 \|x\|^2,\; 1]^\top [z,\; 1,\; -\tfrac12 \|z\|^2]

for inputs in units of the lengthscales.
"""

import pyro.contrib.gp.kernels
import torch
from torch import Tensor
from torch.nn.functional import hardtanh_

__all__ = ["RBF"]


class RBF(pyro.contrib.gp.kernels.RBF):
    """Pyro's kernel, with the same parameters and values, in half the passes over memory."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """
        :param torch.Tensor X: [n, D].
        :param torch.Tensor Z: [M, D]; None for X.
        :param bool diag: Return the prior variances of X only, [n].
        :returns: [n, M].
        """
        if diag:
            return self._diag(X)
        x = self._scaled(X)
        z = x if Z is None else self._scaled(Z)
        # A shift changes no distance, and keeps the squares that cancel small.
        shift = z.detach().median(0).values
        x, z = x - shift, z - shift
        x2, z2 = (-0.5 * v.square().sum(-1, keepdim=True) for v in (x, z))
        left = torch.cat([x, x2, torch.ones_like(x2)], -1)
        right = torch.cat([z, torch.ones_like(z2), z2], -1)
        # Rounding must not make a distance negative: far away, its exponential would overflow.
        return self.variance * hardtanh_(left @ right.mT, -torch.inf, 0.0).exp()

    def _scaled(self, X: Tensor) -> Tensor:
        if X.dim() == 2 and X.shape[-1] <= max(self.active_dims):
            raise ValueError(
                f"The kernel looks at input {max(self.active_dims)}, counted from 0, but there are "
                f"{X.shape[-1]}."
            )
        if X.dim() != 2 or self.active_dims != list(range(X.shape[-1])):
            X = self._slice_input(X)
        return X / self.lengthscale
