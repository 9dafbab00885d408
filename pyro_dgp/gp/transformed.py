r"""Moments of a normal mixture whose distribution function F is transformed to G(F).

About any point c,

.. math:: E[y - c] = \int (1\{x \ge c\} - G)\, dx, \qquad
    E[(y - c)^2] = \int 2 (x - c)\, (1\{x \ge c\} - G)\, dx,

by Gauss's rule between edges, of which c is one. The same rule with F in place of G gives moments
that are known: what it is off by is subtracted, and says how exact the rule is.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_dgp.gp.crps import _interval
from pyro_dgp.gp.mixture import PredictiveMixture, sorted_sample

__all__ = ["transformed_moments"]

# Intervals, and points in each.
_INTERVALS, _POINTS = 16, 6
# Pieces of the tails beyond a sample.
_TAIL_PIECES = 4


def transformed_moments(
    normal: Normal, G: Callable[[Tensor], Tensor], low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """
    :param normal: The components, batch shape [S, N].
    :param G: From F to the transformed distribution function, elementwise.
    :param torch.Tensor low: Below all but a negligible part, [N].
    :param torch.Tensor high: Above it, [N].
    :returns: Mean and variance, [2, N]; and by how much the rule misses those of F, of the mean in
        standard deviations, of the variance relative to it, the larger of both, [N].
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
    """As dense as the cube root of the density, judged by a sample: [1 + _INTERVALS, N]."""
    sample = sorted_sample(normal).clamp(low, high)
    share = torch.arange(_TAIL_PIECES).to(low).reshape(-1, *[1] * low.dim()) / _TAIL_PIECES
    below = low + (sample[0] - low) * share
    above = high + (sample[-1] - high) * share.flip(0)
    x = torch.cat([below, sample, above])
    # Between neighbours is the same probability everywhere.
    dense = torch.nn.functional.pad(x.diff(dim=0).movedim(0, -1).pow(2 / 3), (1, 0)).movedim(-1, 0)
    total = dense.cumsum(0)
    level = torch.linspace(0, 1, 1 + _INTERVALS).to(low).reshape(-1, *[1] * low.dim()) * total[-1]
    _, x0, x1, t0, t1 = _interval(total, x, total, level)
    return x0 + (x1 - x0) * ((level - t0) / (t1 - t0).clamp_min(torch.finfo(t0.dtype).tiny))
