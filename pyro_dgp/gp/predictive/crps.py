r"""Continuous ranked probability scores; smaller is better.

.. math:: \int (F(x) - 1\{x \ge y\})^2 dx = E|X - y| - \tfrac12 E|X - X'|

Source: Gneiting and Raftery (2007), eq. 21; Grimit et al. (2006) for normal mixtures.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "evenly",
    "expected_abs",
    "integrated_crps",
    "interval",
    "mean_distance",
    "rising",
    "summed_crps",
]

# Each normal component is paired with this many others, or with all if there are fewer.
_SHIFTS = 128
# Number of refinements of the points at which F is evaluated, and points per refinement.
_ROUNDS, _POINTS = 3, 48


def expected_abs(mean: Tensor, scale: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, scale^2)."""
    ratio = mean / scale
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2 / math.pi)
    return scale * density + mean * torch.erf(ratio / math.sqrt(2))


def mean_distance(loc: Tensor, scale: Tensor, chunk: int) -> Tensor:
    """E|X - X'| of an equal mixture of normals.

    Up to 129 components: the mean over all pairs. More: the mean over the pairs at 128 evenly
    spaced cyclic distances, whose error is a tenth of that of S draws.

    :param torch.Tensor loc: Means of the components, [S, ...].
    :param torch.Tensor scale: Standard deviations of the components, [S, ...].
    :param int chunk: Number of elements of a temporary array.
    :returns: Expected distance, [...].
    """
    S = len(loc)
    shifts = torch.linspace(0, S - 1, min(S, _SHIFTS + 1)).round().long()[1:].tolist()
    step = max(1, chunk // max(1, loc[0].numel()))
    spread = torch.zeros_like(loc[0])
    for shift in shifts:
        others = torch.arange(S, device=loc.device).roll(-shift)
        for these, those in zip(range(0, S, step), others.split(step), strict=True):
            some = slice(these, these + step)
            both = (scale[some].square() + scale[those].square()).sqrt()
            spread += expected_abs(loc[some] - loc[those], both).sum(0)
    # The pairs of a component with itself, one in S, are exact.
    same = scale.mean(0) * (2 / math.sqrt(math.pi))
    return (same + (S - 1) * spread / (S * max(len(shifts), 1))) / S


def evenly(low: Tensor, high: Tensor) -> Tensor:
    """Evenly spaced points from low to high, [G, *shape]."""
    share = torch.linspace(0, 1, _POINTS, dtype=low.dtype, device=low.device)
    return low + (high - low) * share.reshape(-1, *[1] * low.dim())


def integrated_crps(cdf: Callable[[Tensor], Tensor], x: Tensor, value: Tensor) -> Tensor:
    """CRPS by the integral, by Simpson's rule between points that are close where F rises.

    :param cdf: Distribution function F, from [..., *shape] to the same shape.
    :param torch.Tensor x: Points from which to start, increasing, with a negligible probability
        below the first and above the last, [G, *shape].
    :param torch.Tensor value: Targets y, broadcastable to [..., *shape].
    :returns: Scores, [..., *shape], in units of ``value``.
    """
    shape, F = x.shape[1:], cdf(x)
    value = value.expand(torch.broadcast_shapes(value.shape, shape))
    for _ in range(_ROUNDS):
        new = rising(x, F)
        x, order = torch.cat([x, new]).sort(0)
        F = torch.cat([F, cdf(new)]).gather(0, order)
    # F squared integrated up to each point, and (1 - F) squared.
    width, between = x.diff(dim=0), cdf(0.5 * (x[1:] + x[:-1]))
    below, above = (
        torch.cat([torch.zeros_like(width[:1]), (width * _simpson(*G)).cumsum(0)])
        for G in ((F[:-1], between, F[1:]), (1 - F[:-1], 1 - between, 1 - F[1:]))
    )
    y, Fy = value.reshape(-1, *shape), cdf(value).reshape(-1, *shape)
    i, x0, x1, F0, F1 = interval(x, x, F, y)
    # Outside the points F is 0 or 1, and the integrand is 1 up to y.
    inside = torch.minimum(torch.maximum(y, x0), x1)
    found = below.gather(0, i - 1) + (inside - x0) * _mean_square(F0, Fy)
    found = found + (x1 - inside) * _mean_square(1 - Fy, 1 - F1)
    found = found + (above[-1] - above.gather(0, i)) + (y - inside).abs()
    return found.reshape(value.shape)


def summed_crps(
    cdf: Callable[[Tensor], Tensor], lattice: tuple[float, float], ends: tuple[int, int],
    value: Tensor, shape: torch.Size,
) -> Tensor:  # fmt: skip
    """CRPS for targets on the lattice origin + step k, where the integral is a sum over k.

    :param cdf: Distribution function F, from [..., *shape] to the same shape.
    :param lattice: Origin and step.
    :param ends: First and last k of the sum.
    :param torch.Tensor value: Targets y, broadcastable to [..., *shape].
    :param torch.Size shape: Batch and event shape of the distribution.
    :returns: Scores, [..., *shape], in units of ``value``.
    """
    (origin, step), (first, last) = lattice, ends
    value = value.expand(torch.broadcast_shapes(value.shape, shape))
    total = torch.zeros_like(value)
    for k in torch.arange(first, last + 1, device=value.device).split(256):
        x = (origin + step * k.to(value.dtype)).reshape(-1, *[1] * len(shape))
        for x_k, F_k in zip(x, cdf(x.expand(-1, *shape)), strict=True):
            total += (F_k - (x_k > value - 0.5 * step).to(F_k)).square()
    return step * total


def rising(x: Tensor, F: Tensor) -> Tensor:
    """New points with equal rises of F between them, for F linear between points x, [G, ...]."""
    F = F.cummax(0).values
    level = (torch.arange(_POINTS, dtype=x.dtype, device=x.device) + 0.5) / _POINTS
    level = F[:1] + (F[-1:] - F[:1]) * level.reshape(-1, *[1] * (x.dim() - 1))
    _, x0, x1, F0, F1 = interval(F, x, F, level)
    share = ((level - F0) / (F1 - F0).clamp_min(torch.finfo(F.dtype).tiny)).clamp(0, 1)
    return x0 + (x1 - x0) * share


def interval(
    sorted_: Tensor, x: Tensor, F: Tensor, where: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The index of the interval of sorted columns [G, ...] with ``where``; x and F at its ends."""
    columns, values = (t.movedim(0, -1).contiguous() for t in (sorted_, where))
    i = torch.searchsorted(columns, values).movedim(-1, 0).clamp(1, len(x) - 1)
    x0, x1, F0, F1 = (t.gather(0, j) for t in (x, F) for j in (i - 1, i))
    return i, x0, x1, F0, F1


def _simpson(a: Tensor, middle: Tensor, b: Tensor) -> Tensor:
    """Mean of the square of a function between two points."""
    return (a * a + 4 * middle * middle + b * b) / 6


def _mean_square(a: Tensor, b: Tensor) -> Tensor:
    """Mean of the square of a linear function that goes from a to b."""
    return (a * a + a * b + b * b) / 3
