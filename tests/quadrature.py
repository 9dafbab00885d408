"""Integrals that the tests take for exact; nothing here knows of the package's own quadrature."""

import numpy as np
import torch
from torch import Tensor

# Nodes per dimension of a product rule, by the number of dimensions.
_FINENESS = {1: 60, 2: 40, 3: 30, 4: 18, 6: 9}


def gauss_hermite(num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes [J] and weights [J] for a standard normal variable."""
    x, w = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.as_tensor(x), torch.as_tensor(w / w.sum())


def grid(num_dims: int, num_nodes: int | None = None) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes [J, num_dims] and weights [J] for a standard normal vector."""
    x, w = gauss_hermite(num_nodes or _FINENESS[num_dims])
    nodes = torch.cartesian_prod(*[x] * num_dims).reshape(-1, num_dims)
    weights = torch.cartesian_prod(*[w] * num_dims).reshape(-1, num_dims).prod(-1)
    return nodes, weights


def smooth_expectation(g, mean, variance, num_nodes=60) -> Tensor:
    """E[g(f)] for f ~ N(mean, variance) and a g that polynomials approach fast.

    :param g: From f [J, ...] to values [J, ...].
    """
    mean, variance = torch.as_tensor(mean), torch.as_tensor(variance)
    x, w = gauss_hermite(num_nodes)
    f = mean + variance.sqrt() * x.reshape(-1, *[1] * mean.dim())
    return torch.einsum("j,j...->...", w, g(f))


def even_nodes(end: float, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The trapezoidal rule from -end to end for a standard normal: nodes and weights [J].

    For a smooth integrand, its error falls exponentially in the nodes' density.
    """
    x = torch.linspace(-end, end, num_nodes, dtype=torch.float64)
    w = (-0.5 * x.square()).exp()
    return x, w / w.sum()


def gauss_legendre(edges, num_nodes: int = 16) -> tuple[Tensor, Tensor]:
    """Nodes and weights [L - 1, J, ...] in the panels between the edges [L, ...]."""
    edges = torch.as_tensor(edges, dtype=torch.float64)
    t, w = (
        torch.as_tensor(a).reshape(-1, *[1] * (edges.dim() - 1))
        for a in np.polynomial.legendre.leggauss(num_nodes)
    )
    half, middle = 0.5 * edges.diff(dim=0).unsqueeze(1), 0.5 * (edges[1:] + edges[:-1]).unsqueeze(1)
    return middle + half * t, half * w


def integral(g, edges) -> Tensor:
    """Of g, from x [J, ...] to values [J, ...], over the panels between the edges [L, ...]."""
    x, w = (t.flatten(0, 1) for t in gauss_legendre(edges))
    return (w * torch.as_tensor(g(x))).sum(0)


def crps(cdf, y, low: float, high: float, num_panels: int = 100) -> Tensor:
    """Integral of (F(x) - 1{x >= y})^2 from low to high, apart below and above the targets y.

    :param cdf: From x [J, *shape of y] to F(x).
    """
    y = torch.as_tensor(y)
    t = torch.linspace(0, 1, num_panels + 1).reshape(-1, *[1] * y.dim())
    below = integral(lambda x: cdf(x) ** 2, low + (y - low) * t)
    return below + integral(lambda x: (1 - cdf(x)) ** 2, y + (high - y) * t)


def moments(density, x) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, mean and variance by the trapezoidal rule.

    :param density: At x, [G, ...].
    :param x: [G], from end to end of what has any mass.
    """
    density, x = torch.as_tensor(density).movedim(0, -1), torch.as_tensor(x)
    mass, mean = torch.trapezoid(density, x), torch.trapezoid(density * x, x)
    variance = torch.trapezoid(density * (x - mean.unsqueeze(-1)).square(), x)
    return mass, mean, variance


# Adaptive integration, many integrals at a time.

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
# Distances from a place where an integrand may be narrow, in units of the normal's scale.
_STEPS = np.concatenate([[0.0], 16.0 * 2.0 ** np.arange(-20.0, 1.0)])


def integrate(g, edges, tolerance=1e-12):
    """Integrals of g, each over its row of edges, by halving panels until nothing changes.

    :param g: From places [K, 16] and which integral each row belongs to, [K], to values [K, 16].
    :param edges: [E, L], sorted; the first panels lie between them.
    :param tolerance: Error of a panel relative to the whole, one or [E].
    """
    tolerance = np.broadcast_to(tolerance, len(edges))
    num = len(edges)
    i = np.repeat(np.arange(num), edges.shape[1] - 1)
    a, b = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    i, a, b = (v[b > a] for v in (i, a, b))

    def rule(i, a, b):
        half = 0.5 * (b - a)
        return half * (g(0.5 * (a + b)[:, None] + half[:, None] * _NODES, i) @ _WEIGHTS)

    whole = rule(i, a, b)
    size = np.bincount(i, np.abs(whole), num)
    total = np.zeros(num)
    for level in range(40):
        middle = 0.5 * (a + b)
        left, right = rule(i, a, middle), rule(i, middle, b)
        done = (np.abs(left + right - whole) <= (tolerance * size)[i]) | (level == 39)
        total += np.bincount(i[done], (left + right)[done], num)
        more = ~done
        if not more.any():
            break
        a, middle, b, i, left, right = (v[more] for v in (a, middle, b, i, left, right))
        i, a, b = np.tile(i, 2), np.concatenate([a, middle]), np.concatenate([middle, b])
        whole = np.concatenate([left, right])
    return total


def _around(places, scale):
    return np.concatenate([places - scale * _STEPS, places + scale * _STEPS], -1)


def expectation(g, mean, var, landmarks):
    """E[g(f)] for f ~ N(mean, var), whatever g may be.

    :param g: From f [K, 16] and indices [K] to values.
    :param mean: [E].
    :param var: [E].
    :param landmarks: Where g may be narrow or kinky, [E, any].
    """
    s = np.sqrt(var)[:, None]
    m = mean[:, None]
    places = [_around(place[:, None], s) for place in (mean, *landmarks.T)]
    # e^f moves the integrand's peak by up to 5 standard deviations.
    edges = np.concatenate([m + s * np.linspace(-16, 16, 33), *places], -1)
    edges = np.sort(np.clip(edges, m - 16 * s, m + 16 * s), -1)

    def integrand(f, i):
        x = (f - m[i]) / s[i]
        return g(f, i) * np.exp(-0.5 * x**2) / (np.sqrt(2 * np.pi) * s[i])

    return integrate(integrand, edges)


def log_expectation(log_g, mean, var, landmarks):
    """log E[exp(log_g(f))], with the integrand's peak as the unit, so that nothing underflows."""
    s, m = np.sqrt(var)[:, None], mean[:, None]
    index = np.arange(len(mean))

    def log_integrand(f, i):
        x = (f - m[i]) / s[i]
        return log_g(f, i) - 0.5 * x**2 - np.log(np.sqrt(2 * np.pi) * s[i])

    # The peak: over all distances from m and the landmarks at first, then ever closer.
    t = np.concatenate([-np.geomspace(1e5, 1e-4, 400), [0.0], np.geomspace(1e-4, 1e5, 400)])
    f = np.sort(np.concatenate([m + s * t, *(p[:, None] + s * t for p in landmarks.T)], -1), -1)
    places = np.concatenate([m, landmarks], -1)
    f = np.clip(f, places.min(-1, keepdims=True) - 600, places.max(-1, keepdims=True) + 600)
    for _ in range(8):
        values = log_integrand(f, index)
        best = np.argmax(values, -1)[:, None]
        low, high = (
            np.take_along_axis(f, np.clip(best + d, 0, f.shape[1] - 1), 1) for d in (-1, 1)
        )
        peak, top = (np.take_along_axis(v, best, 1) for v in (f, values))
        f = low + (high - low) * np.linspace(0, 1, 41)
    places = (m, peak, *(p[:, None] for p in landmarks.T))
    edges = np.sort(np.concatenate([_around(place, s) for place in places], -1), -1)
    # Differences from the top have its rounding error.
    rounding = np.maximum(1e-12, 1e-14 * np.abs(top[:, 0]))
    total = integrate(lambda f, i: np.exp(log_integrand(f, i) - top[i]), edges, rounding)
    return np.log(total) + top[:, 0]
