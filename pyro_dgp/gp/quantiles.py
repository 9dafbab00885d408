"""Inverting a distribution function."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["bracket", "invert", "invert_on_lattice"]


def bracket(cdf: Callable[[Tensor], Tensor], p: Tensor) -> tuple[Tensor, Tensor]:
    """Ends with cdf(low) <= p <= cdf(high), by doubling from -1 and 1."""
    ends, largest = [], torch.finfo(p.dtype).max / 4
    for sign in (-1.0, 1.0):
        end = torch.full_like(p, sign)
        for _ in range(200):
            short = (cdf(end) - p) * sign < 0
            if not bool(short.any()):
                break
            end = torch.where(short, 2 * end, end).clamp(-largest, largest)
        ends.append(end)
    return ends[0], ends[1]


def invert(
    cdf: Callable[[Tensor], Tensor], density: Callable[[Tensor], Tensor], p: Tensor,
    low: Tensor, high: Tensor, smallest: Tensor,
) -> Tensor:  # fmt: skip
    """Newton's method from the middle of a bracket, kept inside it by bisection.

    :param cdf: Elementwise.
    :param density: Its derivative.
    :param torch.Tensor p: Probabilities.
    :param torch.Tensor low: Where the cdf is at most p, the same shape.
    :param torch.Tensor high: Where it is at least p.
    :param torch.Tensor smallest: Beside the size of x itself, the scale to which it must be exact.
    """
    x = 0.5 * (low + high)
    eps = torch.finfo(p.dtype).eps
    done = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(200):
        error = cdf(x) - p
        low, high = torch.where(error < 0, x, low), torch.where(error < 0, high, x)
        # What has converged stays, or rounding would send it back into the bracket.
        exact = error.abs() <= 4 * eps * p
        done |= exact | (high - low <= 4 * eps * torch.maximum(x.abs(), smallest))
        if bool(done.all()):
            break
        newton = x - error / density(x)
        # Where Newton leaves the bracket (also by a density that underflows), bisect.
        inside = (newton >= low) & (newton <= high)
        x = torch.where(done, x, torch.where(inside, newton, 0.5 * (low + high)))
    # At a jump, the end at which enough probability has come.
    return torch.where(exact, x, high)


def invert_on_lattice(
    cdf: Callable[[Tensor], Tensor], lattice: tuple[float, float], p: Tensor,
    low: Tensor, high: Tensor,
) -> Tensor:  # fmt: skip
    """The smallest origin + step k with cdf >= p, by bisection over k.

    :param lattice: The origin and the step.
    """
    origin, step = lattice
    low = ((low - origin) / step).floor() - 1
    high = ((high - origin) / step).ceil()
    while True:
        middle = ((low + high) / 2).floor()
        # Of large numbers, not all integers are floats.
        open_ = (middle > low) & (middle < high)
        if not bool(open_.any()):
            break
        # Sums that should give p exactly fall short of it by rounding.
        enough = cdf(origin + step * middle) >= p - 1e-7
        low = torch.where(open_ & ~enough, middle, low)
        high = torch.where(open_ & enough, middle, high)
    return origin + step * high
