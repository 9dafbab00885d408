"""Laws of recalibrated mixtures, by formulas and sums written apart from the code."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.distributions import Normal

from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.gp import likelihoods as lik
from pyro_dgp.gp.fixed import fixed_copy
from pyro_dgp.gp.predictive import recalibration
from pyro_dgp.gp.predictive.recalibration import Recalibrated, best_exponent
from tests.quadrature import crps, moments

pytestmark = pytest.mark.statistical

ORIGIN, STEP = 0.1, 0.5
LATTICE = ORIGIN + STEP * torch.arange(-60, 61).double()
LINE = torch.linspace(-15, 15, 901).double()


def normals(S=20, N=3):
    return PredictiveMixture(Normal(torch.randn(S, N), 0.2 + torch.rand(S, N)))


def rounded_mixture(loc, scale, width, origin):
    """Of the lattice's points next to N(loc, scale^2), [S, N]; the scales are above width / 100."""
    noise = 0.01 * width
    likelihood = fixed_copy(lik.Rounded(width, origin, noise))
    var = scale.square() - noise**2
    return PredictiveMixture(likelihood.marginal(loc.unsqueeze(0), var.unsqueeze(0)))


def rounded(S=20, N=3):
    return rounded_mixture(torch.randn(S, N), 0.2 + torch.rand(S, N), STEP, ORIGIN)


def heteroscedastic(S=110, N=3):
    """So many components that scores take the coarse distribution function."""
    likelihood = fixed_copy(lik.HeteroscedasticGaussian(0.3))
    loc = torch.stack([torch.randn(S, N), -1 + 0.3 * torch.randn(S, N)])
    mixture = PredictiveMixture(likelihood.marginal(loc, 0.05 + 0.3 * torch.rand(2, S, N)))
    assert mixture._is_coarse
    return mixture


BASES = {"normal": normals, "lattice": rounded, "heteroscedastic": heteroscedastic}
every_base = pytest.mark.parametrize("make", BASES.values(), ids=BASES)
continuous = pytest.mark.parametrize(
    "make", [normals, heteroscedastic], ids=["normal", "heteroscedastic"]
)
every_exponent = pytest.mark.parametrize("k", [0.6, 1.0, 1.7])


def expected_cdf(base, x, k):
    """Of x [G] or [G, N], for all rows: [G, N]."""
    x = x if x.dim() > 1 else x.unsqueeze(-1)
    F = base.cdf(x.expand(-1, *base.batch_shape))
    return torch.sigmoid(k * torch.logit(F.clamp(1e-300, 1 - 1e-16)))


def expected_crps(base, y, k):
    """By the sum on a lattice, or the integral at each side of the target."""
    if base.lattice is not None:
        G = expected_cdf(base, LATTICE, k)
        return STEP * (G - (LATTICE.unsqueeze(-1) > y - 1e-9).double()).square().sum(0)
    return crps(lambda x: expected_cdf(base, x, k), y, -15, 15)


@every_exponent
@continuous
def test_the_density_integrates_to_one_and_to_the_cdf(make, k):
    d = Recalibrated(make(), k)
    density = d.log_prob(LINE.unsqueeze(-1).expand(-1, 3)).exp()
    found = torch.cumulative_trapezoid(density, LINE, dim=0)
    cdf = d.cdf(LINE.unsqueeze(-1).expand(-1, 3))
    torch.testing.assert_close(found, cdf[1:], rtol=0, atol=1e-3)
    torch.testing.assert_close(found[-1], torch.ones(3), rtol=0, atol=1e-5)
    # The base's density, as if G had the slope 1, integrates to something else.
    if k != 1:
        assert ((d.base.cdf(LINE.unsqueeze(-1).expand(-1, 3)) - cdf).abs().amax(0) > 0.05).all()


@every_exponent
def test_the_probabilities_on_a_lattice_are_the_cdfs_steps(k):
    d = Recalibrated(rounded(), k)
    p = d.log_prob(LATTICE.unsqueeze(-1).expand(-1, 3)).exp()
    torch.testing.assert_close(p.cumsum(0), expected_cdf(d.base, LATTICE, k), rtol=0, atol=1e-8)
    torch.testing.assert_close(p.sum(0), torch.ones(3), rtol=0, atol=1e-9)
    off = torch.full((3,), ORIGIN + 0.4 * STEP)
    torch.testing.assert_close(d.log_prob(off), d.base.log_prob(off))


@pytest.mark.parametrize("k", [0.6, 1.7])
def test_small_probabilities_of_a_lattice_do_not_cancel(k):
    """Far in both tails, where G is a power of F or of 1 - F, as of one normal it is known."""
    loc = torch.linspace(-0.4, 0.4, 9).unsqueeze(0)
    d = Recalibrated(rounded_mixture(loc, torch.ones_like(loc), 1.0, 0.0), k)
    for sign in (-1, 1):
        far = torch.arange(6.0, 46.0).unsqueeze(-1)
        z = sign * loc - far
        low, high = (torch.tensor(k * special.log_ndtr((z + s).numpy())) for s in (-0.5, 0.5))
        error = d.log_prob(sign * far) - (high + torch.log(-torch.expm1(low - high)))
        assert error[:1].abs().max() < 1e-3
        assert error.abs().max() < 0.02


@pytest.mark.parametrize("k", [0.6, 1.3, 2.2])
def test_small_probabilities_between_the_modes_of_a_lattice_do_not_cancel(k):
    mpmath.mp.dps = 80
    loc, scale = torch.tensor([3.0] * 9 + [9.0]).double().unsqueeze(-1), 0.2
    d = Recalibrated(rounded_mixture(loc, torch.full_like(loc, scale), 1.0, 0.0), k)

    def G(x):
        F = mpmath.fsum(mpmath.ncdf((x - v) / mpmath.mpf(scale)) for v in loc.flatten().tolist())
        odds = (F / (10 - F)) ** k
        return odds / (1 + odds)

    for y in (4.0, 5.0, 6.0, 7.0, 8.0):
        exact = float(mpmath.log(G(mpmath.mpf(y) + 0.5) - G(mpmath.mpf(y) - 0.5)))
        assert d.log_prob(torch.tensor([y])).item() == pytest.approx(exact, rel=1e-6, abs=1e-6)


@every_exponent
@every_base
def test_quantiles_invert_the_cdf(make, k):
    d = Recalibrated(make(), k)
    q = torch.tensor([[0.01, 0.3], [0.5, 0.99]])
    y, p = d.quantile(q), q.unsqueeze(-1).expand(2, 2, 3)
    assert y.shape == (2, 2, 3)
    torch.testing.assert_close(d.icdf(p), y)
    torch.testing.assert_close(d.quantile(0.3), y[0, 1])
    torch.testing.assert_close(d.quantile(0.5), d.base.quantile(0.5))
    if d.lattice is not None:
        assert d.lattice == (ORIGIN, STEP)
        assert (d.cdf(y) >= p - 1e-6).all()
        assert (d.cdf(y - STEP) < p).all()
        torch.testing.assert_close(d.icdf(d.cdf(y)), y)
    else:
        torch.testing.assert_close(d.cdf(y), p, rtol=1e-7, atol=1e-9)
        # With the exponent in place of its inverse, they would be other numbers.
        u = torch.sigmoid(k * torch.logit(p))
        if k != 1:
            assert (d.cdf(d.base.icdf(u)) - p).abs().max() > 0.05


@every_exponent
@every_base
def test_the_cdf_is_the_logistic_function_of_the_stretched_logit(make, k):
    d = Recalibrated(make(), k)
    x = LATTICE if d.lattice else LINE
    found = d.cdf(x.unsqueeze(-1).expand(-1, 3))
    torch.testing.assert_close(found, expected_cdf(d.base, x, k), rtol=1e-9, atol=1e-9)


@every_exponent
@every_base
def test_moments_are_sums_over_the_distribution(make, k):
    d = Recalibrated(make(), k)
    x = LATTICE if d.lattice else LINE
    G = expected_cdf(d.base, x, k)
    p = torch.cat([G[:1], G.diff(dim=0)])
    at = (x if d.lattice else torch.cat([x[:1], 0.5 * (x[1:] + x[:-1])])).unsqueeze(-1)
    mean = (p * at).sum(0)
    variance = (p * (at - mean).square()).sum(0)
    sd = variance.sqrt().max().item()
    # Where the coarse distribution function is used, it adds its own error.
    atol = (3e-3 if d.base._is_coarse else 2e-4) * sd
    torch.testing.assert_close(d.mean, mean, rtol=0, atol=atol)
    torch.testing.assert_close(d.stddev, variance.sqrt(), rtol=0, atol=atol)


@every_exponent
@every_base
def test_the_crps_is_the_integral(make, k):
    d = Recalibrated(make(), k)
    y = d.sample()
    exact = expected_crps(d.base, y, k)
    torch.testing.assert_close(d.crps(y), exact, rtol=5e-3, atol=1e-3)
    several = torch.stack([y, y + STEP])
    torch.testing.assert_close(d.crps(several)[0], d.crps(y))


VALUE = 0.3


def zero_inflated(S=3, N=3):
    likelihood = fixed_copy(lik.ZeroInflated(lik.GaussianLikelihood(0.25), VALUE))
    loc = torch.stack([-1 + torch.randn(S, N), torch.randn(S, N)])
    return PredictiveMixture(likelihood.marginal(loc, 0.05 + 0.3 * torch.rand(2, S, N)))


@every_exponent
def test_a_value_with_a_probability_beside_a_density(k):
    d = Recalibrated(zero_inflated(), k)
    value = torch.full((3,), VALUE).double()
    low, high = d.cdf(value - 1e-5), d.cdf(value)
    mass = d.log_prob(value).exp()
    torch.testing.assert_close(mass, high - low, rtol=0, atol=1e-4)
    beside = torch.tensor([VALUE - 1e-5, VALUE + 1e-5])
    x = torch.cat([LINE[(LINE - VALUE).abs() > 1e-5], beside]).sort().values
    x = x.unsqueeze(-1).expand(-1, 3)
    density = torch.trapezoid(d.log_prob(x).exp(), x, dim=0)
    torch.testing.assert_close(density + mass, torch.ones(3), rtol=0, atol=5e-3)
    y = d.sample((1000,))
    share = (y == VALUE).double().mean(0)
    torch.testing.assert_close(share, mass, rtol=0, atol=0.07)
    sd = d.stddev
    torch.testing.assert_close(d.mean, y.mean(0), rtol=0, atol=5 * sd.max().item() / 1000**0.5)
    torch.testing.assert_close(sd, y.std(0), rtol=0.15, atol=0)
    torch.testing.assert_close(d.quantile(float(0.5 * (low + high)[0]))[0], value[0])


@every_base
def test_the_exponent_1_changes_nothing(make):
    base = make()
    d, y = Recalibrated(base, 1), base.sample((5,))
    torch.testing.assert_close(d.cdf(y), base.cdf(y))
    torch.testing.assert_close(d.log_prob(y), base.log_prob(y))
    torch.testing.assert_close(d.quantile(0.2), base.quantile(0.2))
    sd = base.stddev.max().item()
    torch.testing.assert_close(d.mean, base.mean, rtol=0, atol=3e-3 * sd)
    torch.testing.assert_close(d.stddev, base.stddev, rtol=3e-3, atol=0)
    torch.testing.assert_close(d.crps(y), base.crps(y), rtol=5e-3, atol=1e-3)


@every_exponent
@every_base
def test_samples_have_the_distribution(make, k):
    d, n = Recalibrated(make(N=2), k), 2000
    y = d.sample((n,))
    assert y.shape == (n, 2)
    pit = d.cdf(y)
    if d.lattice is not None:
        steps = (y - ORIGIN) / STEP
        torch.testing.assert_close(steps, steps.round())
        below = d.cdf(y - STEP)
        pit = below + torch.rand(n, 2) * (pit - below)
    for row in pit.T:
        assert stats.kstest(row.numpy(), "uniform").pvalue > 1e-3
    if k == 1.7 and d.lattice is None:  # those of the base are not
        assert stats.kstest(d.cdf(d.base.sample((n,)))[:, 0].numpy(), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("k", [0.6, 1.7])
def test_the_tails_of_normals_are_exact(k, sign):
    y = sign * torch.tensor([5.0, 9.0, 50.0])
    below, above = (special.log_ndtr(t.numpy()) for t in (y, -y))
    exact = stats.norm.logpdf(y) + math.log(k) + (k - 1) * (below + above)
    exact -= 2 * np.logaddexp(k * below, k * above)
    for dtype in (torch.float32, torch.float64):
        base = PredictiveMixture(Normal(torch.zeros(2, 3), torch.ones(2, 3))).to(dtype)
        found = Recalibrated(base, k).log_prob(y.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), torch.as_tensor(exact), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_exponent
@every_base
def test_far_values_have_finite_scores(make, k, dtype):
    base = make().to(dtype)
    d = Recalibrated(base, k)
    sd = base.stddev.max()
    for sign in (-1, 1):
        far = (sign * 50 * sd / STEP).round() * STEP + ORIGIN
        y = far.expand(3).to(dtype)
        for value in (d.log_prob(y), d.cdf(y), d.crps(y)):
            assert value.dtype == dtype
            assert value.isfinite().all()
        assert (d.log_prob(y) < -20).all()
        assert not d.log_prob(1e30 * y).isnan().any()
        if base._is_coarse:  # of which F is 0 or 1 there, up to rounding
            assert (d.log_prob(y) - base.log_prob(y)).abs().max() < 40 * abs(k - 1) + 1
    assert d.quantile(torch.tensor([1e-6, 1 - 1e-6])).isfinite().all()
    for value in (d.mean, d.variance, d.sample()):
        assert value.dtype == dtype
        assert value.isfinite().all()


@every_base
def test_an_affine_map_moves_everything(make):
    d = Recalibrated(make(), 1.7)
    moved, y = d.affine(3.0, 2.0), d.sample()
    assert isinstance(moved, Recalibrated)
    assert moved.exponent == 1.7
    log_scale = 0.0 if d.lattice else math.log(2.0)
    torch.testing.assert_close(moved.log_prob(3 + 2 * y), d.log_prob(y) - log_scale)
    torch.testing.assert_close(moved.cdf(3 + 2 * y), d.cdf(y))
    torch.testing.assert_close(moved.quantile(0.8), 3 + 2 * d.quantile(0.8))
    torch.testing.assert_close(moved.mean, 3 + 2 * d.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(moved.stddev, 2 * d.stddev, rtol=1e-3, atol=0)
    torch.testing.assert_close(moved.crps(3 + 2 * y), 2 * d.crps(y), rtol=5e-3, atol=1e-3)


def test_rows_and_their_blocks(monkeypatch):
    d = Recalibrated(normals(N=5), 0.6)
    y = d.base.sample((2,))
    assert d.num_components == 20
    assert (d.batch_shape, d.event_shape, d.event_dim) == ((5,), (), 0)
    some = d[[3, 1]]
    torch.testing.assert_close(some.log_prob(y[:, [3, 1]]), d.log_prob(y)[:, [3, 1]])
    whole = d.crps(y), d.mean, d.variance
    monkeypatch.setattr(recalibration, "_ROWS", 2)
    for found, expected in zip((d.crps(y), d.mean, d.variance), whole, strict=True):
        torch.testing.assert_close(found, expected)
    assert d.sample((3, 4)).shape == (3, 4, 5)
    assert d.crps(torch.zeros(1)).shape == (5,)
    torch.testing.assert_close(d.expand((2, 5)).log_prob(y), d.log_prob(y))


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1e-6), (1e4, 1e-3), (-5.0, 1e6)])
def test_moments_of_any_location_and_scale(loc, scale):
    base = normals()
    d, moved = Recalibrated(base, 1.7), Recalibrated(base.affine(loc, scale), 1.7)
    torch.testing.assert_close((moved.mean - loc) / scale, d.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(moved.stddev / scale, d.stddev, rtol=1e-4, atol=0)


@every_exponent
def test_moments_of_smooth_mixtures_are_exact(k):
    d = Recalibrated(normals(S=60), k)
    _, mean, variance = moments(d.log_prob(LINE.unsqueeze(-1).expand(-1, 3)).exp(), LINE)
    torch.testing.assert_close(d.mean, mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(d.stddev, variance.sqrt(), rtol=0, atol=1e-5)


def test_moments_of_rough_rows_take_more_points():
    loc, scale = torch.randn(60, 4), 0.2 + torch.rand(60, 4)
    scale[:, 2] = 1e-4
    d = Recalibrated(PredictiveMixture(Normal(loc, scale)), 1.7)
    found, simpson = torch.stack([d.mean, d.variance]), recalibration._moments_by_rounds(d)
    torch.testing.assert_close(found[:, 2], simpson[:, 2])
    assert ((found - simpson).abs() > 1e-9).any(0).tolist() == [True, True, False, True]


def test_moments_take_the_widened_tails():
    base = PredictiveMixture(Normal(torch.zeros(1, 1), torch.ones(1, 1)))
    below = torch.linspace(-12, 0, 20001)
    G = torch.sigmoid(0.5 * torch.logit(torch.special.ndtr(below)))
    variance = torch.trapezoid(-4 * below * G, below).reshape(1)
    found = Recalibrated(base, 0.5).stddev
    torch.testing.assert_close(found, variance.sqrt(), rtol=3e-6, atol=0)


def test_moments_between_far_components():
    """Of N(0, 1) and N(1000, 1), of which G moves the mass towards the middle."""
    loc, k = torch.tensor([0.0, 1e3]).unsqueeze(-1), 1.7
    d = Recalibrated(PredictiveMixture(Normal(loc, torch.ones_like(loc))), k)
    x = torch.linspace(-10, 10, 20001)
    p = torch.sigmoid(k * torch.logit(0.5 * torch.special.ndtr(x))).diff()
    x = 0.5 * (x[1:] + x[:-1])
    # By symmetry, half of the mass lies this far from the mean.
    distance = 500 - x
    torch.testing.assert_close(d.mean, torch.full((1,), 500.0), rtol=0, atol=0.05)
    variance = (2 * p * distance.square()).sum().reshape(1)
    torch.testing.assert_close(d.stddev, variance.sqrt(), rtol=1e-4, atol=0)


# The best exponent of held-out rows

GRID = torch.linspace(-8, 8, 161).double()
WIDTH = torch.full((161,), 0.1).double()


def held_out(spread, n=1500):
    """Forecasts N(m, spread^2) of targets from N(m, 1)."""
    m = torch.randn(n, 1)
    y = m + torch.randn(n, 1)
    return torch.special.ndtr((GRID - m) / spread), y <= GRID, WIDTH


@pytest.mark.parametrize("spread", [1.5, 0.65])
def test_the_best_exponent_has_the_smallest_score(spread, monkeypatch):
    F, H, width = held_out(spread)
    k = best_exponent(F, H, width)
    tried = torch.linspace(math.log(0.5), math.log(2.5), 25).exp()
    score = [
        (torch.sigmoid(c * torch.logit(F, 1e-15)) - H.double()).square().matmul(width).mean()
        for c in tried
    ]
    assert k == pytest.approx(tried[torch.stack(score).argmin()].item())
    # A logistic forecast would need the ratio of scales.
    assert k == pytest.approx(spread, rel=0.25)
    monkeypatch.setattr(recalibration, "_CHUNK", 500 * len(GRID))
    assert best_exponent(F, H, width) == k
    assert best_exponent(F, H, width, [0.9, 1.1]) == (1.1 if spread > 1 else 0.9)


def test_calibrated_forecasts_stay_as_they_are():
    assert best_exponent(*held_out(1.0)) == 1.0


def test_few_rows_prove_nothing():
    assert best_exponent(*held_out(1.5, n=1)) == 1.0
    found = []
    for seed in range(20):
        torch.manual_seed(seed)
        F, H, width = held_out(1.0, n=5)
        k = best_exponent(F, H, width)
        score = [(torch.sigmoid(c * torch.logit(F, 1e-15)) - H.double()).square() @ width
                 for c in (1.0, k)]  # fmt: skip
        gain = score[0] - score[1]
        assert k == 1 or gain.mean() > gain.std() / math.sqrt(5)
        found.append(k)
    assert found.count(1.0) > 5
