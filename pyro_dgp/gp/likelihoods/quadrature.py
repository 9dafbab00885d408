r"""Expectations over f ~ N(m, s^2) that have no closed form.

.. math:: E[g(f)] \approx \sum_i w_i\, g(m + s x_i)

Gauss-Hermite nodes are exact for polynomials. A log density is often not close to one: it bends,
that is, its slope changes, within a width that may be far smaller than s (a Student-t of small
scale, the edge of an interval). If the place c and the width w of a bend are known
(:class:`Bends`), Gauss-Legendre nodes in t with

.. math:: f = c + w \sinh t, \qquad m - T s \le f \le m + T s

have a distance of order w at the bend, which grows with the distance from the bend, and resolve
both scales. In t, the integrand's nearest singularities are as far away as those of the bend are in
units of w. Where s is at most w / 2 throughout, as it mostly is in training, 32 Gauss-Hermite nodes
are as exact (to 1e-9 for a Student-t and for intervals), and a quarter as many as for two bends.

For differentiation the nodes are constants: the derivative by m and s is that of g at the nodes,
which is as exact as the value. Weights are positive and sum to 1. By Jensen's inequality, the
expectation of a log density is therefore below the logarithm of the density's expectation, for any
g.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.gp.likelihoods.modes import mode_and_width

__all__ = ["Bends", "expected", "log_expected", "normal_rule"]

_NUM_HERMITE = 32
_NUM_LEGENDRE = 64
# Of expectations in float32: the error is some 2e-4 of the value, or less, and 3e-3 of its
# derivatives, where a bend is no narrower than a fiftieth of its distance from the next.
_NUM_LEGENDRE_SINGLE = 40
# Range of the nodes in standard deviations: a normal distribution has a mass of 1e-17 beyond.
_REACH = 8.5
# Standard deviation, in widths of a bend, up to which Gauss-Hermite nodes resolve it.
_RESOLVED = 0.5


class Bends(NamedTuple):
    """Places where the slope of a function changes, in increasing order, and the width of each.

    :param at: Places, tensors or numbers that are broadcastable with the function's argument.
    :param width: Width, a tensor or number, for instance the distance to the nearest complex
        singularity.
    """

    at: tuple[Tensor | float, ...]
    width: Tensor | float


def expected(
    g: Callable[..., Tensor],
    loc: Tensor,
    var: Tensor,
    bends: Bends | None = None,
    num_hermite: int | None = None,
) -> Tensor:
    """E[g(f_1, ..., f_J)] for independent f_j ~ N(loc_j, var_j).

    :param g: Function from J tensors [num_nodes, ...] to one.
    :param torch.Tensor loc: Means, [J, ...].
    :param torch.Tensor var: Variances, [J, ...].
    :param Bends bends: Bends of g, for J = 1; None for Gauss-Hermite nodes (for J > 1 their
        products).
    :param int num_hermite: Number of Gauss-Hermite nodes per function; None for the default.
    :returns: Expectations, [...].
    """
    x, log_w = normal_rule(loc, var, bends, num_hermite)
    values = g(*(loc.unsqueeze(1) + var.sqrt().unsqueeze(1) * x))
    return (log_w.exp() * values).sum(0)


def log_expected(
    log_g: Callable[..., Tensor],
    loc: Tensor,
    var: Tensor,
    at: Tensor | None = None,
    bends: Bends | None = None,
) -> Tensor:
    r"""log E[exp(log_g(f))], also where the expectation underflows. Not differentiable.

    For J = 1, with nodes around the mode of :math:`\log N(f; m, s^2) + \log g(f)`, and around the
    bends of g. A log-concave g makes the integrand fall from the mode at least as N(mode, s^2)
    does. (For J > 1 by products of Gauss-Hermite nodes.) Source: Liu and Pierce (1994), for the
    nodes at the mode.

    :param log_g: Function log g from J tensors [num_nodes, ...] to one.
    :param torch.Tensor loc: Means, [J, ...].
    :param torch.Tensor var: Variances, [J, ...].
    :param torch.Tensor at: Modes of g if it is not log-concave, [...]; else None.
    :param Bends bends: Bends or steps of g, for J = 1, because the curvature at a mode on a plateau
        of g does not tell where the plateau ends.
    :returns: Logarithms of the expectations, [...].
    """
    if len(loc) > 1:
        x, log_w = normal_rule(loc, var, None)
        f = loc.unsqueeze(1) + var.sqrt().unsqueeze(1) * x
        return (log_w + log_g(*f)).logsumexp(0)
    dtype, (m, v) = loc.dtype, (loc[0].double(), var[0].double())
    at = None if at is None else at.double()
    mode, width = mode_and_width(lambda f: log_g(f.to(dtype).unsqueeze(0))[0].double(), m, v, at)
    s = v.sqrt()
    reach = _REACH * torch.maximum(s, width)
    low = torch.minimum(m - _REACH * s, mode - reach)
    high = torch.maximum(m + _REACH * s, mode + reach)
    places, widths = [mode], [width]
    if bends is not None:
        places += [torch.as_tensor(c, dtype=m.dtype, device=m.device) for c in bends.at]
        widths += [torch.as_tensor(bends.width, dtype=m.dtype, device=m.device)] * len(bends.at)
    f, log_df = _nodes_around(places, widths, low, high, _NUM_LEGENDRE)
    log_normal = -0.5 * ((f - m) / s).square() - s.log() - 0.5 * math.log(2 * math.pi)
    return (log_df + log_normal + log_g(f.to(dtype)).double()).logsumexp(0).to(dtype)


def normal_rule(
    loc: Tensor, var: Tensor, bends: Bends | None, num_hermite: int | None = None
) -> tuple[Tensor, Tensor]:
    """Standardised nodes x [J, num_nodes, ...] and the logarithms of their weights."""
    with torch.no_grad():
        # A traced program must be right for any variance.
        traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        if bends is None or (not traced and bool((var[0].sqrt() <= _RESOLVED * bends.width).all())):
            x, log_w = _hermite_nodes(len(loc), num_hermite)
            shape = (*x.shape, *[1] * (loc.dim() - 1))
            return loc.new_tensor(x).reshape(shape), loc.new_tensor(log_w).reshape(shape[1:])
        # In double precision: x is the small difference of a node and m, in units of s.
        m, s = loc[0].double(), var[0].double().sqrt()
        *at, width = (torch.as_tensor(value, device=m.device) for value in (*bends.at, bends.width))
        at, width = [c.double() for c in at], width.double()
        # A bend far in the normal's tail need not be resolved, but the normal's body must be.
        widths = [torch.maximum(width, _unresolved((c - m) / s) * s) for c in at]
        num = _NUM_LEGENDRE_SINGLE if loc.dtype == torch.float32 else _NUM_LEGENDRE
        f, log_df = _nodes_around(at, widths, m - _REACH * s, m + _REACH * s, num)
        x, log_dx = (f - m) / s, log_df - s.log()
        log_w = log_dx - 0.5 * x.square()
        log_w = log_w - log_w.logsumexp(0)
        return x.unsqueeze(0).to(loc.dtype), log_w.to(loc.dtype)


def _unresolved(x: Tensor) -> Tensor:
    """Standard deviations that contribute 1e-8 at most, at a distance x from the mean."""
    return 1e-8 * (0.5 * x.square()).clamp_max(math.log(1e8)).exp()


def _nodes_around(
    places: Sequence[Tensor], widths: Sequence[Tensor], low: Tensor, high: Tensor, num: int
) -> tuple[Tensor, Tensor]:
    """Nodes of [low, high], which is divided into the parts nearest to each place; ``num`` each."""
    if len(places) > 1:
        columns, spreads = (
            torch.stack(torch.broadcast_tensors(*v, low, high)[:-2]) for v in (places, widths)
        )
        columns, order = columns.sort(0)
        places, widths = columns.unbind(), spreads.gather(0, order).unbind()
    middles = [torch.clamp((a + b) / 2, low, high) for a, b in itertools.pairwise(places)]
    ends = itertools.pairwise([low, *middles, high])
    parts = [_sinh_nodes(c, w, *e, num) for c, w, e in zip(places, widths, ends, strict=True)]
    f, log_df = (torch.cat(part) for part in zip(*parts, strict=True))
    return f, log_df


def _sinh_nodes(c: Tensor, w: Tensor, low: Tensor, high: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Nodes f = c + w sinh(t) of [low, high], [num_nodes, ...], and log(weight df/dt)."""
    c, w, low, high = torch.broadcast_tensors(c, w, low, high)
    nodes, weights = _legendre_nodes(num)
    shape = (-1, *[1] * low.dim())
    node, log_weight = (low.new_tensor(v).reshape(shape) for v in (nodes, np.log(weights)))
    # If [low, high] is short compared with its distance from c, sinh is linear there, and would
    # only lose digits.
    near, far = ((low - c) / w).asinh(), ((high - c) / w).asinh()
    half = 0.5 * (far - near)
    t = half * node + 0.5 * (near + far)
    straight = half < 1e-6
    f = torch.where(straight, 0.5 * (high - low) * node + 0.5 * (high + low), c + w * t.sinh())
    log_df = torch.where(straight, 0.5 * (high - low), half * w * t.cosh())
    return f, log_weight + log_df.log()


@functools.cache
def _hermite_nodes(num_functions: int, num: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of a standard normal distribution of J dimensions, [J, num_nodes]; log weights."""
    # Some 1000 nodes at most, so that two or three functions stay affordable.
    most = {1: _NUM_HERMITE, 2: 24, 3: 10}.get(num_functions)
    if most is None:
        raise NotImplementedError(
            f"There is no quadrature over {num_functions} functions: give the likelihood an "
            "expected_log_prob and a log_marginal of its own."
        )
    x, w = np.polynomial.hermite_e.hermegauss(most if num is None else num)
    grid = np.stack([g.ravel() for g in np.meshgrid(*[x] * num_functions, indexing="ij")])
    weights = np.stack([g.ravel() for g in np.meshgrid(*[w] * num_functions, indexing="ij")])
    log_w = np.log(weights).sum(0)
    return grid, log_w - np.logaddexp.reduce(log_w)


@functools.cache
def _legendre_nodes(num: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(num)
