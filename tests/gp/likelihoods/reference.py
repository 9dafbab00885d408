"""Adaptive integration, many integrals at a time; it knows nothing of the package's quadrature."""

import numpy as np

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
    """E[g(f)] for f ~ N(mean, var).

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
