"""Numerical inversion of distribution functions."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["bracket", "invert", "invert_on_lattice", "invert_smooth"]


def bracket(
    cdf: Callable[[Tensor], Tensor],
    p: Tensor,
    at: Tensor | float = 0.0,
    width: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Ends with cdf(low) <= p <= cdf(high), by doubling their distance from ``at``.

    :param cdf: Distribution function, elementwise.
    :param torch.Tensor p: Probabilities.
    :param at: Starting points, broadcastable with p.
    :param width: Initial distances from them, broadcastable with p.
    :returns: ``low`` and ``high``, of the shape of p.
    """
    ends, largest = [], torch.finfo(p.dtype).max / 4
    at, width = (
        torch.as_tensor(v, dtype=p.dtype, device=p.device).expand_as(p) for v in (at, width)
    )
    for sign in (-1.0, 1.0):
        end, distance = at, width
        for _ in range(200):
            end = (at + sign * distance).clamp(-largest, largest)
            short = (cdf(end) - p) * sign < 0
            if not bool(short.any()):
                break
            distance = torch.where(short, 2 * distance, distance)
        ends.append(end)
    return ends[0], ends[1]


def invert_smooth(
    cdf: Callable[[Tensor], Tensor], density: Callable[[Tensor], Tensor], start: Tensor, p: Tensor,
    low: Tensor, high: Tensor, smallest: Tensor,
) -> Tensor:  # fmt: skip
    """The x with cdf(x) = p, by Newton's method, with bisection where it leaves the bracket.

    :param cdf: Distribution function, elementwise.
    :param density: Derivative of the distribution function, elementwise.
    :param torch.Tensor start: Starting points inside the bracket, of the shape of p.
    :param torch.Tensor p: Probabilities.
    :param torch.Tensor low: Lower ends of the bracket, where the cdf is at most p.
    :param torch.Tensor high: Upper ends of the bracket, where the cdf is at least p.
    :param torch.Tensor smallest: Smallest scale of x; rounding is relative to it or to x, whichever
        is larger.
    """
    x, eps = start, torch.finfo(p.dtype).eps
    done = torch.zeros_like(x, dtype=torch.bool)
    before = torch.full_like(x, torch.inf)
    for _ in range(200):
        error = cdf(x) - p
        low, high = torch.where(error < 0, x, low), torch.where(error < 0, high, x)
        # Elements that have converged stay: rounding would move them back into the bracket.
        done |= (error.abs() <= 4 * eps * p.clamp_min(0.25)) | (
            high - low <= 4 * eps * torch.maximum(x.abs(), smallest)
        )
        if bool(done.all()):
            break
        newton = x - error / density(x)
        # Bisect where Newton's method leaves the bracket (also because the density underflows), or
        # oscillates about a narrow component.
        good = (newton >= low) & (newton <= high) & (error.abs() < 0.5 * before)
        before = torch.where(good, error.abs(), torch.inf)
        x = torch.where(done, x, torch.where(good, newton, 0.5 * (low + high)))
    return x


def invert(
    cdf: Callable[[Tensor], Tensor], p: Tensor, low: Tensor, high: Tensor, tolerance: float = 0.0
) -> Tensor:
    """The smallest x with cdf(x) >= p, up to rounding, by inverse quadratic steps or bisection.

    Source: Chandrupatla (1997), "A new hybrid quadratic/bisection algorithm for finding the zero of
    a nonlinear function without using derivatives".

    :param cdf: Distribution function, elementwise; it may have jumps.
    :param torch.Tensor p: Probabilities.
    :param torch.Tensor low: Lower ends of a bracket, where the cdf is at most p.
    :param torch.Tensor high: Upper ends of the bracket, where the cdf is at least p.
    :param float tolerance: Tolerance of the probabilities; 0 for rounding alone.
    """
    eps, tiny = torch.finfo(p.dtype).eps, torch.finfo(p.dtype).tiny
    x1, x2 = low, high
    f1, f2 = cdf(low) - p, cdf(high) - p
    exact, t = torch.zeros_like(p, dtype=torch.bool), torch.full_like(p, 0.5)
    for _ in range(200):
        x = x1 + t * (x2 - x1)
        f = cdf(x) - p
        same = (f < 0) == (f1 < 0)
        x3, f3 = torch.where(same, x1, x2), torch.where(same, f1, f2)
        x2, f2 = torch.where(same, x2, x1), torch.where(same, f2, f1)
        x1, f1 = x, f
        exact = f1.abs() <= torch.clamp(4 * eps * p, min=tolerance)
        share = 2 * eps * torch.minimum(x1.abs(), x2.abs()).clamp_min(tiny) / (x2 - x1).abs()
        done = exact | ~(share < 0.5)
        if bool(done.all()):
            break
        xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
        quadratic = f1 / (f1 - f2) * f3 / (f3 - f2)
        quadratic = quadratic - (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f2 - f3)
        good = (phi.square() < xi) & ((1 - phi).square() < 1 - xi) & quadratic.isfinite()
        t = torch.where(good, quadratic, 0.5).clamp(share.clamp_max(0.5), 1 - share.clamp_max(0.5))
        t = torch.where(done, 0.0, t)  # elements that have converged stay
    # At a jump, the end where the cdf is at least p.
    return torch.where(exact, x1, torch.maximum(x1, x2))


def invert_on_lattice(
    cdf: Callable[[Tensor], Tensor], lattice: tuple[float, float], p: Tensor,
    low: Tensor, high: Tensor,
) -> Tensor:  # fmt: skip
    """The smallest origin + step k with cdf >= p, by bisection over k.

    :param cdf: Distribution function, elementwise.
    :param lattice: Origin and step.
    :param torch.Tensor p: Probabilities.
    :param torch.Tensor low: Lower ends of a bracket, where the cdf is at most p.
    :param torch.Tensor high: Upper ends of the bracket, where the cdf is at least p.
    """
    origin, step = lattice
    # A sum that should be exactly p may be less by rounding.
    slack = 1e-7 * torch.minimum(p, 1 - p) + torch.finfo(p.dtype).eps
    smallest = p - torch.minimum(slack, 0.5 * p)
    low = ((low - origin) / step).floor() - 1
    high = ((high - origin) / step).ceil()
    while True:
        middle = ((low + high) / 2).floor()
        # Not every large integer is a floating-point number.
        open_ = (middle > low) & (middle < high)
        if not bool(open_.any()):
            break
        enough = cdf(origin + step * middle) >= smallest
        low = torch.where(open_ & ~enough, middle, low)
        high = torch.where(open_ & enough, middle, high)
    return origin + step * high
