"""What is computed on a device is what the CPU computes, and it stays there."""

import copy
from contextlib import nullcontext

import numpy as np
import pyro
import pytest
import torch
from torch.distributions import Normal

from pyro_dgp import (
    DRegIWELBO,
    GPLayer,
    NaturalGradient,
    PartiallyCollapsedIWELBO,
    SNRProfiler,
    fit,
)
from pyro_dgp.gp import Exponentiated, PredictiveMixture, Recalibrated
from pyro_dgp.gp.fixed import fixed_copy
from pyro_dgp.gp.kernels import KERNELS, kernel_named
from pyro_dgp.infer import paper_optimizer
from tests.gp.likelihoods.cases import CASES
from tests.gp.models import data, randomize, small

#: Where a tensor lands that is made without saying where. It has no values there, so that one
#: forgotten ``device=`` fails on any machine. What moves a tensor of the CPU to a device later is
#: right, too, but fails there, and is tested on GPUs alone.
NOWHERE = torch.device("meta")

both = pytest.mark.parametrize("estimator", [PartiallyCollapsedIWELBO, DRegIWELBO])


def assert_same(found, expected, device, **tolerance):
    assert found.device.type == device.type
    torch.testing.assert_close(found.cpu(), expected, **tolerance)


def sent(values, device):
    return {name: value.to(device) for name, value in values.items()}


def deep_there(device, num_layers=2, **options):
    """A model and its data on the CPU, and the same on the device."""
    X, y = data()
    dgp = randomize(small(X, y, num_layers=num_layers, **options), 0.5)
    return (dgp, X, y), (copy.deepcopy(dgp).to(device), X.to(device), y.to(device))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, device):
    X, Z, kernel = torch.randn(6, 2), torch.randn(4, 2), kernel_named(name, 2)
    there = copy.deepcopy(kernel).to(device)
    with NOWHERE:
        found = there(X.to(device), Z.to(device))
        by_log = torch.autograd.grad(found.sum(), there.variance_unconstrained)[0]
    expected = kernel(X, Z)
    assert_same(found, expected, device)
    exact = torch.autograd.grad(expected.sum(), kernel.variance_unconstrained)[0]
    assert_same(by_log, exact, device)


def test_layers(device):
    mixing, mean = torch.randn(3, 2), torch.randn(3, 2)
    layer = GPLayer(kernel_named("rbf", 2), torch.randn(6, 2), 2, mixing, mean)
    there, h = copy.deepcopy(layer).to(device), torch.randn(4, 5, 2)
    with NOWHERE:
        found = there.marginal(h.to(device))
    for ours, expected in zip(found, layer.marginal(h), strict=True):
        assert_same(ours, expected, device)


@pytest.mark.parametrize("name", CASES)
def test_likelihoods(name, device):
    case = CASES[name]
    y, loc, var, given = case.grid(means=(-1.0, 0.4), variances=(1e-2, 1.0))
    likelihood = case.make()
    there = copy.deepcopy(likelihood).to(device)
    arguments, more = [t.to(device) for t in (y, loc, var)], sent(given, device)
    with nullcontext() if name.startswith("negative binomial") else NOWHERE:
        expected_log_prob = there.expected_log_prob(*arguments, **more)
        log_prob = there.marginal(*arguments[1:], **more).log_prob(arguments[0])
    assert_same(expected_log_prob, likelihood.expected_log_prob(y, loc, var, **given), device)
    assert_same(log_prob, likelihood.marginal(loc, var, **given).log_prob(y), device)


@pytest.mark.parametrize("kind", [lambda p: p, lambda p: Recalibrated(p, 0.7), Exponentiated],
                         ids=["mixture", "recalibrated", "exponentiated"])  # fmt: skip
def test_predictive_distributions(kind, device):
    p = kind(PredictiveMixture(Normal(torch.randn(30, 4), 0.1 + torch.rand(30, 4))))
    there, y = p.to(torch.float64, device), 0.5 + torch.rand(4)
    with NOWHERE:
        log_prob = there.log_prob(y.to(device))
    assert_same(log_prob, p.log_prob(y), device)
    assert_same(there.cdf(y.to(device)), p.cdf(y), device)
    assert_same(there.quantile(0.3), p.quantile(0.3), device)
    assert_same(there.crps(y.to(device)), p.crps(y), device)
    assert_same(there.mean, p.mean, device)
    assert_same(there.variance, p.variance, device)
    draws = there.sample((1000,))
    assert draws.device.type == device.type
    error = p.cdf(draws.cpu()).mean(0) - 0.5
    assert (error.abs() < 4.5 * (1 / 12 / 1000) ** 0.5).all()


@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "poisson", "ordinal"])
def test_predictions(name, device):
    """By components of known draws."""
    likelihood = fixed_copy(CASES[next(c for c in CASES if c.startswith(name))].make())
    f = torch.randn(30, 4, likelihood.num_functions)
    p = PredictiveMixture(likelihood.predictive(f, f.exp()))
    likelihood_there, y = copy.deepcopy(likelihood).to(device), torch.ones(4)
    with NOWHERE:
        there = PredictiveMixture(likelihood_there.predictive(f.to(device), f.exp().to(device)))
        log_prob, cdf = there.log_prob(y.to(device)), there.cdf(y.to(device))
    assert_same(log_prob, p.log_prob(y), device)
    assert_same(cdf, p.cdf(y), device)
    assert_same(there.quantile(0.3), p.quantile(0.3), device)


def test_predictions_of_a_model(device):
    (dgp, X, _), (there, X_there, y_there) = deep_there(device, latent_dim=1)
    S, generator = 2000, torch.Generator(device).manual_seed(0)
    with NOWHERE:
        p = there.predict(X_there, S, generator=generator)
    assert p.log_prob(y_there).device.type == device.type
    expected = dgp.predict(X, S)
    error = ((p.variance.cpu() + expected.variance) / S).sqrt()
    assert ((p.mean.cpu() - expected.mean).abs() < 4.5 * error).all()


def test_function_draws(device):
    _, (there, X, _) = deep_there(device)
    with NOWHERE:
        f = there.draw_functions(3, generator=torch.Generator(device).manual_seed(1))
        again = there.draw_functions(3, generator=torch.Generator(device).manual_seed(1))
        values = f(X)
    assert values.device.type == device.type
    assert values.isfinite().all()
    assert values.equal(again(X))


@both
def test_bounds_and_their_gradients(estimator, device):
    """Of a sparse GP, where nothing is drawn."""
    here, there = deep_there(device, num_layers=1, latent_dim=0)
    found = []
    for dgp, X, y in (here, there):
        value = estimator(K=2).loss_and_grads(dgp.model, dgp.guide, X, y)
        found.append((value, {n: p.grad for n, p in dgp.named_parameters() if p.requires_grad}))
        pyro.clear_param_store()
    (exact, exact_gradient), (value, gradient) = found
    assert value == pytest.approx(exact)
    for name, part in gradient.items():
        assert_same(part, exact_gradient[name], device, rtol=1e-6, atol=1e-8)


@both
def test_bounds_with_draws(estimator, device):
    found = []
    for dgp, X, y in deep_there(device, latent_dim=1):
        loss = estimator(K=3, num_particles=50)
        with torch.no_grad():
            found.append(torch.tensor([loss.loss(dgp.model, dgp.guide, X, y) for _ in range(30)]))
        pyro.clear_param_store()
    error = (sum(values.var() for values in found) / 30).sqrt()
    assert (found[0].mean() - found[1].mean()).abs() < 4.5 * error


def test_natural_gradients(device):
    here, there = deep_there(device, num_layers=1, latent_dim=0)
    for dgp, X, y in (here, there):
        optim = NaturalGradient(dgp.layers[0], paper_optimizer(), lr=0.5)
        fit(dgp.model, dgp.guide, PartiallyCollapsedIWELBO(K=1), (X, y), num_steps=2, optim=optim,
            progress=False)  # fmt: skip
        pyro.clear_param_store()
    for ours, expected in zip(there[0].parameters(), here[0].parameters(), strict=True):
        assert_same(ours.detach(), expected.detach(), device, rtol=1e-5, atol=1e-7)


def test_training_and_its_checkpoint(device, tmp_path):
    def losses(num_steps, checkpoint=None):
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        _, (dgp, X, y) = deep_there(device)
        history = fit(dgp.model, dgp.guide, DRegIWELBO(K=2), (X, y), num_steps=num_steps,
                      batch_size=8, progress=False, checkpoint=checkpoint)  # fmt: skip
        assert {p.device.type for p in dgp.parameters()} == {device.type}
        return history.losses

    whole = losses(6)
    losses(3, tmp_path / "c.pt")
    assert losses(6, tmp_path / "c.pt") == pytest.approx(whole)


@both
def test_profiles_of_signal_to_noise_ratios(estimator, device):
    _, (dgp, X, y) = deep_there(device)
    profile = SNRProfiler(dgp.model, dgp.guide, estimator(K=2), 40).run(X, y)
    assert np.isfinite(profile.mean_snr())


@pytest.mark.whole
def test_the_regressor_and_its_file(device, tmp_path):
    estimators = pytest.importorskip("tests.estimators")
    X, y = estimators.data()
    model = estimators.regressor(device=str(device)).fit(X, y)
    assert np.isfinite(model.log_density(X, y)).all()
    model.save(tmp_path / "m.pt")
    loaded = type(model).load(tmp_path / "m.pt", device="cpu")
    mean, std = model.predict(X, return_std=True)
    assert np.all(np.abs(loaded.predict(X) - mean) < 4.5 * std * (2 / 40) ** 0.5)
