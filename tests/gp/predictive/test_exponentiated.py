"""e^y of a predictive distribution of y, against SciPy's lognormal and quadrature."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal

from pyro_dgp.experiments.metrics import pit_bounds
from pyro_dgp.gp import Exponentiated, PredictiveMixture, Recalibrated
from pyro_dgp.gp import likelihoods as lik
from pyro_dgp.gp.fixed import fixed_copy
from tests.quadrature import integral

LOC, SCALE = np.array([-3.0, 0.0, 2.0, 9.0]), np.array([0.01, 0.3, 1.0, 2.0])
Q = torch.tensor([1e-4, 0.05, 0.5, 0.95, 1 - 1e-4], dtype=torch.float64)

CLOSE = {"rtol": 0, "atol": 1e-4}


def lognormal():
    return stats.lognorm(SCALE, scale=np.exp(LOC))


def normals(loc, scale):
    return PredictiveMixture(Normal(torch.as_tensor(loc), torch.as_tensor(scale)))


def test_one_component_is_lognormal():
    p, exact = Exponentiated(normals(LOC[None], SCALE[None])), lognormal()
    t = torch.as_tensor(exact.ppf(np.array([0.01, 0.3, 0.9])[:, None]))
    np.testing.assert_allclose(p.log_prob(t), exact.logpdf(t), rtol=1e-10)
    np.testing.assert_allclose(p.cdf(t), exact.cdf(t), rtol=1e-10)
    np.testing.assert_allclose(p.quantile(Q), exact.ppf(Q[:, None]), rtol=1e-9)
    np.testing.assert_allclose(p.mean, exact.mean(), rtol=2e-5)
    # Of its variance, a lognormal with s = 2 has a hundredth beyond z = 6.
    error = p.stddev.numpy() / exact.std() - 1
    assert (np.abs(error) < [1e-4, 1e-4, 1e-3, 0.05]).all()
    median = np.exp(LOC)
    crps = median * lognormal_crps(t.numpy() / median, SCALE)
    np.testing.assert_allclose(p.crps(t), crps, rtol=1e-4)


def lognormal_crps(t, scale):
    """Of lognormals with median 1 in closed form (Baran and Lerch, 2015)."""
    z, mean = np.log(t) / scale, np.exp(scale**2 / 2)
    tails = stats.norm.cdf(z - scale) + stats.norm.cdf(scale / 2**0.5) - 1
    return t * (2 * stats.norm.cdf(z) - 1) - 2 * mean * tails


def test_the_crps_of_long_tails():
    scale = np.array([0.1, 1.0, 3.0])
    t = np.exp(scale * stats.norm.ppf([[0.001], [0.1], [0.5], [0.9], [0.999]]))
    p = Exponentiated(normals(np.zeros((1, 3)), scale[None]))
    np.testing.assert_allclose(p.crps(torch.as_tensor(t)), lognormal_crps(t, scale), rtol=5e-4)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.6])
def test_mixtures_and_recalibrated_ones_by_quadrature(exponent):
    base = normals([[-1.0, 0.0], [0.5, 0.1], [0.8, 2.0]], [[0.2, 1.0], [0.3, 0.4], [0.05, 0.6]])
    p = Exponentiated(Recalibrated(base, exponent))
    low, high = p.quantile(torch.tensor([1e-9, 1 - 1e-9])).log()
    edges = (low + (high - low) * torch.linspace(0, 1, 200).unsqueeze(-1)).exp()
    mass, mean, square = (
        integral(lambda t, k=k: t**k * p.log_prob(t).exp(), edges) for k in range(3)
    )
    torch.testing.assert_close(mass, torch.ones(2), rtol=0, atol=1e-6)  # the Jacobian
    torch.testing.assert_close(p.mean, mean, rtol=1e-3, atol=0)
    torch.testing.assert_close(p.variance, square - mean**2, rtol=1e-2, atol=0)


def test_samples_and_targets_below_0():
    p = Exponentiated(normals(LOC[None], SCALE[None]))
    draws = p.sample((4000,))
    assert (draws > 0).all()
    share = (draws < torch.as_tensor(lognormal().ppf(0.3))).double().mean(0)
    assert (share - 0.3).abs().max() < 4 * (0.21 / 4000) ** 0.5
    below = torch.tensor([-1.0, 0.0, -1.0, 0.0])
    assert p.log_prob(below).tolist() == [-np.inf] * 4
    assert p.cdf(below).tolist() == [0.0] * 4


def test_several_outputs():
    loc, scale = torch.randn(20, 3, 2), torch.rand(20, 3, 2)
    p = Exponentiated(PredictiveMixture(Normal(loc, scale), 1))
    t = torch.rand(5, 3, 2) + 0.1
    torch.testing.assert_close(p.log_prob(t), p.base.log_prob(t.log()) - t.log().sum(-1))
    for i in range(2):
        one = Exponentiated(PredictiveMixture(Normal(loc[..., i], scale[..., i])))
        torch.testing.assert_close(p.mean[:, i], one.mean)
        torch.testing.assert_close(p.crps(t)[..., i], one.crps(t[..., i]))
        torch.testing.assert_close(p.marginal(i).quantile(Q), p.quantile(Q)[..., i])


def test_a_value_with_a_probability_has_no_jacobian():
    likelihood = fixed_copy(lik.ZeroInflated(lik.GaussianLikelihood(0.5), 0.3))
    base = PredictiveMixture(likelihood.marginal(torch.randn(2, 20, 3), torch.rand(2, 20, 3)))
    p = Exponentiated(Recalibrated(base, 1.6))
    t = torch.full((3,), 0.3).exp()
    torch.testing.assert_close(p.log_prob(t).exp(), p.cdf(t + 1e-5) - p.cdf(t - 1e-5), **CLOSE)
    torch.testing.assert_close(pit_bounds(p, t), (p.cdf(t - 1e-5), p.cdf(t)), **CLOSE)
    share = (p.sample((2000,)) == t).double().mean(0)
    torch.testing.assert_close(share, p.log_prob(t).exp(), rtol=0, atol=0.05)
    assert not p.has_mass(t + 0.1).any()


@pytest.mark.parametrize("exponent", [None, 1.3])
def test_values_of_any_dtype_and_shape(exponent):
    base = PredictiveMixture(Normal(torch.randn(5, 3).float(), torch.ones(5, 3).float()))
    p = Exponentiated(base if exponent is None else Recalibrated(base, exponent))
    row = torch.full((3,), 2.0).float()
    for method in (p.log_prob, p.cdf, p.crps):
        for value in (torch.tensor(2), torch.tensor([[2.0], [2.0]]), row.double()):
            shape = torch.broadcast_shapes(value.shape, (3,))
            torch.testing.assert_close(method(value), method(row).expand(shape))
    assert p.cdf(torch.tensor(torch.nan)).isnan().all()
