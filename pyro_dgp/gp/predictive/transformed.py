r"""Moments of a normal mixture whose distribution function F is transformed to G(F).

About any point c,

.. math:: E[y - c] = \int (1\{x \ge c\} - G)\, dx, \qquad
    E[(y - c)^2] = \int 2 (x - c)\, (1\{x \ge c\} - G)\, dx,

by Gauss-Legendre quadrature between edges, one of which is c. The same rule with F in place of G
gives moments that are known exactly. The difference is subtracted, and estimates the rule's error.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_dgp.gp.predictive.crps import interval
from pyro_dgp.gp.predictive.mixture import PredictiveMixture, sorted_sample

__all__ = ["transformed_moments"]

# Number of intervals, and of points in each.
_INTERVALS, _POINTS = 16, 6
# Number of pieces of each tail beyond the sample.
_TAIL_PIECES = 4


def transformed_moments(
    normal: Normal, G: Callable[[Tensor], Tensor], low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """
    :param normal: Normal components, batch shape [S, N].
    :param G: Elementwise function from F to the transformed distribution function.
    :param torch.Tensor low: Lower ends, with a negligible probability below, [N].
    :param torch.Tensor high: Upper ends, with a negligible probability above, [N].
    :returns: Mean and variance, [2, N]; and the rule's error for F, [N]: the larger of that of the
        mean, in standard deviations, and the relative error of the variance.
    """
    base, edges = PredictiveMixture(normal, validate_args=False), _edges(normal, low, high)
    c, start, width = edges[_INTERVALS // 2], edges[:-1], edges.diff(dim=0)
    nodes, weights = (torch.as_tensor(a).to(low) for a in np.polynomial.legendre.leggauss(_POINTS))
    column = (-1, 1, *[1] * low.dim())
    x = (start + width * (0.5 + 0.5 * nodes).reshape(column)).flatten(0, 1)
    weight = (0.5 * width * weights.reshape(column)).flatten(0, 1)
    above = (torch.arange(_INTERVALS) >= _INTERVALS // 2).to(low).repeat(_POINTS)
    above = above.reshape(-1, *[1] * low.dim())

    def about_c(F: Tensor) -> Tensor:
        part = weight * (above - F)
        return torch.stack([part.sum(0), (2 * (x - c) * part).sum(0)])

    F, mean, variance = base.cdf(x), base.mean, base.variance
    known, found = torch.stack([mean - c, variance + (mean - c).square()]), about_c(F)
    off = (found[0] - known[0]).abs() / variance.sqrt()
    off = torch.maximum(off, ((found[1] - found[0].square()) / variance - 1).abs())
    first, second = about_c(G(F)) + known - found
    return torch.stack([c + first, second - first.square()]), off


def _edges(normal: Normal, low: Tensor, high: Tensor) -> Tensor:
    """Edges as dense as the cube root of the density, by a sample: [1 + _INTERVALS, N]."""
    sample = sorted_sample(normal).clamp(low, high)
    share = torch.arange(_TAIL_PIECES).to(low).reshape(-1, *[1] * low.dim()) / _TAIL_PIECES
    below = low + (sample[0] - low) * share
    above = high + (sample[-1] - high) * share.flip(0)
    x = torch.cat([below, sample, above])
    # The probability between neighbours is the same everywhere.
    dense = torch.nn.functional.pad(x.diff(dim=0).movedim(0, -1).pow(2 / 3), (1, 0)).movedim(-1, 0)
    total = dense.cumsum(0)
    level = torch.linspace(0, 1, 1 + _INTERVALS).to(low).reshape(-1, *[1] * low.dim()) * total[-1]
    _, x0, x1, t0, t1 = interval(total, x, total, level)
    return x0 + (x1 - x0) * ((level - t0) / (t1 - t0).clamp_min(torch.finfo(t0.dtype).tiny))
