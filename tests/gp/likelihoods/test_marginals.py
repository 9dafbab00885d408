"""The predictive distribution: f integrated, and mixtures over draws."""

import itertools
import math
from functools import partial

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats

from pyro_dgp.gp import Exponentiated, Likelihood, Recalibrated
from pyro_dgp.gp import likelihoods as lik
from pyro_dgp.gp.fixed import fixed_copy
from pyro_dgp.gp.predictive.mixture import PredictiveMixture
from tests.gp.likelihoods.cases import CASES
from tests.quadrature import even_nodes, gauss_legendre

pytestmark = pytest.mark.statistical

# The references have a relative error of 1e-12 of a probability, which where it is nearly 1 is an
# absolute error of its logarithm; log densities of 1000 trials have as much from rounding.
ROUNDING = 1e-11

every_case = pytest.mark.parametrize("name", CASES)
# Products of Gauss-Hermite nodes do not resolve noise that is narrow beside f, and a quadrature
# over f that does not know of a kink of the density there is not exact.
OWN = [name for name, case in CASES.items() if case.loose]
exact_cases = pytest.mark.parametrize("name", [n for n in CASES if n not in OWN])
# Without a finite fourth moment, the draws' variance says nothing.
HEAVY = ["student-t, df 4", "student-t, df 1.5, small scale"]


@exact_cases
def test_the_log_density_is_the_integrals_logarithm_also_where_it_underflows(name):
    case = CASES[name]
    y, loc, var, given = case.grid()
    found = case.make().marginal(loc, var, **given).log_prob(y).detach().numpy()
    exact = case.log_marginal(y, loc, var, **given)
    assert np.all(np.abs(found - exact) <= 1e-6 * np.abs(exact) + ROUNDING)


@pytest.mark.parametrize("concentration", [4.0, 30.0, 1000.0])
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0])
def test_averages_of_proportions_share_the_nodes_of_f(concentration, scale, monkeypatch):
    """With a function value at every node of every component, they took seconds a row."""
    S, N = 300, 2
    random = torch.Generator().manual_seed(0)
    loc = 0.7 * torch.randn(1, S, N, generator=random)
    var = (scale * (0.5 + torch.rand(1, S, N, generator=random))).square()
    likelihood = fixed_copy(lik.Beta(concentration=concentration))
    parts = [
        likelihood.marginal(loc[:, some], var[:, some]) for some in (slice(120), slice(120, S))
    ]
    y = torch.tensor([1e-9, 0.01, 0.3, 0.5, 0.99, -torch.inf, torch.inf]).unsqueeze(1).expand(-1, N)
    exact = torch.cat([part.cdf(y[:, None]) for part in parts], 1).mean(1)
    calls = []
    whole = special.betainc

    def counted(a, b, x):
        found = whole(a, b, x)
        calls.append(found.size)
        return found

    monkeypatch.setattr(special, "betainc", counted)
    found = PredictiveMixture(parts).affine(1.0, 2.0)
    torch.testing.assert_close(found.cdf(1 + 2 * y), exact, rtol=0, atol=1e-9)
    assert sum(calls) <= 10 * S * y.numel()
    calls.clear()
    p = torch.tensor([0.05, 0.5, 0.95])
    x = found.quantile(p)
    torch.testing.assert_close(found.cdf(x), p.unsqueeze(1).expand_as(x), rtol=0, atol=1e-9)
    assert sum(calls) <= 600 * S * x.numel()


@pytest.mark.parametrize(
    "make",
    [
        partial(kind, 1.0, shape)
        for kind in (lik.Gamma, lik.NegativeBinomial)
        for shape in (0.1, 2.0, 5.0, 40.0, 1000.0)
    ]
    + [partial(lik.Poisson, rate) for rate in (0.1, 1.0, 10.0)]
    + [partial(lik.StudentT, 0.1, df) for df in (1.1, 1.5, 4.0, 8.0, 16.0, 100.0)],
)
def test_averages_of_other_distributions_share_the_nodes_of_f(make):
    S, N = 300, 2
    random = torch.Generator().manual_seed(0)
    loc = 0.5 + 0.7 * torch.randn(1, S, N, generator=random)
    var = (0.3 * (0.5 + torch.rand(1, S, N, generator=random))).square()
    likelihood = fixed_copy(make())
    loc = likelihood.functions(loc.unsqueeze(-1), var.unsqueeze(-1))[0].squeeze(-1)
    part = likelihood.marginal(loc, var)
    y = torch.tensor([0.0, 1.0, 3.0, 20.0, 400.0, -torch.inf, torch.inf])
    y = y.unsqueeze(1).expand(-1, N)
    average = part.averaged()
    assert average.nodes.shape[-1] < 3 * S
    torch.testing.assert_close(average.cdf(y), part.cdf(y[:, None]).mean(1), rtol=0, atol=1e-8)


LOG_DENSITY_CASES = [
    (partial(lik.Beta, concentration=4.0), [1e-9, 0.01, 0.3, 0.5, 0.99, 1 - 1e-9, -1.0, 2.0]),
    (partial(lik.Beta, concentration=1000.0), [1e-9, 0.01, 0.3, 0.5, 0.99, 1 - 1e-9, 0.0, 1.0]),
    (partial(lik.Gamma, 1.0, 2.0), [1e-9, 0.01, 0.5, 3.0, 40.0, 1e4, -1.0, 0.0]),
    (partial(lik.Gamma, 1.0, 40.0), [1e-9, 0.01, 0.5, 3.0, 40.0, 1e4, 1e30, torch.nan]),
    (partial(lik.NegativeBinomial, 1.0, 5.0), [0.0, 1.0, 3.0, 20.0, 400.0, 1e5, -1.0, 2.5]),
    (partial(lik.Poisson), [0.0, 1.0, 3.0, 20.0, 400.0, 1e5, -1.0, 2.5]),
    (partial(lik.StudentT, 0.1, 4.0), [-4.0, 0.3, 1.0, 5.0, 20.0, 1e4, -1e4, torch.nan]),
]


@pytest.mark.parametrize("gap", [0.0, 8.0])
@pytest.mark.parametrize(("make", "y"), LOG_DENSITY_CASES)
def test_log_densities_of_many_components_share_the_nodes_of_f(make, y, gap, monkeypatch):
    """In the bulk, the tails, between two groups of components, and where nothing is possible."""
    S, N = 300, 2
    random = torch.Generator().manual_seed(0)
    loc = 0.7 * torch.randn(1, S, N, generator=random)
    loc[:, ::2] += gap
    var = (0.3 * (0.5 + torch.rand(1, S, N, generator=random))).square()
    likelihood = fixed_copy(make())
    parts = [
        likelihood.marginal(loc[:, some], var[:, some]) for some in (slice(120), slice(120, S))
    ]
    y = torch.tensor(y).unsqueeze(1).expand(-1, N)
    possible = likelihood.support.check(y)
    inside = torch.where(possible, y, 0.5 if not likelihood.discrete else 1.0)
    exact = torch.cat([part.log_prob(inside[:, None]) for part in parts], 1)
    exact = torch.where(possible, exact.logsumexp(1) - math.log(S), -torch.inf)
    exact = torch.where(y.isnan(), torch.nan, exact)

    values = []
    whole = type(likelihood).conditional_log_prob

    def counted(self, y, f, **given):
        found = whole(self, y, f, **given)
        values.append(found.numel())
        return found

    found = PredictiveMixture(parts, validate_args=False)
    torch.testing.assert_close(found.log_prob(y), exact, rtol=1e-7, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(
        found[1:].log_prob(y[:, 1:]), exact[:, 1:], rtol=1e-7, atol=1e-9, equal_nan=True
    )
    # On another scale: a density is per unit, a probability is not.
    per_unit = 0.0 if likelihood.discrete else math.log(2.0)
    moved = found.affine(1.0, 2.0).log_prob(1 + 2 * inside)
    expected = torch.where(possible, exact - per_unit, moved)
    torch.testing.assert_close(moved, expected, rtol=1e-7, atol=1e-9)
    monkeypatch.setattr(type(likelihood), "conditional_log_prob", counted)
    found.log_prob(y[2:4])  # in the bulk
    # Between rates of 1 and 10,000, those of Poisson distributions are too narrow for few nodes.
    assert sum(values) <= (200 if gap and type(likelihood) is lik.Poisson else 10) * S * N * 2


def test_log_densities_where_components_far_from_all_nodes_explain_the_target():
    S = 300
    loc, var = torch.zeros(1, S, 1), torch.full((1, S, 1), 0.01)
    loc[:, ::2] = 12.0  # 60 standard deviations to either side of the target
    wide, one = torch.ones(1, S, 1), torch.zeros(1, S, 1)
    one[0, 0], wide[0, 0] = 8.4, 1e-4  # at the edge of the others
    for shape, y, *moments in ((300.0, 5.4, loc, var), (5.0, 11.0, one, wide)):
        part = fixed_copy(lik.Gamma(1.0, shape)).marginal(*moments)
        y = torch.tensor([y]).exp()
        exact = part.log_prob(y).logsumexp(0) - math.log(S)
        torch.testing.assert_close(PredictiveMixture(part).log_prob(y), exact, rtol=1e-7, atol=0)


@pytest.mark.parametrize("df", [100.0, 1e4, 1e6])
def test_student_t_near_a_normal_distribution_in_float32(df):
    torch.set_default_dtype(torch.float32)
    part = fixed_copy(lik.StudentT(0.3, df)).marginal(
        0.3 * torch.randn(1, 300, 1), torch.full((1, 300, 1), 0.01)
    )
    x = torch.linspace(-4, 4, 2001).unsqueeze(1)
    density = PredictiveMixture(part).log_prob(x).double().exp()
    assert abs(density.mean() * 8 - 1) < 1e-3


def test_a_trained_student_t_has_all_derivatives():
    likelihood = lik.StudentT(0.2, 3.0)
    part = likelihood.marginal(torch.randn(1, 200, 3), 0.1 * torch.rand(1, 200, 3))
    PredictiveMixture(part).cdf(torch.tensor([-1.0, 0.5, 3.0])).sum().backward()
    assert all(p.grad.abs() > 1e-5 for p in likelihood.parameters())


def test_derivatives_of_log_densities_by_the_target():
    """Also at the end of the support, where nodes of f have an infinite logarithm."""
    part = fixed_copy(lik.Beta()).marginal(torch.randn(1, 200, 3), 0.1 + torch.rand(1, 200, 3))
    mixture = PredictiveMixture(part, validate_args=False)
    y = torch.tensor([0.3, 0.8, 1.0], requires_grad=True)
    mixture.log_prob(y).sum().backward()
    assert y.grad.isfinite().all()
    h = 1e-5
    slope = (mixture.log_prob(y.detach() + h) - mixture.log_prob(y.detach() - h))[:2] / (2 * h)
    torch.testing.assert_close(y.grad[:2], slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [lik.Beta, lik.Gamma, lik.StudentT])
def test_log_densities_that_share_nodes_have_the_dtype_of_the_components(kind):
    """And targets keep their digits."""
    torch.set_default_dtype(torch.float32)
    loc, var = torch.randn(300, 4), 0.1 + torch.rand(300, 4)
    mixture = PredictiveMixture(fixed_copy(kind()).marginal(loc[None], var[None])).affine(1.0, 2.0)
    exact = mixture.to(torch.float64)
    y = 1 + 2 * torch.tensor([1e-4, 0.3, 0.9, 1 - 1e-6], dtype=torch.float64)
    for given in (y, y.float(), y[1], y.expand(3, 4)):
        found = mixture.log_prob(given)
        assert found.dtype == torch.float32
        expected = exact.log_prob(given.double())
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_distribution_function_of_student_t_and_its_derivative():
    y = torch.tensor([-torch.inf, -1e8, -3.0, 0.0, 0.2, 5.0, torch.inf], requires_grad=True)
    p = lik.StudentT(0.5, 1.5).conditional(torch.tensor(0.2))
    found = p.cdf(y)
    found.sum().backward()
    exact = stats.t(1.5, 0.2, 0.5)
    at = y.detach().numpy()
    np.testing.assert_allclose(found.detach(), exact.cdf(at), rtol=1e-12)
    np.testing.assert_allclose(y.grad, exact.pdf(at), rtol=1e-12)


@pytest.mark.parametrize("name", OWN)
def test_ones_own_log_density_is_near_where_f_is_no_wider_than_the_noise(name):
    case = CASES[name]
    y, loc, var, _ = case.grid(means=(0.0, 0.4, 3.0), variances=(1e-8, 1e-2, 0.1))
    found = case.make().marginal(loc, var).log_prob(y).detach().numpy()
    np.testing.assert_allclose(found, case.log_marginal(y, loc, var), rtol=0.01, atol=0.01)


@exact_cases
def test_the_log_density_in_float32(name):
    case = CASES[name]
    torch.set_default_dtype(torch.float32)
    y, loc, var, given = case.grid(means=(-1.0, 0.4, 3.0), variances=(1e-4, 0.3, 9.0))
    y, loc, var, given = (
        y.float(),
        loc.float(),
        var.float(),
        {k: v.float() for k, v in given.items()},
    )
    found = case.make().marginal(loc, var, **given).log_prob(y)
    assert found.dtype == torch.float32
    exact = case.log_marginal(y, loc, var, **given)
    np.testing.assert_allclose(found.detach(), exact, rtol=2e-4, atol=2e-4)


# Rows of moderate mean and variance

MEANS, VARIANCES = (0.3, 1.0, -0.7), (0.2, 0.5, 0.01)


def moderate(case):
    """A likelihood, loc and var [J, 3], and covariates [3]."""
    loc, var = case._functions(np.array(MEANS), np.array(VARIANCES))
    given = {k: torch.tensor(v[1:4]) for k, v in case.covariates.items()}
    loc, var = torch.tensor(loc), torch.tensor(np.minimum(var, 1.0))
    return fixed_copy(case.make()), loc, var, given


def lattice_points(likelihood):
    origin, step = likelihood.lattice()
    if isinstance(likelihood, lik.Rounded):
        return origin + step * torch.arange(-100, 101)
    last = 1 if type(likelihood) is lik.Bernoulli else getattr(likelihood, "num_classes", 0) - 1
    if isinstance(likelihood, lik.Binomial):
        last = 5
    return torch.arange(0, last + 1 if last > 0 else 30_000).double()


class Line:
    """Targets as a function of t, with panels of nodes of t, between which jumps may be."""

    def __init__(self, likelihood, jumps=()):
        inner = getattr(likelihood, "likelihood", likelihood)
        if isinstance(inner, (lik.Gamma, lik.LogNormal)):
            # A gamma of shape 1/2 has 1e-8 of its mass below e^-37.
            edges, at, slope = np.linspace(-60, 12, 501), np.exp, np.exp
        elif isinstance(inner, lik.Beta):
            ends = (-700.0, -30.0, -6.0, 6.0, 36.0)
            parts = [np.linspace(a, b, 126)[:-1] for a, b in itertools.pairwise(ends)]
            edges, at = np.concatenate([*parts, ends[-1:]]), special.expit
            slope = lambda t: special.expit(t) * special.expit(-t)  # noqa: E731
        else:
            edges = np.linspace(-25, 25, 501)
            at, slope = (lambda t: 0.3 + 0.05 * np.sinh(t)), (lambda t: 0.05 * np.cosh(t))
            edges = np.sort([*edges, *np.arcsinh((np.array(jumps) - 0.3) / 0.05)])
        t, w = (t.numpy() for t in gauss_legendre(edges, 8))
        self.weights = torch.tensor(w * slope(t))
        self.y, self.ends = torch.tensor(at(t)), torch.tensor(at(edges))


def densities(marginal, line):
    """Density times weight at every node, [panels, 8, rows]."""
    p = marginal.log_prob(line.y.unsqueeze(-1)).exp()
    return p * line.weights.unsqueeze(-1)


def tolerance(name):
    return 2e-2 if name in OWN else 1e-6


# Much of its mass is nearer to 1 than any number.
NEAR_ONE = "beta, concentration 0.5"

continuous = pytest.mark.parametrize("name", [n for n, c in CASES.items() if not c.make().discrete])
discrete = pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.make().discrete])


def atom(name, marginal):
    if "inflated" not in name:
        return torch.zeros(3), 0.0
    value = CASES[name].value
    return marginal.log_prob(torch.tensor(value)).exp(), value


@continuous
def test_the_density_integrates_to_one_and_the_cdf_is_its_integral(name):
    likelihood, loc, var, _ = moderate(CASES[name])
    marginal, line = likelihood.marginal(loc, var), Line(likelihood)
    mass = densities(marginal, line).sum(1).cumsum(0)
    share, value = atom(name, marginal)
    if name != NEAR_ONE:
        assert (mass[-1] + share - 1).abs().max() < tolerance(name)
    if name == "own heteroscedastic laplace":
        return  # products of nodes see no step of the distribution function
    below = mass + share * (line.ends[1:, None] >= value)
    cdf = marginal.cdf(line.ends[1:, None])
    # Next to 1, numbers are too far apart for a density that has a pole there.
    some = line.ends[1:] < 1 - 1e-9 if "beta" in name else slice(None)
    assert (cdf - below)[some].abs().max() < tolerance(name)


@continuous
def test_mean_and_variance_are_those_of_the_density(name):
    if name == NEAR_ONE:
        return
    likelihood, loc, var, _ = moderate(CASES[name])
    marginal, line = likelihood.marginal(loc, var), Line(likelihood)
    p, (share, value) = densities(marginal, line), atom(name, marginal)
    mean = (p * line.y.unsqueeze(-1)).sum((0, 1)) + share * value
    rtol = max(tolerance(name), 1e-5)
    torch.testing.assert_close(marginal.mean, mean, rtol=rtol, atol=rtol)
    if name == "student-t, df 1.5, small scale":
        assert marginal.variance.isinf().all()
        return
    if name == "student-t, df 4":
        return  # the integral's last part beyond the line is 1e-7 of it, but converges as 1 / y^2
    square = (p * (line.y.unsqueeze(-1) - mean).square()).sum((0, 1))
    square = square + share * (value - mean).square()
    torch.testing.assert_close(marginal.variance, square, rtol=5 * rtol, atol=rtol)


@discrete
def test_probabilities_sum_to_one_and_to_the_cdf_and_to_the_moments(name):
    likelihood, loc, var, given = moderate(CASES[name])
    marginal, y = likelihood.marginal(loc, var, **given), lattice_points(likelihood)
    if "total_count" in given:
        y = torch.arange(0, 6).double()
        given = {"total_count": torch.full((3,), 5.0)}
        marginal = likelihood.marginal(loc, var, **given)
    p = torch.cat([marginal.log_prob(k.unsqueeze(-1)).exp() for k in y.split(2000)])
    assert (p.sum(0) - 1).abs().max() < 1e-6
    some = torch.arange(len(y)) % max(1, len(y) // 300) == 0
    some[:50] = True
    cdf = marginal.cdf(y[some].unsqueeze(-1))
    torch.testing.assert_close(cdf, p.cumsum(0)[some], rtol=0, atol=1e-6)
    mean = (p * y.unsqueeze(-1)).sum(0)
    variance = (p * (y.unsqueeze(-1) - mean).square()).sum(0)
    torch.testing.assert_close(marginal.mean, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(marginal.variance, variance, rtol=1e-4, atol=1e-6)


@every_case
def test_samples_have_its_moments_and_its_distribution_function(name):
    likelihood, loc, var, given = moderate(CASES[name])
    marginal, n = likelihood.marginal(loc, var, **given), 200_000
    draws = marginal.sample((n,)).double()
    assert draws.shape == (n, 3)
    mean, variance = draws.mean(0), draws.var(0)
    if name != "student-t, df 1.5, small scale":
        assert ((marginal.mean - mean).abs() < 4 * (variance / n).sqrt() + 1e-12).all()
    # Quadrature's own error, of a kink that it does not know.
    slack = 0.02 if name in OWN else 0.0
    if name not in HEAVY:
        spread = ((draws - mean).square().var(0) / n).sqrt()
        assert ((marginal.variance - variance).abs() < (4 + 50 * slack) * spread + 1e-12).all()
    if name == "own heteroscedastic laplace":
        return
    for q in (0.05, 0.5, 0.9):
        y = draws.quantile(q, 0) if draws.numel() < 2**20 else draws.sort(0).values[int(q * n)]
        share = (draws <= y).double().mean(0)
        assert ((marginal.cdf(y) - share).abs() < 4 * 0.5 / math.sqrt(n) + slack).all()


# Mixtures

smooth = [n for n in CASES if not CASES[n].make().discrete and n != "own heteroscedastic laplace"]


def mixture(case, S=4):
    """S components of two rows."""
    m, v = np.meshgrid(np.linspace(-0.6, 1.1, S), [0.05, 0.4], indexing="ij")
    loc, var = (torch.tensor(t).reshape(-1, S, 2) for t in case._functions(m.ravel(), v.ravel()))
    given = {k: torch.tensor(values[2:4]) for k, values in case.covariates.items()}
    return PredictiveMixture(fixed_copy(case.make()).marginal(loc, var.clamp_max(1.0), **given))


@every_case
def test_a_mixtures_density_is_the_mean_of_its_components(name):
    case = CASES[name]
    mix = mixture(case)
    y = torch.tensor(case.y[2:4] if len(case.y) > 3 else case.y[:2])
    found = mix.log_prob(y)
    each = mix.components.log_prob(y)
    torch.testing.assert_close(found, each.logsumexp(0) - math.log(4))
    torch.testing.assert_close(mix.expand((3, 2)).log_prob(y), found.expand(3, 2))
    torch.testing.assert_close(mix[1:].log_prob(y[1:]), found[1:])
    torch.testing.assert_close(mix[[1, 0]].log_prob(y.flip(0)), found.flip(0))
    single = mix.to(torch.float32)
    assert single.mean.dtype == torch.float32
    torch.testing.assert_close(single.log_prob(y.float()).double(), found, rtol=1e-3, atol=1e-3)


@every_case
def test_an_affine_map_of_a_mixture_keeps_probabilities(name):
    case = CASES[name]
    mix = mixture(case)
    y = torch.tensor(case.y[2:4] if len(case.y) > 3 else case.y[:2])
    moved = mix.affine(3.0, 2.0)
    log_scale = 0.0 if case.make().discrete else math.log(2.0)
    if "inflated" in name:
        y = torch.tensor([0.4, 9.0])
    torch.testing.assert_close(moved.log_prob(3 + 2 * y), mix.log_prob(y) - log_scale)
    torch.testing.assert_close(moved.mean, 3 + 2 * mix.mean)
    torch.testing.assert_close(moved.variance, 4 * mix.variance)
    if name == "own heteroscedastic laplace":
        return
    torch.testing.assert_close(moved.cdf(3 + 2 * y), mix.cdf(y))
    q = torch.tensor([0.2, 0.7])
    torch.testing.assert_close(moved.quantile(q), 3 + 2 * mix.quantile(q))
    torch.testing.assert_close(moved.crps(3 + 2 * y), 2 * mix.crps(y), rtol=2e-3, atol=1e-6)


def test_an_affine_map_keeps_the_probability_of_a_value():
    mix = mixture(CASES["zero-inflated gaussian"])
    moved = mix.affine(3.0, 2.0)
    torch.testing.assert_close(moved.log_prob(3 * torch.ones(2)), mix.log_prob(torch.zeros(2)))


@pytest.mark.parametrize("name", smooth)
def test_a_mixtures_quantiles_invert_its_distribution_function(name):
    mix = mixture(CASES[name])
    q = torch.tensor([0.01, 0.3, 0.5, 0.8, 0.9 if name == NEAR_ONE else 0.999])
    y = mix.quantile(q)
    assert y.shape == (5, 2)
    if "inflated" in name:
        # Where it jumps, the smallest that will do.
        step = 1e-6 * (1 + y.abs())
        assert (mix.cdf(y + step) >= q[:, None] - 1e-9).all()
        assert (mix.cdf(y - step) <= q[:, None] + 1e-9).all()
    else:
        torch.testing.assert_close(mix.cdf(y), q[:, None].expand(5, 2), rtol=1e-7, atol=1e-9)


@discrete
def test_a_discrete_quantile_is_the_smallest_target_with_enough_below_it(name):
    mix = mixture(CASES[name])
    _, step = CASES[name].make().lattice()
    q = torch.tensor([0.01, 0.3, 0.5, 0.9, 0.999])
    y = mix.quantile(q)
    assert (mix.cdf(y) >= q[:, None] - 1e-6).all()
    assert (mix.cdf(y - step) < q[:, None]).all()


@pytest.mark.parametrize("name", smooth)
def test_a_mixtures_crps_is_the_integral(name):
    case = CASES[name]
    likelihood = case.make()
    jumps = [likelihood.value] if isinstance(likelihood, lik.ZeroInflated) else []
    mix, line = mixture(case), Line(likelihood, jumps)
    below = mix.cdf(line.y.unsqueeze(-1))
    above = (1 - below).square() * line.weights.unsqueeze(-1)
    below = below.square() * line.weights.unsqueeze(-1)
    for k in (100, 250, 251, 262, 330):
        y = line.ends[k]  # between panels
        exact = below[:k].sum((0, 1)) + above[k:].sum((0, 1))
        torch.testing.assert_close(mix.crps(y.expand(2)), exact, rtol=2e-3, atol=1e-9)


@pytest.mark.parametrize(
    "name", [n for n in exact_cases.args[1] if n != "student-t, df 1.5, small scale"]
)
def test_scores_of_many_components_may_be_coarse_in_each(name, monkeypatch):
    mix = mixture(CASES[name], S=120)
    y = mix.sample((8,))
    coarse = mix.crps(y)
    monkeypatch.setattr("pyro_dgp.gp.predictive.mixture._MANY", 1000)
    fine = mix.crps(y)
    torch.testing.assert_close(coarse, fine, rtol=0, atol=5e-3 * mix.stddev.max().item())


@discrete
def test_a_discrete_mixtures_crps_is_the_sum(name):
    case = CASES[name]
    mix, likelihood = mixture(case), case.make()
    x = lattice_points(likelihood)[:3000]
    F = mix.cdf(x.unsqueeze(-1))
    for y in case.y:
        if "total_count" in case.covariates and y > 5:
            continue
        if y > x[-1] or y < x[0]:
            continue
        exact = (F - (x >= y - 1e-9).double().unsqueeze(-1)).square().sum(0)
        exact = exact * likelihood.lattice()[1]
        # What lies beyond a tail of 1e-5 is left out.
        torch.testing.assert_close(mix.crps(torch.full((2,), y)), exact, rtol=1e-6, atol=1e-7)


@every_case
def test_samples_of_a_mixture_have_its_moments(name):
    mix, n = mixture(CASES[name]), 50_000
    draws = mix.sample((n,)).double()
    mean, variance = draws.mean(0), draws.var(0)
    if name in HEAVY:
        return
    assert ((mix.mean - mean).abs() < 4 * (variance / n).sqrt() + 1e-12).all()
    spread = ((draws - mean).square().var(0) / n).sqrt()
    assert ((mix.variance - variance).abs() < 5 * spread + 1e-12).all()


# Classes without an order


def test_categorical_probabilities_are_the_softmaxs_means():
    likelihood = lik.Categorical(3)
    loc = torch.tensor([[0.0, 2.0, -1.0], [0.5, -1.0, 0.0], [1.0, 0.3, 4.0]])
    var = torch.tensor([[0.3, 1e-6, 4.0], [0.3, 1e-6, 1.0], [1.0, 1e-6, 9.0]])
    marginal = likelihood.marginal(loc, var)
    torch.testing.assert_close(marginal.probs.sum(-1), torch.ones(3))
    x, w = even_nodes(6.0, 49)
    x = torch.stack(torch.meshgrid(x, x, x, indexing="ij"))
    f = loc[:, :, None, None, None] + var.sqrt()[:, :, None, None, None] * x.unsqueeze(1)
    exact = torch.einsum("cnijk,i,j,k->nc", f.softmax(0), w, w, w)
    # 128 quasi-random points.
    torch.testing.assert_close(marginal.probs, exact, rtol=0, atol=5e-3)
    draws = marginal.sample((200_000,))
    shares = torch.stack([(draws == k).double().mean(0) for k in range(3)], -1)
    assert ((shares - marginal.probs).abs() < 4 * 0.5 / math.sqrt(200_000)).all()


def test_a_mixture_of_classes_has_probabilities_and_no_distribution_function():
    loc, var = torch.randn(3, 5, 4), torch.rand(3, 5, 4)
    mix = PredictiveMixture(lik.Categorical(3).marginal(loc, var))
    assert mix.probs.shape == (4, 3)
    y = torch.tensor([0, 1, 2, 1])
    torch.testing.assert_close(mix.log_prob(y), mix.probs.gather(1, y[:, None])[:, 0].log())
    torch.testing.assert_close(mix[1:3].probs, mix.probs[1:3])
    assert mix.sample((7,)).shape == (7, 4)
    with pytest.raises(NotImplementedError, match="Classes without an order have no P"):
        mix.cdf(torch.zeros(4))


def test_a_likelihood_of_ones_own_without_a_distribution_function():
    class Custom(Likelihood):
        def conditional(self, f):
            return dist.VonMises(f, 1.0)

    mix = PredictiveMixture(Custom().marginal(torch.zeros(1, 3, 4), torch.ones(1, 3, 4)))
    assert mix.log_prob(torch.zeros(4)).isfinite().all()
    for fails in (mix.cdf, mix.crps, lambda y: mix.quantile(0.5)):
        with pytest.raises(NotImplementedError, match=r"Custom does not know .* a VonMises, a cdf"):
            fails(torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_of_counts_far_in_the_tails(dtype):
    """Where the probability is less than what rounding may take from a sum."""
    zero = torch.zeros(1, 1, 1, dtype=dtype)
    marginal = lik.Poisson().to(dtype).marginal(zero + math.log(10), zero)
    p = [1e-9, 5e-8, 1e-3, 0.5, 1 - 1e-6]
    p += [1 - 5e-8, 1 - 1e-10] if dtype == torch.float64 else []
    found = PredictiveMixture(marginal).quantile(torch.tensor(p, dtype=dtype))
    assert found.flatten().tolist() == stats.poisson(10).ppf(p).tolist()


@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (0.0, 1e4), (1000.0, 1.0)])
def test_quantiles_are_the_value_that_has_a_probability(value, scale):
    likelihood = lik.ZeroInflated(lik.LogNormal(), value, 0.5)
    loc, var = torch.tensor([0.0, 7.0]).reshape(2, 1, 1), torch.full((2, 1, 1), 1e-4)
    mixture = PredictiveMixture(likelihood.marginal(*likelihood.functions(loc, var))).affine(
        0.0, scale
    )
    found = mixture.quantile(torch.tensor([0.1, 0.3, 0.45, 0.9]))
    low = value > 800  # of the other half of the targets, 1/4 lie below 1000
    assert (found == scale * value).any()
    assert (found >= 0).all()
    assert found.diff(dim=0).min() >= 0
    assert low or (found[:3] == scale * value).all()


def test_moments_that_are_small_differences():
    """In single precision: the variance of a value beside a narrow density, and of large counts."""
    torch.set_default_dtype(torch.float32)
    # Here all of the targets are within 0.02 of the value.
    inflated = lik.ZeroInflated(lik.GaussianLikelihood(1e-4), 100.0, 0.5)
    loc, var = torch.tensor([0.0, 100.0]).reshape(2, 1), torch.tensor([1e-8, 1e-4]).reshape(2, 1)
    _, variance = inflated.marginal_moments(loc, var)
    assert variance.item() == pytest.approx(1e-4, rel=1e-3)
    counts = lik.NegativeBinomial(concentration=1e7)
    loc = torch.tensor([[math.log(6.6e7)]])
    mean, variance = counts.marginal_moments(loc, torch.zeros(1, 1))
    m, r = mean.double().item(), counts.concentration.double().item()
    assert variance.item() == pytest.approx(m + m**2 / r, rel=1e-5)


def test_distribution_functions_of_counts_at_infinity():
    for likelihood in (lik.Poisson(), lik.NegativeBinomial()):
        marginal = likelihood.marginal(torch.zeros(1, 1), torch.ones(1, 1))
        found = marginal.cdf(torch.tensor([-math.inf, 3.0, math.inf]))
        torch.testing.assert_close(found[::2], torch.tensor([0.0, 1.0]))
        torch.testing.assert_close(found[1:2], marginal.cdf(torch.tensor([3.0])))


def test_densities_of_proportions_at_the_ends_are_numbers():
    marginal = lik.Beta().marginal(torch.zeros(1, 1), torch.ones(1, 1))
    low, high = marginal.log_prob(torch.tensor([0.0, 1.0]))
    assert low.isfinite()
    assert low.item() == pytest.approx(high.item(), rel=1e-3)
    assert (marginal.log_prob(torch.tensor([-0.5, 1.5])) == -math.inf).all()


@pytest.mark.parametrize(
    "likelihood",
    [lik.HeteroscedasticGaussian(), lik.StudentT(0.1, 4.0), lik.Gamma(), lik.LogNormal(),
     lik.Beta(), lik.ZeroInflated(lik.GaussianLikelihood(0.1), 0.3)],
    ids=lambda likelihood: type(likelihood).__name__,
)  # fmt: skip
def test_densities_have_their_derivatives_by_targets(likelihood):
    """Also where a part of the formula, such as a Jacobian, has its own."""
    functions = torch.randn(likelihood.num_functions, 5, 3)
    base = PredictiveMixture(fixed_copy(likelihood).marginal(functions, functions.square()))
    y = torch.tensor([0.2, 0.5, 0.8])
    for p in (base, base.affine(0.1, 2.0), Recalibrated(base, 1.3), Exponentiated(base)):
        at = y.exp() if isinstance(p, Exponentiated) else y
        value = at.clone().requires_grad_()
        (slope,) = torch.autograd.grad(p.log_prob(value).sum(), value)
        rise = p.log_prob(at + 1e-5) - p.log_prob(at - 1e-5)
        torch.testing.assert_close(slope, rise / 2e-5, rtol=1e-6, atol=1e-6)
        (density,) = torch.autograd.grad(p.cdf(value).sum(), value)
        torch.testing.assert_close(density.log(), p.log_prob(at), rtol=0, atol=1e-6)


@pytest.mark.parametrize("S", [3, 300])
@pytest.mark.parametrize("name", ["beta", "negative_binomial", "binomial"])
def test_distribution_functions_have_their_derivatives_by_functions(name, S):
    """Those of incomplete Beta functions, and of averages of many components."""
    likelihood = fixed_copy(lik.LIKELIHOODS[name]())
    given = {"total_count": torch.tensor([7.0, 9.0])} if name == "binomial" else {}
    y = torch.tensor([0.3, 0.6]) if name == "beta" else torch.tensor([1.0, 3.0])
    functions = torch.randn(1, S, 2).requires_grad_()

    def mixture(shift):
        return PredictiveMixture(
            likelihood.marginal(functions + shift, torch.ones(1, S, 2), **given)
        )

    (slope,) = torch.autograd.grad(mixture(0.0).cdf(y).sum(), functions)
    with torch.no_grad():
        rise = mixture(1e-5).cdf(y).sum() - mixture(-1e-5).cdf(y).sum()
    torch.testing.assert_close(slope.sum(), rise / 2e-5, rtol=1e-6, atol=1e-6)


def test_derivatives_at_the_ends_of_proportions():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    lik.Beta(concentration=0.01).conditional(torch.zeros(2)).cdf(x).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(0).all()


@pytest.mark.parametrize("method", ["log_prob", "cdf", "icdf", "crps"])
def test_no_derivatives_where_none_are_wanted(method):
    """Although the search for a mode takes some."""
    functions = torch.randn(1, 2, 3, requires_grad=True)
    p = PredictiveMixture(lik.Gamma().marginal(functions, torch.ones(1, 2, 3)))
    with torch.no_grad():
        assert not getattr(p, method)(torch.tensor([0.2, 0.5, 0.7])).requires_grad
        assert not p.components.log_prob(torch.ones(3)).requires_grad


def test_the_probability_of_a_value_holds_no_graph_where_none_is_wanted():
    functions = torch.randn(2, 2, 3, requires_grad=True)
    likelihood = lik.ZeroInflated(lik.GaussianLikelihood(0.1))
    for wanted in (False, True):
        with torch.set_grad_enabled(wanted):
            p = likelihood.marginal(functions, torch.ones_like(functions))
        assert all(t.requires_grad == wanted for t in (p.p, p.log_p, p.log_q))


@pytest.mark.parametrize(
    "make", [lambda: lik.Beta(0.5, 1e6), lambda: lik.Gamma(1.0, 1e6)], ids=["beta", "gamma"]
)
def test_densities_of_little_noise_in_float32(make):
    """Their constants are small differences of large numbers."""
    y, loc, var = torch.tensor([0.3, 0.5]), torch.zeros(1, 2), torch.ones(1, 2)
    exact = fixed_copy(make()).marginal(loc, var).log_prob(y)
    torch.set_default_dtype(torch.float32)
    found = fixed_copy(make()).marginal(loc.float(), var.float()).log_prob(y.float())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
