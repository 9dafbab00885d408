"""Whether antithetic or quasi-Monte Carlo draws of z help the encoder: its signal-to-noise ratio.

The posterior of z is N(0, 1) and the guide N(m, s^2), m = 0.5 and s = 1.2. Besides independent
draws z_k = m + s e_k there are pairs e, -e, and a lattice: e_k = Phi^-1(u + k/K mod 1), where only
u is random. DReG is the gradient that is right for each kind of draws (.docs/bounds.md).

python -m tests.benchmarks.dependent_draws
"""

import numpy as np
from scipy.special import ndtri

M, S = 0.5, 1.2
DRAWS = ("independent", "antithetic", "lattice")


def noise(draws, K, size, rng):
    if draws == "antithetic":
        half = rng.standard_normal((size, K // 2))
        return np.concatenate([half, -half], 1)
    if draws == "lattice":
        return ndtri((rng.random((size, 1)) + np.arange(K) / K) % 1)
    return rng.standard_normal((size, K))


def estimates(draws, e):
    """The bound; REG, DReG and the sum with w~^2 as if draws were independent, by m and log s."""
    z = M + S * e
    log_w = np.log(S) - z**2 / 2 + e**2 / 2
    bound = np.log(np.exp(log_w).mean(1))
    w = np.exp(log_w - bound[:, None]) / e.shape[1]
    slope = -z + e / S  # d log w / dz
    found = [bound]
    found += [-(w * z).sum(1), (w * (1 - z * S * e)).sum(1)]
    squares = [(w**2 * slope * path).sum(1) for path in (np.ones_like(e), S * e)]
    if draws == "independent":
        found += squares
    elif draws == "antithetic":  # one weight W = w(z) + w(2 m - z) per pair, with a score of m
        (w1, w2), (s1, s2), (_, z2) = (np.split(x, 2, 1) for x in (w, slope, z))
        by_z = (w1 + w2) * (w1 * s1 - w2 * s2)
        found += [(by_z - 2 * w2 * z2).sum(1), (by_z * S * np.split(e, 2, 1)[0]).sum(1)]
    else:  # dL/du, times the mean of dz/dm or dz/d log s along the curve
        q = np.exp(-(e**2) / 2)
        by_u = (w * slope / q).sum(1)
        found += [by_u * (w * path * q).sum(1) for path in (1.0, S * e)]
    return np.stack(found + squares)


if __name__ == "__main__":
    print(
        "| draws | K | gap | REG: m | log s | DReG: m | log s | w~^2: m | log s |\n"
        + "|---" * 9
        + "|"
    )
    for draws in DRAWS:
        for K in (4, 16, 64, 256):
            rng, batch = np.random.default_rng(0), 2**22 // K
            found = [estimates(draws, noise(draws, K, batch, rng)) for _ in range(24)]
            values = np.concatenate(found, 1)
            mean, error = values.mean(1), values.std(1) / np.sqrt(values.shape[1])
            gap = f"{-mean[0]:.1e}" if -mean[0] > 3 * error[0] else f"< {3 * error[0]:.0e}"
            floor = 3 / np.sqrt(values.shape[1])
            snr = np.abs(mean / error)[1:] * floor / 3
            cells = [f"{x:.2g}" if x > floor else f"< {floor:.1g}" for x in snr]
            print(f"| {draws} | {K} | {gap} | {' | '.join(cells)} |")
