r"""The RBF kernel with its squared distances in one matrix product.

.. math::
    \log k(x, z) = -\tfrac12 \|x - z\|^2 + \log \sigma^2
      = [x,\; -\tfrac12 \|x\|^2,\; 1]^\top [z,\; 1,\; -\tfrac12 \|z\|^2 + \log \sigma^2]

for inputs in units of the lengthscales.
"""

import pyro.contrib.gp.kernels
import torch
from torch import Tensor

__all__ = ["RBF"]


class RBF(pyro.contrib.gp.kernels.RBF):
    """Pyro's kernel, with the same parameters and values, in half the passes over memory."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """
        :param torch.Tensor X: [n, D].
        :param torch.Tensor Z: [M, D]; None for X.
        :param bool diag: Return the prior variances of X only, [n].
        :returns: [n, M]. With Z, the derivatives need this array: change a copy of it only.
        """
        if diag:
            return self._diag(X)
        lengthscale = self.lengthscale
        x = self._sliced(X) / lengthscale
        z = x if Z is None else self._sliced(Z) / lengthscale
        # A shift changes no distance, and keeps the squares that cancel small.
        shift = z.detach().nanmedian(0).values.nan_to_num(0.0, 0.0, 0.0) if len(z) else 0.0
        x, z = x - shift, z - shift
        # Columns, because products of that layout are faster.
        x, z = x.mT, z.mT
        x2, z2 = (-0.5 * v.square().sum(0, keepdim=True) for v in (x, z))
        left = torch.cat([x, x2, torch.ones_like(x2)])
        variance = self.variance
        # A number goes into the product; a batch of them does not fit there.
        log_variance = variance.log().to(X.dtype) if variance.dim() == 0 else X.new_zeros(())
        right = torch.cat([z, torch.ones_like(z2), z2 + log_variance])
        k = left.mT @ right
        # Rounding must not make a distance negative: far away, its exponential would overflow.
        # In place, as the derivatives need no more than the exponential.
        k.detach().clamp_max_(log_variance.detach())
        k = k.exp_()
        if Z is None:
            k = k.clone()  # Pyro's models add jitter in place, and the derivatives need k
        return k if variance.dim() == 0 else variance * k

    def _sliced(self, X: Tensor) -> Tensor:
        if X.dim() == 2 and X.shape[-1] <= max(self.active_dims):
            raise ValueError(
                f"The kernel looks at input {max(self.active_dims)}, counted from 0, but there are "
                f"{X.shape[-1]}."
            )
        if X.dim() != 2 or self.active_dims != list(range(X.shape[-1])):
            return self._slice_input(X)
        return X
