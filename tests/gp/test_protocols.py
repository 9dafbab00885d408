"""What a layer, a likelihood and a prediction promise, whoever wrote them."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.contrib.gp.kernels import RBF
from pyro.contrib.gp.parameterized import Parameterized
from pyro.infer import SVI, Predictive
from pyro.nn import PyroParam, PyroSample
from pyro.poutine.messenger import Messenger

from pyro_dgp import DRegIWELBO, GPLayer, LatentDGP, LatentLayer, fit
from pyro_dgp.gp import (
    GaussianEncoder,
    GaussianLikelihood,
    Layer,
    PredictiveMixture,
    latent_dgp,
)
from pyro_dgp.gp.fixed import fixed_copy
from pyro_dgp.gp.kernels import Matern12
from pyro_dgp.gp.likelihoods import Poisson, StudentT, ZeroInflated

N, D, M = 20, 2, 6


def data():
    X = torch.randn(N, D)
    return X, X[:, 0].sin() + 0.1 * torch.randn(N)


# Likelihoods


def test_a_likelihood_is_an_instance_a_class_or_a_name():
    X, y = data()
    counts = torch.poisson(3 * y.exp())
    own = Poisson(counts.mean())
    for likelihood in ("poisson", Poisson, own):
        dgp = LatentDGP.from_data(X, counts, num_inducing=M, likelihood=likelihood)
        torch.testing.assert_close(dgp.likelihood.intercept, counts.mean().log().reshape(1))


def test_exposure_moves_the_rate():
    X, y = data()
    counts = torch.poisson(3 * y.exp())
    dgp = LatentDGP.from_data(X, counts, num_inducing=M, likelihood="poisson")
    one, two = (
        dgp.predict(
            X, 50, exposure=torch.full((N,), e), generator=torch.Generator().manual_seed(0)
        ).mean
        for e in (1.0, 2.0)
    )
    torch.testing.assert_close(2 * one, two)


@pytest.mark.parametrize("num_outputs", [4, 8])
def test_what_is_given_per_row_holds_for_its_outputs(num_outputs):
    X, counts = torch.randn(8, D), torch.poisson(3 * torch.ones(8, num_outputs))
    dgp = LatentDGP.from_data(X, counts, num_inducing=M, likelihood="poisson", latent_dim=0)
    e = 1 + torch.arange(8.0)

    def mean(exposure):
        generator = torch.Generator().manual_seed(0)
        return dgp.predict(X, 5, exposure=exposure, generator=generator).mean

    torch.testing.assert_close(mean(e), e[:, None] * mean(torch.ones(8)))
    torch.testing.assert_close(mean(e[:, None].expand(8, num_outputs)), mean(e))
    losses = [
        DRegIWELBO(K=1).loss(dgp.model, dgp.guide, X, counts, exposure=given)
        for given in (e, e[:, None].expand(8, num_outputs))
        if pyro.set_rng_seed(0) is None
    ]
    assert losses[0] == pytest.approx(losses[1])


def test_quantiles_and_crps_of_extreme_distributions_end():
    rates = [(1e9, torch.float32), (1e30, torch.float32), (1e30, torch.float64)]
    for rate, dtype in rates:
        loc = torch.full((1, 1, 1), rate, dtype=dtype).log()
        p = PredictiveMixture(Poisson().to(dtype).predictive(loc, torch.full_like(loc, 1.0)))
        q = p.quantile(torch.tensor([0.1, 0.9]))[:, 0]
        assert 0 < q[0] < rate < q[1]
        assert p.crps(torch.zeros(1, dtype=dtype)).isfinite().all()


def test_a_quantile_at_a_jump_has_enough_probability():
    likelihood = ZeroInflated(GaussianLikelihood(0.01), 0.3, 0.7)
    f = torch.zeros(1, 4, 2), torch.full((1, 4, 2), 1e-6)
    p = PredictiveMixture(likelihood.predictive(*f))
    assert (p.quantile(0.8) - 0.3).abs().max() < 2e-6  # targets within 1e-6 count as the value
    assert (p.cdf(p.quantile(0.8)) >= 0.8).all()
    moved = p.affine(1.1, 3.3)
    torch.testing.assert_close(moved.cdf(torch.tensor(1.1 + 3.3 * 0.3)), p.cdf(torch.tensor(0.3)))
    two = Poisson(event_dim=1).predictive(torch.zeros(3, 4, 2), torch.ones(3, 4, 2))
    two, y = PredictiveMixture(two, 1), torch.ones(4, 2)
    twice = two.affine(0.0, torch.tensor([2.0, 3.0])).affine(0.0, 2.0)
    torch.testing.assert_close(twice.log_prob(2 * torch.tensor([2.0, 3.0]) * y), two.log_prob(y))


def test_training_data_by_name():
    X, y = data()
    counts, exposure = torch.poisson(3 * y.exp()), 0.5 + torch.rand(N)

    def losses(data, model=None):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        dgp = LatentDGP.from_data(X, counts, num_inducing=M, likelihood="poisson")
        functions = (
            (dgp.model, dgp.guide)
            if model is None
            else [lambda X, y, e, f=f: f(X, y, exposure=e) for f in (dgp.model, dgp.guide)]
        )
        options = {"num_steps": 5, "batch_size": 8, "progress": False}
        return fit(*functions, DRegIWELBO(K=2), data, **options).losses

    named = losses({"X": X, "y": counts, "exposure": exposure})
    assert named == losses((X, counts, exposure), "by position")
    assert named != losses({"X": X, "y": counts})


def test_a_checkpoint_knows_the_names_of_its_data(tmp_path):
    X, y = data()
    counts, w = torch.poisson(3 * y.exp()), torch.ones(N)
    dgp = LatentDGP.from_data(X, counts, num_inducing=M, likelihood="poisson")
    options = {"num_steps": 2, "progress": False, "checkpoint": tmp_path / "c.pt"}
    fit(dgp.model, dgp.guide, DRegIWELBO(K=1), {"X": X, "y": counts, "exposure": w}, **options)
    with pytest.raises(ValueError, match="was made with data="):
        fit(dgp.model, dgp.guide, DRegIWELBO(K=1), {"X": X, "y": counts, "weight": w}, **options)


# Layers


class Bend(Layer):
    """h -> tanh(a h) + b noise: deterministic but for a parameter, or random."""

    def __init__(self, dim, noise_scale):
        super().__init__()
        self.a = PyroParam(torch.tensor(0.7))
        self.noise_dim, self.noise_scale = dim if noise_scale else 0, noise_scale

    def width(self, input_dim):
        return input_dim

    def propagate(self, h, noise):
        h = torch.tanh(self.a * h)
        return h if noise is None else h + self.noise_scale * noise


@pytest.mark.parametrize("noise_scale", [0.0, 0.5])
def test_a_layer_of_ones_own(noise_scale):
    X, y = data()
    layers = [
        Bend(D, noise_scale),
        LatentLayer(1, GaussianEncoder(D + 1, 1, (4,))),
        GPLayer(RBF(D + 1), torch.randn(M, D + 1)),
    ]
    with torch.no_grad():
        layers[2].u_loc.normal_()
    dgp = LatentDGP(layers, GaussianLikelihood(0.1), N)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=3))
    before = layers[0].a.item()
    assert torch.tensor([svi.step(X, y) for _ in range(5)]).isfinite().all()
    assert layers[0].a.item() != before
    S = 4000
    draws = Predictive(dgp.model, guide=dgp.guide, num_samples=S, parallel=True)(X[:3])
    draws = draws[f"{dgp.name}.likelihood.y"]
    p = dgp.predict(X[:3], S)
    assert ((draws.mean(0) - p.mean).abs() < 4.5 * (2 * p.variance / S).sqrt()).all()
    torch.testing.assert_close(draws.var(0), p.variance, rtol=0.15, atol=0)
    with pytest.raises(ValueError, match="X has 3 columns, but the model was built for 2"):
        dgp.model(torch.randn(N, D + 1), y)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_kernels_and_inducing_inputs_of_the_configuration(num_layers):
    X, y = data()
    dgp = LatentDGP.from_data(
        X, y, num_layers=num_layers, num_inducing=M, num_last_inducing=9, kernel="matern12"
    )
    *hidden, last = dgp.layers[1:]
    assert all(isinstance(layer.kernel, Matern12) for layer in (*hidden, last))
    assert [len(layer.Xu) for layer in (*hidden, last)] == [M] * (num_layers - 1) + [9]
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=3))
    losses = torch.tensor([svi.step(X, y) for _ in range(30)])
    assert losses[-5:].mean() < losses[:5].mean()


# Checks and modes


def test_a_step_checks_its_data_once(monkeypatch):
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=M)
    seen, check = [], latent_dgp.check_data

    def counted(*args):
        seen.append(args)
        return check(*args)

    monkeypatch.setattr(latent_dgp, "check_data", counted)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=2))
    svi.step(X, y)
    svi.step(X, y)
    assert len(seen) == 1
    svi.step(X[:5], y[:5])
    assert len(seen) == 2
    X[3, 1] = float("nan")  # the tensors that were checked before, but not as they were
    with pytest.raises(ValueError, match="X holds 1 NaN"):
        svi.step(X, y)


def test_inference_tensors_are_checked_every_time():
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=M)
    counts = LatentDGP.from_data(X, y.abs().round(), num_inducing=M, likelihood="poisson")
    with torch.inference_mode():
        x = X.clone()
        dgp.predict(x, 2)
        assert counts.predict(x, 2).log_prob(torch.ones(N)).isfinite().all()
        x[0, 0] = float("nan")
        with pytest.raises(ValueError, match="X holds 1 NaN"):
            dgp.predict(x, 2)


def with_priors(autoguide=dist.Normal):
    """A model with priors on a lengthscale and on the noise's scale."""

    def kernel(input_dim):
        k = RBF(input_dim)
        k.lengthscale = PyroSample(dist.LogNormal(torch.zeros(D), 0.3).to_event(1))
        k.autoguide("lengthscale", autoguide)
        return k

    X, y = data()
    dgp = LatentDGP.from_data(
        X, y, num_inducing=M, latent_dim=0, num_layers=1, kernel=kernel, likelihood=StudentT
    )
    dgp.likelihood.scale = PyroSample(dist.LogNormal(torch.tensor(-1.0), torch.tensor(0.3)))
    dgp.likelihood.autoguide("scale", dist.Normal)
    return dgp, X, y


def test_modes_are_what_they_were():
    dgp, X, y = with_priors()
    parts = [part for part in dgp.modules() if isinstance(part, Parameterized)]
    for mode in ("model", "guide"):
        for part in parts:
            part.set_mode(mode)
        DRegIWELBO(K=2).loss(dgp.model, dgp.guide, X, y)
        dgp.predict(X, 2)
        dgp.layers[0](X)
        assert {part.mode for part in parts} == {mode}


# Predictions


class Refuse(Messenger):
    def _pyro_sample(self, msg):
        raise AssertionError(msg)

    _pyro_param = _pyro_sample


@pytest.mark.parametrize("priors", [False, True])
def test_predictions_send_no_message_and_store_nothing(priors):
    X, y = data()
    dgp = with_priors()[0] if priors else LatentDGP.from_data(X, y, num_inducing=M, num_layers=3)
    before = set(pyro.get_param_store().keys())
    with Refuse():
        p = dgp.predict(X, 3)
        p.log_prob(y), p.sample(), p.crps(y)
    assert set(pyro.get_param_store().keys()) == before


def test_a_generator_makes_predictions_repeatable():
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=M)
    with torch.no_grad():
        dgp.layers[-1].u_loc.normal_()
    state = torch.get_rng_state()
    one, two, other = (
        dgp.predict(X, 4, generator=torch.Generator().manual_seed(seed)).mean for seed in (1, 1, 2)
    )
    assert one.equal(two)
    assert not one.equal(other)
    assert torch.get_rng_state().equal(state)


def test_predictions_see_a_loaded_param_store(tmp_path):
    X, y = data()
    first = LatentDGP.from_data(X, y, num_inducing=M, name="first")
    svi = SVI(first.model, first.guide, pyro.optim.Adam({"lr": 0.1}), loss=DRegIWELBO(K=2))
    for _ in range(3):
        svi.step(X, y)
    expected = first.predict(X, 5, generator=torch.Generator().manual_seed(0)).mean
    pyro.get_param_store().save(tmp_path / "params.pt")
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    del first, svi
    again = LatentDGP.from_data(X, y, num_inducing=M, name="first")
    pyro.get_param_store().load(tmp_path / "params.pt")
    found = again.predict(X, 5, generator=torch.Generator().manual_seed(0)).mean
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("autoguide", [dist.Normal, dist.MultivariateNormal, dist.Delta])
def test_fixed_hyperparameters_are_draws_from_their_guide(autoguide):
    dgp, X, y = with_priors(autoguide)
    kernel = dgp.layers[0].kernel
    mine = torch.stack([fixed_copy(dgp).layers[0].kernel.lengthscale for _ in range(2000)]).log()
    pyros_own = []
    for _ in range(2000):
        trace = poutine.trace(dgp.guide).get_trace(X, y)
        pyros_own.append(trace.nodes[f"{dgp.name}.layers.0.kernel.lengthscale"]["value"].log())
    pyros_own = torch.stack(pyros_own)
    error = (mine.var(0) / 2000 + pyros_own.var(0) / 2000).sqrt()
    assert ((mine.mean(0) - pyros_own.mean(0)).abs() <= 4 * error + 1e-12).all()
    torch.testing.assert_close(mine.std(0), pyros_own.std(0), rtol=0.1, atol=1e-12)
    assert (mine.std(0) > 0).all() == (autoguide is not dist.Delta)
    assert kernel.mode == "model"


def test_a_parameter_may_be_taken_away():
    X, y = data()
    dgp = LatentDGP.from_data(X, y, num_inducing=M, likelihood="heteroscedastic")
    dgp.likelihood.intercept = None
    DRegIWELBO(K=2).loss_and_grads(dgp.model, dgp.guide, X, y)
    assert dgp.predict(X, 2).log_prob(y).isfinite().all()


def test_a_likelihoods_prior_is_drawn_for_every_component():
    dgp, X, y = with_priors()
    p = dgp.predict(X, 6)
    assert p.num_components == len(p.parts) == 6
    scales = [part.likelihood.scale.item() for part in p.parts]
    assert len(set(scales)) == 6
    one = torch.stack([part.log_prob(y)[0] for part in p.parts])
    torch.testing.assert_close(p.log_prob(y), one.logsumexp(0) - torch.tensor(6.0).log())
    assert p.sample((50,)).shape == (50, N)
    with pytest.raises(ValueError, match="The components are 6 distributions"):
        _ = p.components
