"""The laws of a latent deep GP, over every likelihood."""

import copy
import threading

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroParam, pyro_method

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO, fit
from pyro_dgp.gp.likelihoods import LIKELIHOODS, Gamma, ZeroInflated
from tests.gp.likelihoods.cases import HeteroscedasticLaplace, Laplace
from tests.gp.models import randomize, through_pickle

pytestmark = pytest.mark.statistical

N, D = 24, 2


def inflated(g):
    return torch.where(g > 0, g, 0.0)


#: From standard normal draws to targets; and a likelihood, where it is not that of the name.
FAMILY = {
    "gaussian": (lambda g: g,),
    "heteroscedastic": (lambda g: g,),
    "student_t": (lambda g: g,),
    "bernoulli": (lambda g: (g > 0).long(),),
    "binomial": (lambda g: (2.5 + g).round().clamp(0, 5),),
    "categorical": (lambda g: (1 + g).round().clamp(0, 2).long(),),
    "ordinal": (lambda g: (1.5 + g).round().clamp(0, 3).long(),),
    "poisson": (lambda g: torch.poisson(g.exp()).long(),),
    "negative_binomial": (lambda g: torch.poisson(g.exp()),),
    "gamma": (lambda g: g.exp(),),
    "log_normal": (lambda g: g.exp(),),
    "beta": (lambda g: g.sigmoid(),),
    "rounded": (lambda g: (2 * g).round() / 2,),
    "zero_inflated": (inflated,),
    "zero-inflated gamma": (inflated, lambda y: ZeroInflated(Gamma(event_dim=y.dim() - 1))),
    "laplace": (lambda g: g, Laplace),
    "heteroscedastic laplace": (lambda g: g, HeteroscedasticLaplace),
}


def test_the_table_is_complete():
    assert LIKELIHOODS.keys() <= FAMILY.keys()


def data(name, num_rows=N, num_outputs=None, dtype=torch.float64):
    X = torch.randn(num_rows, D, dtype=dtype)
    shape = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    y = FAMILY[name][0](0.7 * torch.randn(shape) + X[:, :1].reshape(-1, *[1] * (len(shape) - 1)))
    return X, y.to(dtype) if y.is_floating_point() else y


def covariates(name, y):
    """What the likelihood needs per row."""
    return {"total_count": torch.full(y.shape, 5)} if name == "binomial" else {}


def small(name, X, y, **options):
    """A model with q(u) away from its initial value."""
    likelihood = (*FAMILY[name], name)[1]
    likelihood = likelihood(y) if name == "zero-inflated gamma" else likelihood
    dgp = LatentDGP.from_data(X, y, num_inducing=6, likelihood=likelihood, **options)
    return randomize(dgp, 0.3)


def agree(a, b, tolerance=4.0):
    """Means of draws agree within standard errors."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return ((a.mean(0) - b.mean(0)).abs() <= tolerance * error + 1e-9).all()


@pytest.fixture(params=FAMILY)
def name(request):
    return request.param


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_training_lowers_the_loss_and_predicts(name, num_outputs):
    # Both dtypes of every likelihood, and with each number of outputs those of half of them.
    other = list(FAMILY).index(name) % 2 == 0
    dtype = torch.float32 if (num_outputs is None) == other else torch.float64
    X, y = data(name, num_outputs=num_outputs, dtype=dtype)
    given = covariates(name, y)
    dgp = small(name, X, y)
    loss = DRegIWELBO(K=3, num_particles=4)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.04}), loss=loss)
    losses = torch.tensor([svi.step(X, y, **given) for _ in range(9)])
    assert losses.isfinite().all()
    assert losses[-3:].mean() < losses[:3].mean()
    assert {p.dtype for p in dgp.parameters()} == {dtype}
    assert all(p.grad is None or p.grad.isfinite().all() for p in dgp.parameters())
    p = dgp.predict(X, 9, **given)
    log_prob = p.log_prob(y)
    assert log_prob.shape == (N,)
    assert log_prob.dtype == dtype
    assert log_prob.isfinite().all()
    draws = p.sample((4,))
    assert draws.shape == (4, *y.shape)
    dgp.likelihood.check_targets(draws[0].to(y.dtype), **given)


@pytest.mark.parametrize("rows", [N, 7])
def test_one_sample_is_doubly_stochastic_vi(name, rows):
    X, y = data(name)
    given = {k: v[:rows] for k, v in covariates(name, y).items()}
    dgp = small(name, X, y)
    args = dgp.model, dgp.guide, X[:rows], y[:rows]
    pyros = TraceMeanField_ELBO(num_particles=40, vectorize_particles=True, max_plate_nesting=1)
    ours, other = (e(K=1, num_particles=40) for e in (PartiallyCollapsedIWELBO, DRegIWELBO))
    found = [torch.tensor([e.loss(*args, **given) for _ in range(12)]) for e in (pyros, ours)]
    assert agree(*found)
    other.loss(*args, **given)  # learns the structure, which draws
    pyro.set_rng_seed(1)
    expected = ours.loss(*args, **given)
    pyro.set_rng_seed(1)
    assert other.loss(*args, **given) == pytest.approx(expected)  # they differ in gradients alone


def gradients(dgp, loss, X, y, given, num_draws):
    draws = []
    for _ in range(num_draws):
        dgp.zero_grad()
        loss.loss_and_grads(dgp.model, dgp.guide, X, y, **given)
        draws.append(torch.cat([p.grad.reshape(-1) for p in dgp.parameters()]))
    return torch.stack(draws)


def test_both_estimators_have_one_expectation(name):
    X, y = data(name)
    dgp = small(name, X, y, encoder_widths=(3,), num_gps=1)
    X, y = X[:4], y[:4]
    given = covariates(name, y)
    a = gradients(dgp, PartiallyCollapsedIWELBO(K=4, num_particles=80), X, y, given, 30)
    b = gradients(dgp, DRegIWELBO(K=4, num_particles=80), X, y, given, 30)
    # Of some 150 scores, with 30 draws each, the largest is expected near 3.0.
    assert agree(a, b, 4.5)


def test_batches_estimate_the_bound_of_all_data(name):
    X, y = data(name)
    given = covariates(name, y)
    dgp = small(name, X, y)
    loss = PartiallyCollapsedIWELBO(K=3, num_particles=20)
    whole, parts = [], []
    for _ in range(12):
        whole.append(loss.loss(dgp.model, dgp.guide, X, y, **given))
        batches = zip(torch.randperm(N).split(8), strict=True)
        values = [
            loss.loss(dgp.model, dgp.guide, X[b], y[b], **{k: v[b] for k, v in given.items()})
            for (b,) in batches
        ]
        parts.append(sum(values) / 3)
    assert agree(torch.tensor(whole), torch.tensor(parts))


class Larger(PyroModule):
    """The deep GP beside a linear effect that all of its functions get."""

    def __init__(self, dgp):
        super().__init__()
        self.dgp = dgp
        self.loc = PyroParam(torch.tensor(0.0))

    @pyro_method
    def model(self, X, y=None, **given):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        plate = self.dgp.plate(X)
        f_loc, f_var = self.dgp.function(X, plate)
        with plate:
            observation = self.dgp.likelihood.observation(f_loc + slope * X[:, :1], f_var, **given)
            return pyro.sample("y", observation, obs=y)

    @pyro_method
    def guide(self, X, y=None, **given):
        pyro.sample("slope", dist.Normal(self.loc, 0.1))
        self.dgp.guide(X, y, **given)


def test_part_of_a_larger_model(name):
    X, y = data(name)
    given = covariates(name, y)
    larger = Larger(small(name, X, y))
    for loss in (DRegIWELBO(K=3), TraceMeanField_ELBO(), Trace_ELBO()):
        pyro.clear_param_store()
        svi = SVI(larger.model, larger.guide, pyro.optim.Adam({"lr": 0.01}), loss=loss)
        losses = torch.tensor([svi.step(X, y, **given) for _ in range(3)])
        assert losses.isfinite().all()
    # The likelihood's own parameters are among those that the optimiser sees.
    mine = {n for n, _ in larger.dgp.likelihood.named_parameters()}
    trained = {n.partition(".likelihood.")[2] for n in pyro.get_param_store()}
    assert {n.removesuffix("_unconstrained") for n in mine} <= trained


def test_resumed_training_is_training(name, tmp_path):
    X, y = data(name)
    arguments = {"X": X, "y": y, **covariates(name, y)}

    def run(num_steps, checkpoint=None):
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        dgp = small(name, X, y)
        options = {"num_steps": num_steps, "batch_size": 8, "progress": False}
        return fit(
            dgp.model, dgp.guide, DRegIWELBO(K=2), arguments, checkpoint=checkpoint, **options
        ).losses

    expected = run(8)
    run(3, tmp_path / "c.pt")
    assert run(8, tmp_path / "c.pt") == expected


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle])
def test_copies_predict_alike(name, duplicate):
    X, y = data(name)
    given = covariates(name, y)
    dgp = small(name, X, y)
    dgp.guide(X, y, **given)
    found = [
        d.predict(X, 5, generator=torch.Generator().manual_seed(1), **given).log_prob(y)
        for d in (dgp, duplicate(dgp))
    ]
    assert found[0].equal(found[1])


@pytest.mark.parametrize(
    ("name", "num_outputs"), [*((name, None) for name in FAMILY), ("gaussian", 2), ("poisson", 2)]
)
def test_a_fitted_prior_of_z_is_more_likely(name, num_outputs, monkeypatch):
    monkeypatch.setattr("pyro_dgp.gp.latent_prior._NUM_DRAWS", 512)
    X, y = data(name, num_outputs=num_outputs)
    given = covariates(name, y)
    dgp = small(name, X, y)

    def log_likelihood():
        generator = torch.Generator().manual_seed(1)
        p = dgp.predict(X, 500, shared_draws=True, generator=generator, **given)
        return p.log_prob(y).sum().item()

    before = log_likelihood()
    dgp.fit_latent_prior(X, y, generator=torch.Generator().manual_seed(0), **given)
    shares = dgp.layers[0].prior_shares
    assert ((shares > 0) & (shares < 1)).all()
    # Half a datum per interval, of 24 data, leaves little of the gain: but it is one.
    assert log_likelihood() > before - 0.02
    assert (shares - 1 / 64).abs().max() > 1e-6


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_the_mean_over_draws_of_functions_is_the_integral(name, num_outputs):
    X, y = data(name, num_outputs=num_outputs)
    given = covariates(name, y)
    dgp = small(name, X, y)
    likelihood, J = dgp.likelihood, dgp.likelihood.num_functions
    with torch.no_grad():
        shape = (3, N, J * (num_outputs or 1))
        loc, var = torch.randn(shape), 0.5 * torch.rand(shape)
        log_p = likelihood.predictive(loc, var, **given).log_prob(y)
        ten = likelihood.integral(*(t.expand(10, *shape) for t in (loc, var)), **given)
        found = []
        for _ in range(5):  # fifty means of 200 draws
            standard = torch.randn(200, J, 10, *log_p.shape)
            found.append(ten.log_prob_by_draws(y, standard).exp())
        found = torch.cat(found)
    # Densities, not their logarithms: targets in the far tails would need many more draws.
    off, error = found.mean(0) - log_p.exp(), found.std(0) / len(found) ** 0.5
    if name == "heteroscedastic laplace":  # too sharp for 24 x 24 nodes, in either direction
        off, error = off.mean(), error.square().mean().sqrt()
    assert (off.abs() <= 5 * error + 1e-3).all()
    assert likelihood.closed_marginal == (found.std(0).max() < 1e-6).item()


def test_predictions_in_chunks(name, monkeypatch):
    X, y = data(name)
    given = covariates(name, y)
    dgp = small(name, X, y)

    def predict():
        generator = torch.Generator().manual_seed(1)
        return dgp.predict(X, 11, shared_draws=True, generator=generator, **given)

    whole = predict()
    monkeypatch.setattr("pyro_dgp.gp.prediction._PREDICT_ROWS", 7)
    monkeypatch.setattr("pyro_dgp.gp.predictive.mixture._CHUNK", 500)
    parts = predict()
    torch.testing.assert_close(parts.log_prob(y), whole.log_prob(y))
    torch.testing.assert_close(parts[3:9].log_prob(y[3:9]), whole.log_prob(y)[3:9])
    if whole.log_prob(y).isfinite().all() and name != "categorical":
        torch.testing.assert_close(parts.mean, whole.mean)
        torch.testing.assert_close(parts.variance, whole.variance)


def test_pyros_predictive_draws_what_predict_describes(name):
    X, y = data(name)
    given = {k: v[:3] for k, v in covariates(name, y).items()}
    dgp = small(name, X, y)
    S = 4000
    samples = Predictive(dgp.model, guide=dgp.guide, num_samples=S, parallel=True)(X[:3], **given)
    draws = samples[f"{dgp.name}.likelihood.y"].double()
    assert draws.shape == (S, 3)
    p = dgp.predict(X[:3], S, **given)
    # Bounded functions of the targets, as some distributions here have heavy tails.
    for fn in (torch.tanh, lambda v: (v > 0.5).double()):
        assert agree(fn(draws), fn(p.sample((S,)).double()), 4.5)


def test_threads_predict_beside_training(name):
    X, y = data(name)
    given = covariates(name, y)
    dgp, other = small(name, X, y), small(name, X, y)
    svi = SVI(other.model, other.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=2))

    def predict(seed):
        generator = torch.Generator().manual_seed(seed)
        return dgp.predict(X, 5, generator=generator, **given).log_prob(y)

    alone = [predict(seed) for seed in range(4)]
    together, errors = {}, []

    def work(seed):
        try:
            for _ in range(3):
                together[seed] = predict(seed)
        except Exception as error:  # to be seen in the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        svi.step(X, y, **given)
    for thread in threads:
        thread.join()
    assert not errors
    assert all(together[seed].equal(value) for seed, value in enumerate(alone))


def test_a_weight_multiplies_a_rows_log_density(name):
    """Without a latent input, a row of weight 2 is two rows, and one of weight 0 is none."""
    X, y = data(name, 6)
    given = covariates(name, y)
    dgp = small(name, X, y, num_layers=1, latent_dim=0)

    def log_prob(rows, **more):
        dgp.num_data = len(rows)
        some = {k: v[rows] for k, v in (given | more).items()}
        return (
            poutine.trace(dgp.model)
            .get_trace(X[rows], y[rows], **some)
            .log_prob_sum(lambda site, _: site.endswith("y"))
        )

    rows = torch.arange(6)
    weight = torch.tensor([2.0, 0.0, 1.0, 3.0, 1.0, 1.0])
    repeated = log_prob(rows.repeat_interleave(weight.long()))
    torch.testing.assert_close(log_prob(rows, weight=weight), repeated)
    with pytest.raises(ValueError, match="weight must not be negative"):
        log_prob(rows, weight=-weight)
    with pytest.raises(TypeError, match="takes no 'wait'"):
        log_prob(rows, wait=weight)
