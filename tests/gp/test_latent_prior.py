"""The prior of latent inputs that is fitted to data."""

import math

import numpy as np
import pyro
import pyro.poutine as poutine
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.infer import SVI
from scipy.optimize import minimize
from scipy.stats import kstest, norm
from torch.distributions import Normal

from pyro_dgp import DRegIWELBO, GaussianLikelihood, GPLayer, LatentDGP, LatentLayer
from pyro_dgp.gp.latent_prior import ReweightedNormal, balanced_draws, maximum_posterior_shares
from pyro_dgp.gp.likelihoods import Likelihood
from tests.gp.models import data, randomize, small, through_pickle

SHARES = torch.tensor([0.1, 0.4, 0.05, 0.45], dtype=torch.float64)


# The distribution


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_intervals_have_their_shares(dtype):
    p = ReweightedNormal(SHARES.to(dtype))
    ends = torch.special.ndtri(torch.tensor([1e-12, 0.25, 0.5, 0.75, 1 - 1e-12]))
    for share, low, high in zip(SHARES, ends[:-1], ends[1:], strict=True):
        z = torch.linspace(low, high, 20_001)[1:-1]  # within, by the midpoint rule
        total = p.log_prob(z.to(dtype)).double().exp().mean() * (high - low)
        assert total == pytest.approx(share.item(), abs=2e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_increasing_function_of_a_standard_normal_has_the_distribution(dtype):
    noise = torch.linspace(-6, 6, 1001, dtype=dtype)
    z = ReweightedNormal(SHARES.to(dtype)).from_standard(noise)
    assert z.dtype == dtype
    assert (z.diff() >= 0).all()
    # P(z <= t) is a piecewise linear function of Phi(t).
    knots = np.concatenate([[0.0], SHARES.cumsum(0).numpy()])
    cdf = np.interp(norm.cdf(z.double().numpy()), np.linspace(0, 1, 5), knots)
    np.testing.assert_allclose(cdf, norm.cdf(noise.double().numpy()), atol=3e-7)


@pytest.mark.statistical
def test_draws_have_the_distribution_and_broadcast():
    shares = torch.stack([SHARES, SHARES.flip(0)])
    p = ReweightedNormal(shares).expand([3, 2])
    draws = p.sample((4000,))
    assert draws.shape == (4000, 3, 2)
    knots = np.concatenate([[0.0], SHARES.cumsum(0).numpy()])

    def cdf(t):
        return np.interp(norm.cdf(t), np.linspace(0, 1, 5), knots)

    assert kstest(draws[:, 0, 0].numpy(), cdf).pvalue > 1e-3
    assert kstest(draws[:, 2, 1].numpy(), cdf).pvalue < 1e-12
    torch.testing.assert_close(
        p.log_prob(draws)[:, 1, 0], ReweightedNormal(SHARES).log_prob(draws[:, 1, 0])
    )


def test_equal_shares_are_the_standard_normal():
    p, z = ReweightedNormal(torch.full((64,), 1 / 64)), torch.linspace(-7, 7, 101)
    torch.testing.assert_close(p.log_prob(z), Normal(0.0, 1.0).log_prob(z))
    torch.testing.assert_close(p.from_standard(z), z, rtol=1e-3, atol=1e-12)
    inner = z[z.abs() < 5]
    torch.testing.assert_close(p.from_standard(inner), inner, rtol=1e-9, atol=1e-9)


# The shares


@pytest.mark.parametrize(
    ("dim", "S", "M"), [(1, 64, 2048), (2, 45, 2025), (4, 6, 1296), (12, 1, 2048)]
)
def test_each_combination_of_intervals_has_as_many_draws(dim, S, M):
    z, combinations, found = balanced_draws(dim, torch.zeros(()), None)
    assert (found, z.shape) == (S, (M // S**dim, S**dim, dim))
    assert len(torch.unique(combinations, dim=0)) == S**dim
    assert ((S * torch.special.ndtr(z)).floor().long() == combinations).all()
    if dim == 1:  # and so does each part of an interval
        parts = (M * torch.special.ndtr(z.flatten())).floor().long().sort().values
        assert torch.equal(parts, torch.arange(M))


def in_intervals(num_intervals, per_interval):
    """Intervals of one coordinate, each several times, [C, 1]."""
    return torch.arange(num_intervals).repeat_interleave(per_interval).unsqueeze(1)


def test_data_that_know_their_interval_are_counted():
    intervals = in_intervals(4, 3)
    held = torch.tensor([0, 0, 1, 3, 3, 3])
    log_p = torch.where(intervals == held, 2.5, -math.inf)
    weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 4.0])
    found = maximum_posterior_shares(log_p, intervals, 4, weight)
    counts = torch.tensor([3.0, 1.0, 0.0, 6.0]) + 0.5
    torch.testing.assert_close(found, (counts / counts.sum()).unsqueeze(0))


def test_shares_are_the_posterior_mode(monkeypatch):
    monkeypatch.setattr("pyro_dgp.gp.latent_prior._TOLERANCE", 1e-12)
    monkeypatch.setattr("pyro_dgp.gp.latent_prior._MOST_ITERATIONS", 20_000)
    S, weight = 5, torch.rand(40) + 0.5
    intervals = in_intervals(S, 6)
    log_p = 3 * torch.randn(30, 40)
    found = maximum_posterior_shares(log_p, intervals, S, weight)[0]

    def loss(logits):
        log_shares = torch.as_tensor(logits).log_softmax(0)
        evidence = (log_p + log_shares[intervals[:, :1]]).logsumexp(0)
        return -(evidence @ weight + 0.5 * log_shares.sum()).item()

    best = minimize(loss, np.zeros(S), tol=1e-12).x
    np.testing.assert_allclose(found, torch.as_tensor(best).softmax(0), atol=1e-4)


def test_each_coordinate_has_its_shares():
    # The first coordinate is known, and the second one says nothing.
    _, intervals, S = balanced_draws(2, torch.zeros(()), None)
    held = torch.tensor([0] * 30 + [2] * 70)
    log_p = torch.where(intervals[:, :1] == held, 0.0, -50.0)
    found = maximum_posterior_shares(log_p, intervals, S, torch.ones(100))
    total = 100 + 0.5 * S
    torch.testing.assert_close(found[0, [0, 1, 2]], torch.tensor([30.5, 0.5, 70.5]) / total)
    torch.testing.assert_close(found[1], torch.full((S,), 1 / S))


def test_rows_that_no_draw_explains_have_no_say():
    intervals = in_intervals(4, 3)
    log_p = torch.randn(12, 6)
    whole = maximum_posterior_shares(log_p, intervals, 4, torch.ones(6))
    more = torch.cat([log_p, torch.full((12, 2), -math.inf)], 1)
    torch.testing.assert_close(maximum_posterior_shares(more, intervals, 4, torch.ones(8)), whole)


# The model


def two_branches(num_rows, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(num_rows, 1, generator=rng) * 2 - 1
    upper = torch.rand(num_rows, generator=rng) < 0.3
    y = torch.where(upper, 1.0, -1.0) * (1 + 0.3 * x[:, 0])
    return x, y + 0.05 * torch.randn(num_rows, generator=rng)


@pytest.mark.statistical
@pytest.mark.parametrize("latent_dim", [1, 2])
def test_no_probability_is_left_between_two_branches(latent_dim):
    X, y = two_branches(150, 0)
    dgp = LatentDGP.from_data(X, y, num_inducing=15, latent_dim=latent_dim)
    optim = pyro.optim.Adam({"lr": 0.05, "betas": (0.9, 0.99)})
    svi = SVI(dgp.model, dgp.guide, optim, DRegIWELBO(K=5))
    for _ in range(300):
        svi.step(X, y)
    X_new, y_new = two_branches(300, 1)

    def scores():
        p = dgp.predict(X_new, 500)
        x = X_new[:, 0]
        between = p.cdf(0.7 * (1 + 0.3 * x)) - p.cdf(-0.7 * (1 + 0.3 * x))
        lower = p.cdf(torch.zeros(300)).mean()
        return p.log_prob(y_new).mean().item(), between.mean().item(), lower.item()

    before, gap, _ = scores()
    dgp.fit_latent_prior(X, y)
    after, less, lower = scores()
    assert less < 0.5 * gap
    assert after > before + 0.5 * gap  # at least half of -log(1 - gap)
    assert lower == pytest.approx((y < 0).double().mean().item(), abs=0.03)


@pytest.mark.statistical
def test_bounds_and_predictions_have_the_prior():
    X, y = data(20)
    gp = GPLayer(RBF(4), torch.randn(8, 4), 1)
    # Without an encoder, q(z) is the prior.
    dgp = LatentDGP([LatentLayer(1), gp], GaussianLikelihood(0.3), len(X))
    randomize(dgp, scale=4.0)
    dgp.layers[0].prior_shares = SHARES.unsqueeze(0)

    z = torch.linspace(-8, 8, 16_001)[:-1] + 0.0005
    log_prior = ReweightedNormal(SHARES).log_prob(z) + math.log(0.001)
    inputs = torch.cat([X.expand(len(z), -1, -1), z.reshape(-1, 1, 1).expand(-1, len(X), 1)], -1)
    with torch.no_grad():
        loc, var = (t[..., 0] for t in gp.marginal(inputs))
        noise = dgp.likelihood.variance
        log_p = Normal(loc, (var + noise).sqrt()).log_prob(y)
        expected = Normal(loc, noise.sqrt()).log_prob(y) - 0.5 * var / noise
        log_p, expected = ((t + log_prior.unsqueeze(-1)).logsumexp(0) for t in (log_p, expected))
        torch.testing.assert_close(dgp.predict(X, 100_000).log_prob(y), log_p, rtol=0, atol=0.03)
        loss = DRegIWELBO(K=5000)
        losses = [loss.loss(dgp.model, dgp.guide, X, y) for _ in range(20)]
        bound = expected.sum() - gp.kl()
    assert -np.mean(losses) == pytest.approx(bound.item(), abs=5 * np.std(losses) / 20**0.5 + 0.02)
    dgp.layers[0].prior_shares = None
    assert (dgp.predict(X, 100_000).log_prob(y) - log_p).abs().max() > 0.2


def test_the_site_of_z_has_the_prior():
    X, y = data()
    dgp = small(X, y, latent_dim=2)
    dgp.fit_latent_prior(X, y)
    guide = poutine.trace(dgp.guide).get_trace(X, y)
    model = poutine.trace(poutine.replay(dgp.model, guide)).get_trace(X, y)
    site = model.nodes[f"{dgp.name}.layers.0.z"]
    expected = ReweightedNormal(dgp.layers[0].prior_shares).log_prob(site["value"]).sum(-1)
    torch.testing.assert_close(site["fn"].log_prob(site["value"]), expected)


@pytest.mark.parametrize("loss", [DRegIWELBO(K=3), pyro.infer.TraceMeanField_ELBO()])
def test_gradients_do_not_see_its_jumps(loss):
    """An error, as they would be wrong without a sign; values and further training are fine."""
    X, y = data()
    dgp = small(X, y)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss)
    dgp.fit_latent_prior(X, y)
    assert np.isfinite(svi.evaluate_loss(X, y))
    before = {name: p.clone() for name, p in dgp.named_parameters()}
    with pytest.raises(NotImplementedError, match="reset_latent_prior"):
        svi.step(X, y)
    assert all(torch.equal(p, before[name]) for name, p in dgp.named_parameters())
    dgp.reset_latent_prior()
    assert dgp.layers[0].prior_shares is None
    dgp.zero_grad()
    assert np.isfinite([svi.step(X, y) for _ in range(5)]).all()


def test_without_an_encoder_training_goes_on_with_it():
    X, y = data()
    dgp = small(X, y, encoder_widths=None)
    dgp.fit_latent_prior(X, y)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), DRegIWELBO(K=3))
    assert np.isfinite([svi.step(X, y) for _ in range(5)]).all()
    assert dgp.layers[0].prior_shares is not None


def test_a_state_without_it_is_loaded_into_a_model_that_has_it():
    X, y = data()
    for widths in (None, (5,)):
        dgp = small(X, y, encoder_widths=widths)
        state = {name: value.clone() for name, value in dgp.state_dict().items()}
        dgp.fit_latent_prior(X, y)
        dgp.load_state_dict(state)
        assert dgp.layers[0].prior_shares is None


@pytest.mark.parametrize("widths", [None, (5,)])
def test_a_partial_state_without_it_leaves_it_alone(widths):
    X, y = data()
    dgp = randomize(small(X, y, encoder_widths=widths))
    plain = {name: value.clone() for name, value in dgp.state_dict().items()}
    dgp.fit_latent_prior(X, y)
    fitted = dgp.layers[0].prior_shares.clone()
    larger = torch.nn.ModuleDict({"part": dgp})
    for layer in ("layers.0.", "layers.1.", "none."):
        partial = {name: value for name, value in plain.items() if name.startswith(layer)}
        dgp.load_state_dict(partial, strict=False)
        larger.load_state_dict({f"part.{n}": v for n, v in partial.items()}, strict=False)
        assert torch.equal(dgp.layers[0].prior_shares, fitted)
    larger.load_state_dict({f"part.{n}": v for n, v in plain.items()}, strict=False)
    assert dgp.layers[0].prior_shares is None
    dgp.fit_latent_prior(X, y)
    dgp.layers[0].load_state_dict({n[9:]: v for n, v in plain.items() if n[:9] == "layers.0."})
    assert dgp.layers[0].prior_shares is None


def test_with_many_latent_dimensions_it_stays():
    X, y = data()
    dgp = small(X, y, latent_dim=12)
    dgp.fit_latent_prior(X, y)
    assert dgp.layers[0].prior_shares is None


def test_shares_have_derivatives_and_densities_are_vectorised():
    shares, z = SHARES.clone().requires_grad_(), torch.randn(3).double().requires_grad_()
    p = ReweightedNormal(shares, validate_args=False)
    (by_shares,) = torch.autograd.grad(p.log_prob(z).sum(), shares)
    counts = torch.bincount((4 * torch.special.ndtr(z)).long(), minlength=4)
    torch.testing.assert_close(by_shares, counts / SHARES)
    torch.testing.assert_close(torch.vmap(p.log_prob)(z), p.log_prob(z))


def test_a_fit_starts_from_the_standard_normal_prior_and_from_its_generator():
    X, y = data()
    dgp = randomize(small(X, y))

    def fitted(rows=slice(None)):
        dgp.fit_latent_prior(X[rows], y[rows], generator=torch.Generator().manual_seed(1))
        return dgp.layers[0].prior_shares

    state = torch.get_rng_state()
    first = fitted()
    other = fitted(slice(0, 5))
    assert torch.equal(fitted(), first)
    assert not torch.equal(other, first)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_are_repetitions():
    X, y = data()
    dgp = randomize(small(X, y))

    def fitted(X, y, **weight):
        dgp.fit_latent_prior(X, y, generator=torch.Generator().manual_seed(1), **weight)
        return dgp.layers[0].prior_shares

    weight = torch.ones(len(X))
    weight[:3] = 2.0
    once = fitted(X, y, weight=weight)
    twice = torch.cat([torch.arange(3), torch.arange(len(X))])
    dgp.num_data = len(twice)
    torch.testing.assert_close(fitted(X[twice], y[twice]), once, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_saved_with_the_model(dtype):
    X, y = (t.to(dtype) for t in data())
    dgp, other = (randomize(small(X, y)) for _ in range(2))
    plain = {k: v.clone() for k, v in dgp.state_dict().items()}
    dgp.fit_latent_prior(X, y)
    assert dgp.layers[0].prior_shares.dtype == dtype

    def predicted(model):
        return model.predict(X, 20, generator=torch.Generator().manual_seed(0)).components.loc

    other.load_state_dict(dgp.state_dict())
    assert torch.equal(predicted(other), predicted(dgp))
    assert torch.equal(predicted(through_pickle(dgp)), predicted(dgp))
    other.load_state_dict(plain)
    assert other.layers[0].prior_shares is None


def test_it_is_the_same_on_the_device(device):
    X, y = data()
    dgp = randomize(small(X, y)).to(device)
    dgp.fit_latent_prior(X.to(device), y.to(device))
    assert dgp.layers[0].prior_shares.device.type == device.type
    assert dgp.predict(X.to(device), 5, shared_draws=True).mean.device.type == device.type


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_functions_of_several_latent_layers_have_it(num_outputs):
    X, y = data(num_outputs=num_outputs)
    dgp = randomize(small(X, y, latent_dim=2))
    dgp.fit_latent_prior(X, y)
    assert dgp.layers[0].prior_shares.shape == (2, 45)
    # All of z in one interval: functions differ by their own draws only.
    shares = torch.full((2, 64), 1e-9)
    shares[:, 40] = 1.0
    dgp.layers[0].prior_shares = shares / shares.sum(-1, keepdim=True)
    z = dgp.layers[0].noise_from(torch.randn(1000, 2))
    assert ((64 * torch.special.ndtr(z)).floor() == 40).all()
    assert dgp.draw_functions(3)(X).isfinite().all()


def test_a_likelihood_may_have_nothing_but_its_integrals():
    class Integrals(Likelihood):
        def expected_log_prob(self, y, loc, var):
            return Normal(loc[0], 1.0).log_prob(y) - 0.5 * var[0]

        def log_marginal(self, y, loc, var):
            return Normal(loc[0], (var[0] + 1.0).sqrt()).log_prob(y)

    X, y = data()
    found = []
    for likelihood in (Integrals(), GaussianLikelihood(1.0)):
        pyro.set_rng_seed(0)
        dgp = randomize(LatentDGP.from_data(X, y, num_inducing=5, likelihood=likelihood))
        dgp.fit_latent_prior(X, y, generator=torch.Generator().manual_seed(1))
        found.append(dgp.layers[0].prior_shares)
    torch.testing.assert_close(*found)


def test_a_model_without_latent_inputs_is_told_so():
    X, y = data()
    with pytest.raises(ValueError, match="no latent input"):
        small(X, y, latent_dim=0).fit_latent_prior(X, y)
    with pytest.raises(ValueError, match="columns"):
        small(X, y).fit_latent_prior(X[:, :1], y)
