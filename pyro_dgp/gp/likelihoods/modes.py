"""The mode of the product of a normal density and a likelihood."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["mode_and_width", "where_modes_are_found"]


@contextmanager
def where_modes_are_found() -> Iterator[None]:
    """Leaves inference mode, which does not allow the derivatives that the search for a mode needs.

    To leave it turns them on, also for callers who want none: whether they do stays as it is.
    """
    wanted = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(wanted):
        yield


@torch.no_grad()  # nodes of a quadrature, whose derivatives cancel
def mode_and_width(
    log_g: Callable[[Tensor], Tensor], m: Tensor, v: Tensor, at: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mode of N(f; m, v) g(f), and its width by the curvature there.

    For a log-concave g, the mode f = m + v slope(f), with slope the derivative of log g, lies
    between m and m + v slope(m), because the slope decreases; for any g, one lies between m and the
    mode of g.

    :param log_g: Elementwise function log g.
    :param torch.Tensor m: Means, [...].
    :param torch.Tensor v: Variances, [...].
    :param torch.Tensor at: Modes of g if it is not log-concave, [...]; else None.
    :returns: Modes and widths, [...] each.
    """

    def slope(f: Tensor, curvature: bool = False) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            (first,) = torch.autograd.grad(log_g(f).sum(), f, create_graph=curvature)
            if not curvature:
                return first, first
            if not first.requires_grad:
                return first, torch.zeros_like(first)
            (second,) = torch.autograd.grad(first.sum(), f, allow_unused=True)
        return first.detach(), torch.zeros_like(first) if second is None else second

    m, v = torch.broadcast_tensors(m, v)
    ends = torch.stack([m, m + v * slope(m)[0], m if at is None else at.expand_as(m)])
    low, high = ends.amin(0), ends.amax(0)
    f = 0.5 * (low + high)
    if at is not None:
        # If there are several modes, the one near the highest of some points.
        t = torch.linspace(0, 1, 33, dtype=m.dtype, device=m.device)
        points = m + (at - m) * t.reshape(-1, *[1] * m.dim())
        height = torch.stack([log_g(p) for p in points]) - 0.5 * (points - m).square() / v
        best = height.argmax(0, keepdim=True)
        f = points.gather(0, best)[0]
        before, after = (points.gather(0, (best + d).clamp(0, 32))[0] for d in (-1, 1))
        inside = (best[0] > 0) & (best[0] < 32)
        low = torch.where(inside, torch.minimum(before, after), low)
        high = torch.where(inside, torch.maximum(before, after), high)
    last, done = high - low, torch.zeros_like(m, dtype=torch.bool)
    for _ in range(100):
        first, second = slope(f, curvature=True)
        error = m + v * first - f  # decreases with f
        low, high = torch.where(error > 0, f, low), torch.where(error > 0, high, f)
        newton = f + error / (1 - v * second).clamp_min(1)
        # Bisect where Newton's steps do not shrink (for e^f they all have length 1).
        good = (newton > low) & (newton < high) & ((newton - f).abs() < 0.5 * last)
        step = torch.where(good, newton, 0.5 * (low + high))
        step = torch.where(done, f, step)  # or a step that no longer shrinks would bisect again
        last = (step - f).abs()
        # A tenth of the peak's width is close enough for its nodes.
        # (Where log g is NaN, as for impossible targets, there is no mode.)
        done |= ~(last > 0.1 * (v / (1 - v * second).clamp_min(1)).sqrt())
        f = step
        if bool(done.all()):
            break
    _, second = slope(f, curvature=True)
    # Below 1 where log g is convex, and the peak wider than N(m, v).
    return f, (v / (1 - v * second).clamp_min(0.01)).sqrt()
