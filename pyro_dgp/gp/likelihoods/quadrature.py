r"""Expectations over f ~ N(m, s^2) that have no closed form.

.. math:: E[g(f)] \approx \sum_i w_i\, g(m + s x_i)

Gauss-Hermite nodes are exact for polynomials. A log density often is none: it bends, from one slope
to another, within a stretch that may be far shorter than s (a Student-t of small scale, the edge of
an interval). Where the place c and the width w of a bend are known (:class:`Bends`), Gauss-Legendre
nodes in t with

.. math:: f = c + w \sinh t, \qquad m - T s \le f \le m + T s

lie w apart at the bend and farther apart with the distance from it, and resolve both scales. In t,
the integrand's nearest singularities are as far away as the bend's own are in units of w.

Nodes are constants for differentiation: the derivative by m and s is that of g at the nodes, which
is as exact as the value. Weights are positive and sum to 1, so the expectation of a log density
stays below the logarithm of the density's expectation by Jensen's inequality, for any g.
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

__all__ = ["Bends", "expected", "log_expected"]

_NUM_HERMITE = 32
_NUM_LEGENDRE = 64
# Standard deviations that nodes reach: beyond, a normal distribution has 1e-17 of its mass.
_REACH = 8.5


class Bends(NamedTuple):
    """Where a function bends: at one or two places, in increasing order, within a width of each.

    :param at: Tensors or numbers, broadcastable with the function's argument.
    :param width: A tensor or number; the distance to the nearest complex singularity will do.
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

    :param g: From J tensors [num_nodes, ...] to one.
    :param torch.Tensor loc: [J, ...].
    :param torch.Tensor var: [J, ...].
    :param Bends bends: Where g bends, for J = 1; None for Gauss-Hermite nodes (for J > 1 their
        products).
    :param int num_hermite: How many of those for each function; None for the usual number.
    :returns: [...].
    """
    x, log_w = _normal_rule(loc, var, bends, num_hermite)
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

    :param log_g: From J tensors [num_nodes, ...] to one.
    :param torch.Tensor loc: [J, ...].
    :param torch.Tensor var: [J, ...].
    :param torch.Tensor at: For a g that is not log-concave, where it is largest, [...].
    :param Bends bends: Where g bends or steps, for J = 1: the curvature at a mode on a plateau of g
        says nothing of the plateau's edge.
    :returns: [...].
    """
    if len(loc) > 1:
        x, log_w = _normal_rule(loc, var, None)
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
    f, log_df = _nodes_around(places, widths, low, high)
    log_normal = -0.5 * ((f - m) / s).square() - s.log() - 0.5 * math.log(2 * math.pi)
    return (log_df + log_normal + log_g(f.to(dtype)).double()).logsumexp(0).to(dtype)


def _normal_rule(
    loc: Tensor, var: Tensor, bends: Bends | None, num_hermite: int | None = None
) -> tuple[Tensor, Tensor]:
    """Standardised nodes x [J, num_nodes, ...] and the logarithms of their weights."""
    with torch.no_grad():
        if bends is None:
            x, log_w = _hermite_nodes(len(loc), num_hermite)
            shape = (*x.shape, *[1] * (loc.dim() - 1))
            return loc.new_tensor(x).reshape(shape), loc.new_tensor(log_w).reshape(shape[1:])
        # In double precision: x is the small difference of a node and m, in units of s.
        m, s = loc[0].double(), var[0].double().sqrt()
        *at, width = (torch.as_tensor(value, device=m.device) for value in (*bends.at, bends.width))
        at, width = [c.double() for c in at], width.double()
        # A bend far in the normal's tail need not be resolved, the body must be.
        widths = [torch.maximum(width, _unresolved((c - m) / s) * s) for c in at]
        f, log_df = _nodes_around(at, widths, m - _REACH * s, m + _REACH * s)
        x, log_dx = (f - m) / s, log_df - s.log()
        log_w = log_dx - 0.5 * x.square()
        log_w = log_w - log_w.logsumexp(0)
        return x.unsqueeze(0).to(loc.dtype), log_w.to(loc.dtype)


def _unresolved(x: Tensor) -> Tensor:
    """Standard deviations that contribute 1e-8 at most, at a distance x from the mean."""
    return 1e-8 * (0.5 * x.square()).clamp_max(math.log(1e8)).exp()


def _nodes_around(
    places: Sequence[Tensor], widths: Sequence[Tensor], low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Nodes of [low, high], each of whose parts is nearest to one of the places."""
    if len(places) > 1:
        columns, spreads = (
            torch.stack(torch.broadcast_tensors(*v, low, high)[:-2]) for v in (places, widths)
        )
        columns, order = columns.sort(0)
        places, widths = columns.unbind(), spreads.gather(0, order).unbind()
    middles = [torch.clamp((a + b) / 2, low, high) for a, b in itertools.pairwise(places)]
    ends = itertools.pairwise([low, *middles, high])
    parts = [_sinh_nodes(c, w, *e) for c, w, e in zip(places, widths, ends, strict=True)]
    f, log_df = (torch.cat(part) for part in zip(*parts, strict=True))
    return f, log_df


def _sinh_nodes(c: Tensor, w: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes f = c + w sinh(t) of [low, high], [num_nodes, ...], and log(weight df/dt)."""
    c, w, low, high = torch.broadcast_tensors(c, w, low, high)
    nodes, weights = _legendre_nodes()
    shape = (-1, *[1] * low.dim())
    node, log_weight = (low.new_tensor(v).reshape(shape) for v in (nodes, np.log(weights)))
    # Where [low, high] is short beside its distance from c, sinh is straight there, and only loses
    # digits.
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
def _legendre_nodes() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(_NUM_LEGENDRE)
