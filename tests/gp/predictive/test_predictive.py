from functools import partial

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from pyro_dgp.gp import Exponentiated, PredictiveMixture, Recalibrated
from pyro_dgp.gp.fixed import fixed_copy
from pyro_dgp.gp.likelihoods import LIKELIHOODS, Gamma, LogNormal, ZeroInflated
from pyro_dgp.gp.predictive import mixture as mixture_module
from pyro_dgp.gp.predictive.batches import mapped
from tests.quadrature import crps

S, N, P = 30, 4, 2


def normals(loc, scale, event_dim=0):
    return PredictiveMixture(Normal(loc, scale), event_dim)


@pytest.fixture(params=[0, 1], ids=["[N]", "[N, P]"])
def mixture(request, monkeypatch):
    """Chunks so small that every method needs several."""
    monkeypatch.setattr(mixture_module, "_CHUNK", 7 * N * P)
    shape = (S, N, P) if request.param else (S, N)
    return normals(torch.randn(shape), 0.05 + torch.rand(shape), request.param)


def reference(mixture, joint=True):
    """torch's mixture, jointly over the outputs or for each output's marginal."""
    components = Normal(
        mixture.components.loc.movedim(0, 1), mixture.components.scale.movedim(0, 1)
    )
    if not joint:
        components = Normal(
            mixture.components.loc.movedim(0, -1), mixture.components.scale.movedim(0, -1)
        )
        return MixtureSameFamily(Categorical(torch.ones_like(components.loc)), components)
    return MixtureSameFamily(
        Categorical(torch.ones(N, S)), Independent(components, mixture.event_dim)
    )


def value_like(mixture, *lead):
    return torch.randn(*lead, *mixture.batch_shape, *mixture.event_shape)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_density_and_moments_are_those_of_torchs_mixture(mixture, lead):
    y = value_like(mixture, *lead)
    expected = reference(mixture)
    torch.testing.assert_close(mixture.log_prob(y), expected.log_prob(y))
    torch.testing.assert_close(mixture.mean, expected.mean)
    torch.testing.assert_close(mixture.variance, expected.variance)
    # The mean of the variances, the known wrong variant, is another number.
    assert (mixture.variance > 1.2 * mixture.components.scale.square().mean(0)).all()
    torch.testing.assert_close(mixture.cdf(y), reference(mixture, joint=False).cdf(y))


def test_quantiles_invert_the_cdf(mixture):
    q = torch.tensor([1e-6, 0.05, 0.5, 0.95, 1 - 1e-6])
    x = mixture.quantile(q)
    shape = mixture.batch_shape + mixture.event_shape
    assert x.shape == (5, *shape)
    torch.testing.assert_close(mixture.cdf(x), q.reshape(5, *[1] * len(shape)).expand_as(x))
    torch.testing.assert_close(mixture.quantile(0.5), x[2])
    torch.testing.assert_close(mixture.icdf(mixture.cdf(x[1])), x[1])


def test_quantile_between_far_components():
    """A step in the cdf and a flat stretch, where Newton's method alone fails."""
    loc = torch.tensor([0.0, 1e3]).unsqueeze(-1)
    mixture = normals(loc, torch.full_like(loc, 1e-5))
    x = mixture.quantile(torch.tensor([0.2, 0.49, 0.51, 0.8]))
    exact = Normal(0.0, 1e-5).icdf(torch.tensor([0.4, 0.98, 0.02, 0.6]))
    torch.testing.assert_close(
        x[:, 0], exact + torch.tensor([0.0, 0.0, 1e3, 1e3]), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-16, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_of_any_scale(scale, dtype):
    mixture = normals(
        scale * torch.randn(200, 5).to(dtype), scale * (0.1 + torch.rand(200, 5)).to(dtype)
    )
    q = torch.tensor([0.01, 0.3, 0.9], dtype=dtype)
    error = mixture.cdf(mixture.quantile(q)) - q.unsqueeze(-1)
    assert error.abs().max() < 50 * torch.finfo(dtype).eps


def test_crps_is_the_integral(mixture):
    y = value_like(mixture)
    torch.testing.assert_close(mixture.crps(y), crps(mixture.cdf, y, -12, 12))
    torch.testing.assert_close(mixture.crps(torch.stack([y, y + 1]))[0], mixture.crps(y))


def test_crps_of_one_component():
    m = normals(torch.zeros(1, 1), torch.ones(1, 1))
    expected = 2 * torch.tensor(2 * np.pi).rsqrt() - torch.tensor(np.pi).rsqrt()
    torch.testing.assert_close(m.crps(torch.zeros(1)), expected.reshape(1))


def test_crps_of_many_components_is_close():
    loc, scale = torch.randn(3000, 2), 0.1 + torch.rand(3000, 2)
    m, y = normals(loc, scale), torch.tensor([0.0, 2.0])
    torch.testing.assert_close(m.crps(y), crps(m.cdf, y, -12, 12), rtol=3e-3, atol=0)


def test_samples(mixture):
    draws = mixture.sample((20_000,))
    assert draws.shape == (20_000, *mixture.batch_shape, *mixture.event_shape)
    sd = mixture.variance.sqrt()
    assert ((draws.mean(0) - mixture.mean).abs() < 4 * sd / 20_000**0.5).all()
    for q in (0.1, 0.5, 0.9):
        below = (draws < mixture.quantile(q)).double().mean(0)
        assert ((below - q).abs() < 4 * (q * (1 - q) / 20_000) ** 0.5).all()


def test_outputs_of_a_draw_share_their_component():
    loc = torch.tensor([[[-5.0, -5.0]], [[5.0, 5.0]]])
    draws = normals(loc, torch.full_like(loc, 0.1), 1).sample((100,))
    assert (draws[..., 0].sign() == draws[..., 1].sign()).all()
    assert draws.sign().unique().numel() == 2


def test_expand(mixture):
    y = value_like(mixture, 3)
    wide = mixture.expand((3, N))
    torch.testing.assert_close(wide.log_prob(y), mixture.log_prob(y))
    assert wide.sample().shape == y.shape


def test_float32():
    m = normals(torch.randn(5, 3, dtype=torch.float32), torch.rand(5, 3, dtype=torch.float32))
    y = torch.zeros(3, dtype=torch.float32)
    for value in (m.log_prob(y), m.cdf(y), m.crps(y), m.quantile(0.5), m.sample(), m.variance):
        assert value.dtype == torch.float32


@pytest.mark.parametrize("seed", [4, 8, 16])
def test_quantiles_between_wide_and_narrow_components(seed):
    # Newton's steps go to and fro about the narrow ones.
    generator = torch.Generator().manual_seed(seed)
    wide = 0.4 * torch.randn(38, generator=generator, dtype=torch.float32)
    loc = torch.cat([wide, torch.tensor([-0.48, 0.9], dtype=torch.float32)]).double()[:, None]
    scale = torch.tensor([0.3] * 38 + [0.01] * 2, dtype=torch.float32).double()[:, None]
    p = PredictiveMixture(Normal(loc, scale))
    u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    assert torch.allclose(p.cdf(p.quantile(u)).squeeze(-1), u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "student_t", "rounded", "poisson"])
def test_the_marginal_of_one_output(name):
    """Also of other likelihoods' components, and in other units for each output."""
    y = torch.randint(0, 9, (40, P)).double()
    likelihood = LIKELIHOODS[name].for_targets(y)
    f = torch.randn(S, N, P * likelihood.num_functions)
    p = PredictiveMixture(likelihood.predictive(f, f.exp()), 1)
    if name != "poisson":
        p = p.affine(torch.tensor([3.0, -8.0]), torch.tensor([2.0, 0.5]))
    value = torch.randint(0, 9, (3, N, P)).double()
    marginals = [p.marginal(j) for j in range(P)]
    for j, marginal in enumerate(marginals):
        assert (marginal.batch_shape, marginal.event_shape) == ((N,), ())
        torch.testing.assert_close(marginal.mean, p.mean[:, j])
        torch.testing.assert_close(marginal.cdf(value[..., j]), p.cdf(value)[..., j])
    if name == "gaussian":  # of one component outputs are independent
        some = PredictiveMixture(mapped(p.components, lambda t: t[:1]), 1)
        joint = sum(some.marginal(j).log_prob(value[..., j]) for j in range(P))
        torch.testing.assert_close(joint, some.log_prob(value))


@pytest.mark.parametrize("name", ["gaussian", "student_t", "rounded"])
def test_values_broadcast_with_rows(name):
    """Also where there are as many values as rows, which could be taken for one value each."""
    likelihood = fixed_copy(LIKELIHOODS[name].for_targets(torch.arange(9.0).double()))
    p = PredictiveMixture(likelihood.predictive(*torch.rand(2, S, N, 1)))
    y = torch.arange(float(N)).unsqueeze(-1)
    for method in (p.log_prob, p.cdf, p.crps):
        torch.testing.assert_close(method(y), method(y.expand(N, N)))


@pytest.mark.parametrize("exponent", [None, 1.4])
def test_quantiles_have_derivatives(mixture, exponent):
    """By probabilities the inverse of the density's; a shift of all components moves them."""
    if exponent is not None and mixture.event_dim:
        return
    shift = torch.zeros((), requires_grad=True)
    q = torch.full(mixture.batch_shape + mixture.event_shape, 0.3, requires_grad=True)
    moved = PredictiveMixture(
        Normal(mixture.components.loc + shift, mixture.components.scale), mixture.event_dim
    )
    p = moved if exponent is None else Recalibrated(moved, exponent)
    x = p.icdf(q)
    by_q, by_shift = torch.autograd.grad(x.sum(), (q, shift))
    value = x.detach().requires_grad_()
    (density,) = torch.autograd.grad(p.cdf(value).sum(), value)
    torch.testing.assert_close(by_q, 1 / density)
    torch.testing.assert_close(by_shift.item(), float(q.numel()))


@pytest.mark.parametrize("exponent", [None, 0.8])
@pytest.mark.parametrize(
    ("likelihood", "possible", "impossible"),
    [
        (Gamma, 2.0, -1.0),
        (LogNormal, 2.0, -1.0),
        (lambda: ZeroInflated(Gamma()), 0.0, -1.0),
        (lambda: ZeroInflated(LogNormal()), 2.0, -1.0),
        (LIKELIHOODS["poisson"], 3.0, 2.5),
        (LIKELIHOODS["poisson"], 3.0, -1.0),
        (LIKELIHOODS["bernoulli"], 1.0, 2.0),
        (LIKELIHOODS["student_t"], 5.0, torch.inf),
    ],
)
def test_impossible_targets_have_no_density(likelihood, possible, impossible, exponent):
    """As those of SciPy; also in units in which integers are such up to rounding."""
    likelihood = fixed_copy(likelihood())
    parts = likelihood.predictive(*torch.rand(2, S, 1, likelihood.num_functions))
    p = PredictiveMixture(parts).affine(0.0, 1 / 3)
    p = p if exponent is None else Recalibrated(p, exponent, validate_args=False)
    log_p = p.log_prob(torch.tensor([possible, impossible]) / 3)
    assert log_p[0].isfinite()
    assert log_p[1] == -torch.inf
    if exponent is None:
        assert p.log_prob(torch.tensor([torch.nan])).isnan()


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial", "ordinal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_in_other_units_have_the_same_distribution_function(kind, dtype):
    """Not that of one less, where (y - loc) / scale is rounded to a little less than the count."""
    likelihood = fixed_copy(LIKELIHOODS[kind].for_targets(torch.arange(12.0)))
    p = PredictiveMixture(likelihood.predictive(*torch.rand(2, S, N, 1, dtype=dtype)))
    k = torch.arange(12, dtype=dtype).unsqueeze(1).expand(-1, N)
    expected = p.cdf(k)
    for loc, scale in ((0.1, 0.7), (1000.3, 0.7), (0.3, 1 / 3)):
        q = p.affine(loc, scale)
        torch.testing.assert_close(q.cdf(loc + scale * k), expected)
        torch.testing.assert_close(q.crps((loc + scale * k)[3]), scale * p.crps(k[3]))


def mixture_of(kind):
    return PredictiveMixture(fixed_copy(LIKELIHOODS[kind]()).predictive(*torch.rand(2, S, N, 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: normals(torch.randn(S, N), 1.0),
        lambda: normals(torch.randn(S, N, P), 1.0, event_dim=1),
        *(partial(mixture_of, kind) for kind in ("poisson", "gamma", "beta", "student_t")),
        lambda: Recalibrated(mixture_of("negative_binomial"), 1.2),
        lambda: Recalibrated(normals(torch.randn(S, N), 1.0), 0.8),
        lambda: Exponentiated(normals(torch.randn(S, N), 1.0)),
    ],
)
def test_no_rows(make):
    p = make()[[]]
    shape = p.batch_shape + p.event_shape
    y = torch.ones(shape)
    for found in (p.mean, p.variance, p.cdf(y), p.crps(y), p.icdf(0.5 * y)):
        assert found.shape == shape
    assert p.log_prob(y).shape == (0,)
    assert p.quantile(torch.tensor([0.1, 0.5])).shape == (2, *shape)
    assert p.sample((3,)).shape == (3, *shape)
