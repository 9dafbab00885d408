import copy
import io

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.contrib.gp import kernels
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroSample
from torch.distributions import MultivariateNormal, Normal

from pyro_dgp import (
    DRegIWELBO,
    GaussianEncoder,
    GaussianLikelihood,
    GPLayer,
    LatentDGP,
    LatentLayer,
    PartiallyCollapsedIWELBO,
)
from pyro_dgp.gp.conditional import whitened_kl
from pyro_dgp.gp.prediction import _latin_hypercube
from tests.gp.models import D, M, N, data, randomize, small, through_pickle
from tests.quadrature import gauss_hermite

ESTIMATORS = [PartiallyCollapsedIWELBO, DRegIWELBO]


# The configuration


def test_from_data_is_the_papers_configuration():
    X, y = data()
    X = X * torch.tensor([1.0, 3.0, 2.0])
    dgp = LatentDGP.from_data(X, y)
    latent, hidden, output = dgp.layers
    assert isinstance(latent, LatentLayer)
    assert latent.latent_dim == 1
    assert [m.out_features for m in latent.encoder.linears] == [20, 20, 2]
    assert hidden.Xu.shape == (128, D + 1)
    assert output.Xu.shape == (128, D)
    assert (hidden.num_gps, output.num_gps) == (D, 1)  # min(5, D)
    assert hidden.linear_mean.equal(torch.eye(D, D + 1))
    assert hidden.mixing.shape == (D, D)
    assert output.mixing is output.linear_mean is None
    for layer, dim, scale in ((hidden, D + 1, 1e-5), (output, D, 1.0)):
        torch.testing.assert_close(layer.kernel.lengthscale, torch.full((dim,), dim**0.5))
        torch.testing.assert_close(layer.kernel.variance, torch.tensor(1.0))
        torch.testing.assert_close(layer.u_loc, torch.zeros_like(layer.u_loc))
        S = scale * torch.eye(128).expand(layer.num_gps, -1, -1)
        torch.testing.assert_close(layer.u_scale_tril, S)
    torch.testing.assert_close(dgp.likelihood.variance, torch.tensor(0.01))
    trained = {name for name, _ in dgp.named_parameters()}
    assert "layers.2.kernel.variance_unconstrained" in trained
    assert "layers.1.kernel.variance_unconstrained" not in trained
    assert not any("mixing" in name or "linear_mean" in name for name in trained)


def test_wide_inputs_have_five_gps_and_the_published_variant_is_selectable():
    X, y = data(num_inputs=8)
    assert small(X, y).layers[1].num_gps == 5
    P = small(X, y, mixing="published").layers[1].mixing
    np.testing.assert_allclose(P, np.linalg.svd(X.numpy(), full_matrices=False)[2][:, :5])


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("latent_dim", [0, 1, 2])
def test_every_depth_trains_and_predicts(num_layers, latent_dim):
    # Each with every depth and every latent_dim: the first layers do not know the last one's width.
    num_outputs = (None, 1, 2)[(num_layers + latent_dim) % 3]
    X, y = data(num_outputs=num_outputs)
    dgp = small(X, y, num_layers=num_layers, latent_dim=latent_dim)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=3))
    first = [svi.step(X[:10], y[:10]) for _ in range(15)]
    assert np.isfinite(first).all()
    assert np.mean(first[-3:]) < np.mean(first[:3])
    predictive = dgp.predict(X[:4], 7)
    event_shape = () if num_outputs is None else (num_outputs,)
    assert predictive.batch_shape == (4,)
    assert predictive.event_shape == event_shape
    assert predictive.log_prob(y[:4]).shape == (4,)
    assert predictive.sample().shape == y[:4].shape
    assert all(p.grad is None or p.grad.isfinite().all() for p in dgp.parameters())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_latent_layers_may_stand_anywhere(estimator):
    X, y = data()
    layers = [
        GPLayer(kernels.RBF(D), X[:M], 2, torch.randn(D, 2), torch.eye(D), u_scale=1e-2),
        LatentLayer(2, GaussianEncoder(D + 1, 2)),
        GPLayer(kernels.RBF(D + 2), torch.randn(M, D + 2), 2),
        LatentLayer(1),
        GPLayer(kernels.RBF(3), torch.randn(M, 3), 1),
    ]
    dgp = LatentDGP(layers, GaussianLikelihood(0.1), len(X))
    loss = estimator(K=4, num_particles=2)
    assert np.isfinite(loss.loss_and_grads(dgp.model, dgp.guide, X[:8], y[:8]))
    assert all(p.grad.isfinite().all() for p in dgp.parameters())
    assert dgp.layers[1].encoder.linears[0].weight.grad.abs().sum() > 0
    assert dgp.predict(X, 5).batch_shape == (N,)


# The bound


def weight_reference(dgp, X, y, z, epsilon, q):
    """log w of the two-layer model from the paper's equations, for given z and epsilon."""
    _, hidden, output = dgp.layers
    h = torch.cat([X.expand(*z.shape[:-1], -1), z], -1)
    loc, var = hidden(h)
    f1 = h @ hidden.linear_mean.T + (loc + epsilon * var.sqrt()) @ hidden.mixing.T
    mean, variance = output(f1)
    s2 = dgp.likelihood.variance
    log_f = Normal(mean[..., 0], s2.sqrt()).log_prob(y) - variance[..., 0] / (2 * s2)
    return log_f + (Normal(0.0, 1.0).log_prob(z) - q.log_prob(z)).sum(-1)


def test_bound_is_the_papers_equation():
    """L_K of one draw, put together by hand from the values in Pyro's traces."""
    X, y = data()
    dgp = randomize(small(X, y))
    X, y, K = X[:6], y[:6], 5
    loss = PartiallyCollapsedIWELBO(K=K)
    loss.loss(dgp.model, dgp.guide, X, y)
    pyro.set_rng_seed(3)
    value = -loss.loss(dgp.model, dgp.guide, X, y)
    pyro.set_rng_seed(3)
    with torch.no_grad():
        layers = [dgp.layers[1], dgp.layers[2]]
        for layer in layers:
            torch.randn_like(layer.u_loc)
        q = dgp.layers[0].encoder(X, y).base_dist
        z = q.expand((K, 6, 1)).rsample()
        epsilon = torch.normal(torch.zeros(K, 6, D), 1.0)
        log_w = weight_reference(dgp, X, y, z, epsilon, q)
        kl = sum(whitened_kl(layer.u_loc, layer.u_scale_tril).sum() for layer in layers)
        expected = N / 6 * (log_w.logsumexp(0) - np.log(K)).sum() - kl
    assert value == pytest.approx(expected.item(), abs=1e-9)


def sparse_regression(X, y, Z, kernel, noise):
    """Optimal whitened q(u), the collapsed bound (Titsias 2009) and the log evidence."""
    Kuu, Kuf, Kff = kernel(Z), kernel(Z, X), kernel(X)
    L = torch.linalg.cholesky(Kuu + 1e-6 * torch.eye(len(Z)))
    A = torch.linalg.solve_triangular(L, Kuf, upper=False)
    precision = torch.eye(len(Z)) + A @ A.T / noise
    cov = precision.inverse()
    Qff = A.T @ A
    zero = torch.zeros(len(X))
    fit = MultivariateNormal(zero, Qff + noise * torch.eye(len(X))).log_prob(y)
    collapsed = fit - (Kff - Qff).diagonal().sum() / (2 * noise)
    evidence = MultivariateNormal(zero, Kff + noise * torch.eye(len(X))).log_prob(y)
    return cov @ A @ y / noise, torch.linalg.cholesky(cov), collapsed, evidence


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_shallow_gp_at_its_optimum_reaches_the_collapsed_bound(estimator):
    X, _ = data(num_inputs=1)
    y = torch.sin(2 * X[:, 0]) + 0.2 * torch.randn(N)
    kernel = kernels.RBF(1, variance=torch.tensor(1.0), lengthscale=torch.tensor(0.9))
    Z = torch.linspace(-2, 2, 6).unsqueeze(-1)
    with torch.no_grad():
        m, S, collapsed, evidence = sparse_regression(X, y, Z, kernel, 0.05)
    dgp = LatentDGP([GPLayer(kernel, Z)], GaussianLikelihood(0.05), N)
    with torch.no_grad():
        dgp.layers[0].u_loc.copy_(m)
        dgp.layers[0].u_scale_tril_unconstrained.copy_(S)
    loss = estimator(K=4)
    assert -loss.loss_and_grads(dgp.model, dgp.guide, X, y) == pytest.approx(
        collapsed.item(), abs=1e-8
    )
    assert collapsed < evidence
    # An optimum: no gradient for q(u).
    layer = dgp.layers[0]
    assert layer.u_loc.grad.abs().max() < 1e-7
    assert layer.u_scale_tril_unconstrained.grad.tril().abs().max() < 1e-7


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("latent_dim", [0, 1])
@pytest.mark.parametrize("rows", [N, 7])
def test_one_sample_is_doubly_stochastic_vi(estimator, latent_dim, rows):
    X, y = data()
    dgp = randomize(small(X, y, latent_dim=latent_dim))
    args = dgp.model, dgp.guide, X[:rows], y[:rows]
    ours = estimator(K=1, num_particles=20)
    pyros = TraceMeanField_ELBO(num_particles=20, vectorize_particles=True, max_plate_nesting=1)
    a, b = (torch.tensor([loss.loss(*args) for _ in range(40)]) for loss in (ours, pyros))
    error = (a.var() / len(a) + b.var() / len(b)).sqrt()
    assert abs(a.mean() - b.mean()) < 4 * error


def gradients(dgp, loss, X, y, num_draws):
    draws = []
    for _ in range(num_draws):
        dgp.zero_grad()
        loss.loss_and_grads(dgp.model, dgp.guide, X, y)
        draws.append(torch.cat([p.grad.reshape(-1) for p in dgp.parameters()]))
    return torch.stack(draws)


@pytest.mark.parametrize("latent_before", [0, 1])
def test_both_estimators_have_one_expectation_for_every_parameter(latent_before):
    """Encoder, inducing values and inputs, kernels, noise; z before either GP layer."""
    X, y = data(num_inputs=2)
    hidden_dim = 2 + (latent_before == 0)
    layers = [
        GPLayer(kernels.RBF(hidden_dim), torch.randn(4, hidden_dim), 2, u_scale=0.3),
        GPLayer(kernels.RBF(2 + latent_before), torch.randn(4, 2 + latent_before)),
    ]
    layers.insert(latent_before, LatentLayer(1, GaussianEncoder(3, 1, (3,))))
    dgp = LatentDGP(layers, GaussianLikelihood(0.3), N)
    X, y = X[:4], y[:4]
    a = gradients(dgp, PartiallyCollapsedIWELBO(K=4, num_particles=100), X, y, 80)
    b = gradients(dgp, DRegIWELBO(K=4, num_particles=100), X, y, 80)
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    z = (a.mean(0) - b.mean(0)) / (error + 1e-9)
    # Of a hundred-odd scores the largest is expected near 2.7.
    assert z.abs().max() < 4.2


# Pyro's machinery


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("latent_dim", [0, 1])
@pytest.mark.parametrize("vectorize", [False, True])
def test_pyros_elbos(elbo, latent_dim, vectorize):
    X, y = data()
    dgp = small(X, y, latent_dim=latent_dim)
    loss = elbo(num_particles=3, vectorize_particles=vectorize)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=loss)
    losses = [svi.step(X[:10], y[:10]) for _ in range(30)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("num_outputs", [None, 2])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("latent_dim", [0, 1])
def test_predictive_draws_what_predict_describes(parallel, num_outputs, num_layers, latent_dim):
    X, y = data(num_outputs=num_outputs)
    dgp = randomize(small(X, y, num_layers=num_layers, latent_dim=latent_dim))
    S = 3000 if parallel else 20
    samples = Predictive(dgp.model, guide=dgp.guide, num_samples=S, parallel=parallel)(X[:3])
    draws = samples[f"{dgp.name}.likelihood.y"]
    assert draws.shape == (S, *y[:3].shape)
    predictive = dgp.predict(X[:3], 3000)
    error = (predictive.variance * (1 / S + 1 / 3000)).sqrt()
    assert ((draws.mean(0) - predictive.mean).abs() < 4.5 * error).all()


def test_handlers_reach_every_draw():
    """With the draws fixed the model is a function, and a trace can be replayed."""
    X, y = data()
    dgp = randomize(small(X, y, num_layers=3))
    trace = poutine.trace(dgp.guide).get_trace(X, y)
    one, two = (
        poutine.trace(poutine.replay(dgp.model, trace=trace)).get_trace(X, y) for _ in range(2)
    )
    assert one.log_prob_sum() == two.log_prob_sum()
    site = f"{dgp.name}.layers.0.z"
    with poutine.condition(data={site: torch.full((N, 1), 2.0)}):
        conditioned = poutine.trace(dgp.model).get_trace(X)
    assert conditioned.nodes[site]["is_observed"]
    latent = [n for n, s in one.nodes.items() if s["type"] == "sample" and not s["is_observed"]]
    assert [n.removeprefix(f"{dgp.name}.") for n in latent] == [
        "data", "layers.1.u", "layers.2.u", "layers.3.u", "layers.0.z", "layers.1.epsilon",
        "layers.2.epsilon",
    ]  # fmt: skip


def test_the_plate_scales_a_minibatch():
    X, y = data()
    dgp = small(X, y)
    trace = poutine.trace(dgp.model).get_trace(X[:6], y[:6])
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and name.split(".")[-1] in ("z", "epsilon", "y"):
            assert site["scale"] == N / 6
        if site["type"] == "sample" and name.endswith(".u"):
            assert site["scale"] == 1


def test_priors_on_hyperparameters():
    X, y = data()

    def kernel(input_dim):
        k = kernels.RBF(input_dim)
        k.lengthscale = PyroSample(
            dist.LogNormal(torch.zeros(input_dim), torch.ones(input_dim)).to_event(1)
        )
        k.autoguide("lengthscale", dist.Normal)
        return k

    dgp = small(X, y, kernel=kernel)
    dgp.likelihood.variance = PyroSample(dist.Gamma(torch.tensor(2.0), torch.tensor(5.0)))
    dgp.likelihood.autoguide("variance", dist.Normal)
    for loss in (DRegIWELBO(K=3), TraceMeanField_ELBO(), Trace_ELBO()):
        svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=loss)
        losses = [svi.step(X[:10], y[:10]) for _ in range(5)]
        assert np.isfinite(losses).all()
    model = poutine.trace(dgp.model).get_trace(X, y)
    assert f"{dgp.name}.layers.1.kernel.lengthscale" in model.nodes
    assert not model.nodes[f"{dgp.name}.likelihood.variance"]["cond_indep_stack"]
    for elbo in (TraceMeanField_ELBO, Trace_ELBO):
        loss = elbo(num_particles=2, vectorize_particles=True)
        with pytest.raises(NotImplementedError, match="vectorize_particles=False"):
            loss.loss(dgp.model, dgp.guide, X, y)
    with pytest.raises(NotImplementedError, match="parallel=False"):
        Predictive(dgp.model, guide=dgp.guide, num_samples=2, parallel=True)(X)
    assert Predictive(dgp.model, guide=dgp.guide, num_samples=2)(X)
    predictive = dgp.predict(X[:2], 50)
    # Every sample has hyperparameters of its own, so variances differ; all rows share them.
    assert predictive.components.scale[:, 0].unique().numel() == 50


# Independence, copies, precision


def trained(seed, X, y, steps=5):
    pyro.set_rng_seed(seed)
    dgp = small(X, y)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=3))
    return dgp, svi, [svi.step(X[:10], y[:10]) for _ in range(steps)]


def test_the_same_seed_gives_the_same_run_beside_another_model():
    X, y = data()
    alone, svi, losses = trained(1, X, y)
    _, _, other = trained(2, X, y)
    _, _, again = trained(1, X, y)
    assert losses == again != other
    before = copy.deepcopy(alone.state_dict())
    trained(3, X, y)
    svi.evaluate_loss(X, y)
    assert all(before[k].equal(v) for k, v in alone.state_dict().items())


def embedded(X, y):
    outer = PyroModule()
    outer.dgp = small(X, y)
    return outer


def test_parts_of_two_larger_models_are_independent():
    X, y = data()
    one, two = embedded(X, y), embedded(X, y)
    before = copy.deepcopy(one.state_dict())
    for outer in (one, two):
        svi = SVI(outer.dgp.model, outer.dgp.guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        svi.step(X, y)
        if outer is one:
            first = copy.deepcopy(one.state_dict())
    assert not first["dgp.layers.1.u_loc"].equal(before["dgp.layers.1.u_loc"])
    assert first["dgp.layers.1.u_loc"].equal(one.state_dict()["dgp.layers.1.u_loc"])


def through_torch_save(dgp):
    buffer = io.BytesIO()
    torch.save(dgp, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, through_pickle, through_torch_save]
)
def test_copies_predict_alike_and_are_independent(duplicate):
    X, y = data()
    dgp, _, _ = trained(1, X, y)
    other = duplicate(dgp)
    assert other.name != dgp.name
    pyro.set_rng_seed(0)
    expected = dgp.predict(X, 4)
    pyro.set_rng_seed(0)
    found = other.predict(X, 4)
    assert found.components.loc.equal(expected.components.loc)
    assert found.components.scale.equal(expected.components.scale)
    svi = SVI(other.model, other.guide, pyro.optim.Adam({"lr": 0.1}), loss=DRegIWELBO(K=3))
    svi.step(X, y)
    pyro.set_rng_seed(0)
    assert dgp.predict(X, 4).components.loc.equal(expected.components.loc)
    assert not other.layers[1].u_loc.equal(dgp.layers[1].u_loc)


def test_state_dict_moves_between_models():
    X, y = data()
    one, _, _ = trained(1, X, y)
    two, _, _ = trained(2, X, y)
    two.load_state_dict(one.state_dict())
    pyro.set_rng_seed(0)
    expected = one.predict(X, 3).components.loc
    pyro.set_rng_seed(0)
    assert two.predict(X, 3).components.loc.equal(expected)


def test_a_given_name_is_kept():
    X, y = data()
    dgp = small(X, y, name="rate")
    dgp.guide(X, y)
    assert dgp.name == "rate"
    assert all(name.startswith("rate.") for name in pyro.get_param_store())


def test_a_name_goes_on_from_a_loaded_param_store(tmp_path):
    X, y = data()

    def trained(steps):
        dgp = small(X, y, name="rate")
        svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.02}), loss=DRegIWELBO(K=5))
        for _ in range(steps):
            svi.step(X, y)
        return dgp

    dgp = trained(30)
    pyro.get_param_store().save(tmp_path / "store.pt")
    before = {name: p.detach().clone() for name, p in dgp.named_parameters()}
    pyro.clear_param_store()
    del dgp
    pyro.get_param_store().load(tmp_path / "store.pt")
    again = trained(0)
    for name, p in again.named_parameters():
        assert p.equal(before[name]), name
    assert not any("rate" in key for key in pyro.get_param_store())  # at their first use
    del again
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store.pt")
    trained_on = trained(3)
    moved = {name for name, p in trained_on.named_parameters() if not p.equal(before[name])}
    assert moved == {name for name, p in trained_on.named_parameters() if p.requires_grad}
    pyro.get_param_store().load(tmp_path / "store.pt")
    with pytest.raises(ValueError, match=r"param store has 'rate.* with shape"):
        LatentDGP.from_data(X, y, num_inducing=7, name="rate")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_precision_follows_the_data(dtype, default):
    torch.set_default_dtype(default)
    X, y = data(dtype=dtype)
    dgp = LatentDGP.from_data(X, y, num_layers=3, num_inducing=20)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=5))
    assert np.isfinite([svi.step(X, y) for _ in range(3)]).all()
    assert {p.dtype for p in dgp.parameters()} == {dtype}
    predictive = dgp.predict(X, 10)
    assert predictive.log_prob(y).dtype == dtype
    assert predictive.quantile(0.1).isfinite().all()


def test_a_model_that_was_made_in_inference_mode_trains():
    X, y = torch.rand(20, 2), torch.rand(20)
    with torch.inference_mode():
        dgp = LatentDGP.from_data(X, y, num_inducing=5)
    loss = DRegIWELBO(K=2)
    loss.loss_and_grads(dgp.model, dgp.guide, X, y)
    assert all(p.grad is not None for p in dgp.layers[-1].parameters())


def test_a_model_can_change_its_precision():
    X, y = data(dtype=torch.float32)
    dgp = small(X, y).double()
    assert np.isfinite(DRegIWELBO(K=2).loss(dgp.model, dgp.guide, X.double(), y.double()))


# Prediction


def test_prediction_is_the_mixture_over_draws_of_z():
    """One GP layer: p(y | x) = E_z N(y; mean(x, z), var(x, z) + s^2), by quadrature over z."""
    X, y = data(num_inputs=1)
    dgp = randomize(small(X, y, num_layers=1))
    z, w = gauss_hermite(60)
    h = torch.stack(torch.broadcast_tensors(X[:4, :1], z.unsqueeze(0)), -1)
    with torch.no_grad():
        loc, var = dgp.layers[1](h)
        sd = (var[..., 0] + dgp.likelihood.variance).sqrt()
        exact = (Normal(loc[..., 0], sd).log_prob(y[:4, None]).exp() * w).sum(-1)
        p = dgp.predict(X[:4], 20_000)
        density = Normal(p.components.loc, p.components.scale).log_prob(y[:4]).exp()
    error = density.std(0) / 20_000**0.5
    assert ((density.mean(0) - exact).abs() < 4.5 * error).all()


def test_chunks_of_rows_and_samples(monkeypatch):
    X, y = data()
    dgp = randomize(small(X, y))
    monkeypatch.setattr("pyro_dgp.gp.prediction._PREDICT_ROWS", 7)
    p = dgp.predict(X, 11)
    assert p.components.loc.shape == (11, N)
    assert p.components.loc.isfinite().all()
    assert p.components.loc.unique().numel() == 11 * N


def test_prediction_leaves_no_trace():
    X, y = data()
    dgp = small(X, y)
    with poutine.trace() as tracer:
        dgp.predict(X, 3)
    assert not [s for s in tracer.trace.nodes.values() if s["type"] == "sample"]
    assert not any(p.requires_grad for p in (dgp.predict(X, 3).components.loc,))


# Bad input


@pytest.mark.parametrize(
    "make",
    [
        lambda: data(num_rows=1),
        lambda: data(num_rows=3),
        lambda: (torch.ones(20, D), torch.ones(20)),
        lambda: (torch.zeros(20, 1), torch.randn(20)),
        lambda: tuple(t.repeat_interleave(10, 0) for t in data(num_rows=3)),
        lambda: (torch.randn(20, 1).expand(20, 4).contiguous(), torch.randn(20)),
        lambda: data(num_rows=5, num_inputs=40),
    ],
    ids=["N=1", "N=3", "constant", "zero", "repeated rows", "repeated columns", "D > N"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mixing", ["principal", "published"])
def test_awkward_data_work(make, dtype, mixing):
    X, y = (t.to(dtype) for t in make())
    dgp = LatentDGP.from_data(X, y, num_inducing=16, mixing=mixing)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=3))
    assert np.isfinite([svi.step(X, y) for _ in range(5)]).all()
    assert dgp.predict(X, 10).log_prob(y).isfinite().all()


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_shared_draws_make_rows_independent_of_one_another(monkeypatch, num_outputs):
    X, y = data(num_outputs=num_outputs)
    dgp = small(X, y)
    randomize(dgp)

    def predict(X, **options):
        pyro.set_rng_seed(1)
        return dgp.predict(X, 50, **options)

    whole = predict(X, shared_draws=True)
    monkeypatch.setattr("pyro_dgp.gp.prediction._PREDICT_ROWS", 7)
    assert torch.allclose(
        predict(X[3:5], shared_draws=True).components.loc, whole.components.loc[:, 3:5], atol=1e-10
    )
    # One distribution, whichever way it is drawn.
    pyro.set_rng_seed(2)
    one, other = (dgp.predict(X[:2], 4000, shared_draws=s) for s in (True, False))
    error = (one.components.loc.var(0) / 4000 + other.components.loc.var(0) / 4000).sqrt()
    assert ((one.mean - other.mean).abs() < 4 * error).all()
    assert torch.allclose(one.stddev, other.stddev, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.statistical
def test_shared_draws_are_evenly_spread(dtype):
    X, y = (t.to(dtype) for t in data())
    dgp = small(X, y, num_layers=1, latent_dim=2)
    randomize(dgp)

    def spread(**options):
        """Standard deviation of the predictive means over repetitions."""
        return torch.stack([dgp.predict(X[:4], 100, **options).mean for _ in range(40)]).std(0)

    pyro.set_rng_seed(0)
    # Independent draws have a ratio of 1, which 40 repetitions estimate to some 15%.
    assert (spread(shared_draws=True) < 0.4 * spread()).all()


def test_a_latin_hypercube_has_one_draw_in_each_part():
    generator = torch.Generator().manual_seed(0)
    z = _latin_hypercube(1000, 3, torch.zeros((), dtype=torch.float64), generator)
    parts = (1000 * torch.special.ndtr(z)).floor().long().sort(0).values
    assert (parts == torch.arange(1000).unsqueeze(-1)).all()
    # Coordinates are independent of each other: a correlation has a standard error of 0.03.
    assert (z.mT.corrcoef().triu(1).abs() < 0.12).all()
    first = _latin_hypercube(3, 1, torch.zeros((), dtype=torch.float32), generator)
    assert (first.dtype, first.shape) == (torch.float32, (3, 1))


def test_predictions_with_a_given_latent_input():
    X, y = data()
    dgp = small(X, y, num_layers=1, latent_dim=2)
    randomize(dgp)
    z = torch.tensor([0.5, -1.0], dtype=X.dtype)
    found = dgp.predict(X, 3, z=z)
    inputs = torch.cat([X, z.expand(len(X), 2)], -1)
    loc, var = dgp.layers[-1].marginal(inputs)
    assert torch.allclose(found.components.loc, loc.mT.expand(3, -1))
    assert torch.allclose(
        found.components.scale, (var + dgp.likelihood.variance).sqrt().mT.expand(3, -1)
    )
