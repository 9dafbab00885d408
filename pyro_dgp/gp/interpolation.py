r"""Marginals of a GP for many draws of a latent input, interpolated from few of its values.

The GP behind a latent layer is evaluated at every pair of a row x and a draw of z. With an RBF
kernel its means and variances are entire functions of z, to which polynomials through Chebyshev
nodes converge faster than any power of the number of nodes.

The number of nodes is known beforehand. In units of the lengthscale of z, the RKHS element
:math:`k(\cdot, z + i y)` of a kernel with variance 1 has the norm :math:`e^{y^2}`, which bounds
:math:`a_{x, z + i y}`; variances are quadratic in it. Let the draws lie in an interval of half
width :math:`\alpha`, and take the ellipse with foci at its ends whose semi-axes sum to
:math:`\rho \alpha`. On it, y is at most :math:`\alpha b` with
:math:`b = \tfrac12 (\rho - 1 / \rho)`. A function of size 1 that grows to
:math:`e^{2 \alpha^2 b^2}` there is interpolated by n nodes with an error of at most
:math:`4\, e^{2 \alpha^2 b^2} \rho^{1 - n} / (\rho - 1)`, for any :math:`\rho > 1`.

Source: Trefethen (2013), "Approximation theory and approximation practice", theorem 8.2.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_dgp.gp.kernels import RBF
from pyro_dgp.gp.layers import GPLayer, LatentLayer, Layer

__all__ = ["interpolated"]


def interpolated(layers: Sequence[Layer], z: Tensor | None, some: slice) -> list[Layer]:
    """The layers, with fewer evaluations of the second one if it is a GP behind a latent input.

    The result is for inputs [samples, N, D] whose rows are the same for all samples.

    :param layers: Layers of a model, :meth:`~pyro_dgp.gp.Layer.prepared`.
    :param torch.Tensor z: Draws of the first layer's noise for all samples, [S, 1, noise_dim].
    :param slice some: Range of the samples that the inputs are for.
    """
    found = list(layers)
    gp = _gp_with_formulas(found)
    if gp is not None and z is not None:
        found[1] = _over_latent(gp, z.flatten(), some)
    return found


def _gp_with_formulas(layers: list[Layer]) -> GPLayer | None:
    """The second layer, if it has an RBF kernel whose last input is a one-dimensional z."""
    if len(layers) < 2 or type(layers[0]) is not LatentLayer or layers[0].latent_dim != 1:
        return None
    gp = layers[1]
    if not isinstance(gp, GPLayer) or type(gp.kernel) is not RBF:
        return None
    return gp if gp.kernel.active_dims == list(range(gp.Xu.shape[1])) else None


def _over_latent(gp: GPLayer, z: Tensor, some: slice) -> GPLayer:
    low, high = z.min().item(), z.max().item()
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    lengthscale = gp.kernel.lengthscale.reshape(-1)[-1].item()
    n = _num_nodes(half / lengthscale, torch.finfo(z.dtype).eps)
    if n >= len(z[some]):
        return gp
    angles = math.pi * (torch.arange(n, dtype=torch.float64, device=z.device) + 0.5) / n
    nodes = (middle + half * angles.cos()).to(z).reshape(-1, 1, 1)
    at = ((z[some].double() - middle) / max(half, 1e-300)).clamp(-1, 1).acos()
    # From values at nodes to Chebyshev coefficients, and from these to values at the draws.
    k = torch.arange(n, dtype=torch.float64, device=z.device)
    weights = (at.unsqueeze(-1) * k).cos() @ (k.unsqueeze(-1) * angles).cos() * (2 / n) - 1 / n
    weights = weights.to(z)

    def conditional(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = h[0, :, :-1].expand(n, -1, -1)
        at_nodes = gp.conditional(torch.cat([rows, nodes.expand(n, h.shape[1], 1)], -1))
        loc, var, prior = (torch.tensordot(weights, values, 1) for values in at_nodes)
        return loc, var, prior

    return gp.with_conditional(conditional)


def _num_nodes(alpha: float, tolerance: float) -> int:
    """The smallest number of nodes for a relative error below the tolerance."""
    rho = 1 + torch.logspace(-2, 3, 200, dtype=torch.float64)
    b = 0.5 * (rho - 1 / rho)
    needed = math.log(4 / tolerance) + 2 * (alpha * b).square() - (rho - 1).log()
    return 1 + math.ceil((needed / rho.log()).clamp_min(0).min().item())
