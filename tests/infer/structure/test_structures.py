"""Kinds of models that other people's code has: the right bound, or a refusal with a remedy."""

import itertools
import random

import numpy as np
import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
import torch.utils.checkpoint
from pyro.distributions import transforms
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.reparam import LocScaleReparam, TransformReparam

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO, fit
from pyro_dgp.infer import SNRProfiler, annealed_adam, parameters_of
from pyro_dgp.infer.structure.coupling import distinct_words
from tests.infer.estimates import mean_of
from tests.quadrature import smooth_expectation

pytestmark = pytest.mark.statistical

ESTIMATORS = [PartiallyCollapsedIWELBO, DRegIWELBO]
both = pytest.mark.parametrize("estimator", ESTIMATORS)
Y = torch.tensor([0.3, -0.8, 1.2, 0.1])


# Of eight draws at once.
PYROS = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)


def agree(one, other, limit=4.5):
    return abs(one[0] - other[0]) < limit * (one[1] ** 2 + other[1] ** 2) ** 0.5 + 1e-9


def hierarchy():
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.LogNormal(0.0, 0.3))
    with pyro.plate("data", len(Y)):
        z = pyro.sample("z", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(z, 0.7), obs=Y)


@pytest.mark.parametrize(
    "config",
    [{"z": LocScaleReparam(0.0)}, {"mu": LocScaleReparam(0.0)}, {"tau": TransformReparam()}],
)
@both
def test_reparameterised_sites(estimator, config):
    """A site under poutine.reparam is an observed point, in its plate or out of it."""
    model = poutine.reparam(hierarchy, config=config)
    guide = AutoNormal(model, init_scale=0.5)
    reference = mean_of(PYROS, model, guide, 60)
    one, many = (mean_of(estimator(K=K, num_particles=8), model, guide, 60) for K in (1, 20))
    assert agree(one, reference)
    assert many[0] > one[0]


@both
def test_what_no_observation_reads_is_not_weighed(estimator):
    """Pyro's sparse GP integrates u, which K draws would only take its KL from."""
    torch.manual_seed(0)
    X = torch.linspace(-2, 2, 5)[:, None]
    sparse = gp.models.VariationalSparseGP(
        X, torch.sin(X[:, 0]), gp.kernels.RBF(1), X.clone(), gp.likelihoods.Gaussian(), whiten=True
    )
    torch.nn.init.normal_(sparse.u_loc)
    expected = -TraceMeanField_ELBO().loss(sparse.model, sparse.guide)
    loss = estimator(K=50)
    with pytest.warns(UserWarning, match="No latent site is drawn in the data plate.* K can do"):
        assert -loss.loss(sparse.model, sparse.guide) == pytest.approx(expected, abs=1e-9)


@both
def test_unread_draws_in_the_data_plate(estimator):
    """f_n ~ q(f_n), whose parameters the density of y_n has integrated."""
    case = {"m": torch.tensor(0.4), "s": torch.tensor(0.6)}

    def model():
        with pyro.plate("data", 4):
            pyro.sample("f", dist.Normal(0.0, 1.0))
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            log_p = dist.Normal(case["m"] + z, 0.5).log_prob(Y) - case["s"] ** 2 / (2 * 0.25)
            pyro.factor("y", log_p)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("f", dist.Normal(case["m"], case["s"]))
            pyro.sample("z", dist.Normal(0.2 * Y, 0.9))

    kl = 4 * torch.distributions.kl_divergence(dist.Normal(0.4, 0.6), dist.Normal(0.0, 1.0)).item()
    exact = dist.Normal(0.4, (1 + 0.25) ** 0.5).log_prob(Y).sum().item() - 4 * 0.36 / 0.5 - kl
    found = mean_of(estimator(K=500), model, guide, 60)
    assert found[0] == pytest.approx(exact, abs=0.01)


@both
def test_what_is_read_without_a_gradient_is_read(estimator):
    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z.detach(), 1.0), obs=Y)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    evidence = dist.Normal(0.0, 2**0.5).log_prob(Y).sum().item()
    assert mean_of(estimator(K=300), model, guide, 50)[0] == pytest.approx(evidence, abs=0.02)


@both
def test_data_that_read_each_others_draws(estimator):
    def model():
        with pyro.plate("time", 4):
            step = pyro.sample("step", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(step.cumsum(-1), 1.0), obs=Y)

    def guide():
        with pyro.plate("time", 4):
            pyro.sample("step", dist.Normal(0.2, 0.7))

    with pytest.raises(NotImplementedError, match=r"\['time'\] depend on each other's .*'y'"):
        estimator(K=2).loss(model, guide)
    assert agree(mean_of(estimator(K=1), model, guide), mean_of(Trace_ELBO(), model, guide))


def test_K_may_grow_later():
    def sites(observe):
        with pyro.plate("time", 4):
            step = pyro.sample("step", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(step.cumsum(-1), 1.0), obs=Y)

    loss, model, guide = DRegIWELBO(K=1), (lambda: sites(True)), (lambda: sites(False))
    loss.loss(model, guide)
    loss.K = 2
    with pytest.raises(NotImplementedError, match="depend on each other's draws"):
        loss.loss(model, guide)


def test_rounding_is_no_dependence():
    """Also in single precision, where the rounding errors of a row must not depend on others."""
    X = torch.linspace(-2, 2, 500, dtype=torch.float32).unsqueeze(-1)
    branch = torch.where(torch.rand(500) < 0.5, 1.0, -1.0)
    y = (branch * X.squeeze(-1).sin() + 0.05 * torch.randn(500)).float()
    dgp = LatentDGP.from_data(
        X, y, num_layers=2, num_inducing=32, latent_dim=1, function_draws="shared",
        num_features=200,
    )  # fmt: skip
    history = fit(
        dgp.model, dgp.guide, DRegIWELBO(K=10), (X, y), num_steps=20,
        optim=annealed_adam(0.02, 20), progress=False,
    )  # fmt: skip
    assert len(history.losses) == 20


def test_a_weak_dependence_is_found_in_single_precision():
    def model():
        with pyro.plate("data", 7):
            z = pyro.sample("z", dist.Normal(torch.zeros(7, dtype=torch.float32), 1.0))
            loc = z + 0.01 * z.roll(1, -1)
            pyro.sample("y", dist.Normal(loc, 1.0), obs=torch.zeros(7, dtype=torch.float32))

    def guide():
        with pyro.plate("data", 7):
            pyro.sample("z", dist.Normal(torch.zeros(7, dtype=torch.float32), 1.0))

    with pytest.raises(NotImplementedError, match="depend on each other's draws"):
        DRegIWELBO(K=2).loss(model, guide)


@both
def test_a_decoder_with_batch_normalisation(estimator):
    norm = torch.nn.BatchNorm1d(1)

    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            loc = norm(z.reshape(-1, 1)).reshape(z.shape[:-1])
            pyro.sample("y", dist.Normal(loc, 1.0), obs=Y)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))

    with pytest.raises(NotImplementedError, match="batch normalisation"):
        estimator(K=2).loss(model, guide)
    norm.eval()
    assert torch.isfinite(torch.tensor(estimator(K=2).loss(model, guide)))


class _Replaced(torch.nn.BatchNorm1d):
    """Batch normalisation that does not change its buffers in place."""

    def forward(self, x):
        self.running_mean, self.num_batches_tracked = (
            b.clone() for b in (self.running_mean, self.num_batches_tracked)
        )
        return super().forward(x)


@pytest.mark.parametrize("kind", [torch.nn.BatchNorm1d, _Replaced])
@pytest.mark.parametrize("option", [{}, {"vectorize_particles": False}, {"chunk_size": 1}])
@both
def test_running_statistics_see_a_batch_once(estimator, option, kind):
    """And not once more for each look at the structure, for each part of the samples, or for each
    draw of a profile."""
    norm, y = kind(1), torch.rand(4)

    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide():
        pyro.module("norm", norm)
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(norm(y.unsqueeze(-1)).squeeze(-1), 1.0))

    loss = estimator(K=2, **option)
    for _ in range(5):
        loss.loss(model, guide)
        loss.loss_and_grads(model, guide)
    SNRProfiler(model, guide, loss, num_draws=20).run()
    parameters_of(model, guide, ())
    assert norm.num_batches_tracked.item() == 10
    assert norm.running_mean.item() == pytest.approx(y.mean().item() * (1 - 0.9**10))


@pytest.mark.parametrize(
    ("estimator", "option"),
    [
        (PartiallyCollapsedIWELBO, {}),
        (DRegIWELBO, {}),
        # Runs know no estimator.
        (DRegIWELBO, {"vectorize_particles": False}),
        (DRegIWELBO, {"chunk_size": 7}),
    ],
)
def test_particles_draw_globals_of_their_own(estimator, option):
    """The gradient's noise falls with M as it should, and less with K."""

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        shift = pyro.sample("shift", dist.Normal(mu, 1.0))
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(mu + shift, 0.1))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    def guide():
        mu = pyro.sample("mu", dist.Normal(pyro.param("m", torch.tensor(0.1)), 1.0))
        shift = pyro.sample("shift", dist.Normal(0.5 * mu, 1.0))
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(mu + shift, 0.1))

    def noise(K, M, num_draws=100):
        loss, found = estimator(K=K, num_particles=M, **option), []
        for _ in range(num_draws):
            loss.loss_and_grads(model, guide)
            p = pyro.param("m").unconstrained()
            found.append(p.grad.item())
            p.grad = None
        found = torch.tensor(found)
        return found.mean(), found.std()

    (one, sd), (many, sd_of_many) = noise(2, 1), noise(2, 4)
    assert sd_of_many / sd == pytest.approx(1 / 2, rel=0.3)
    assert abs(one - many) < 4.5 * sd / 100**0.5
    assert noise(16, 1, 50)[1] / sd > 0.4


@pytest.mark.parametrize("kind", ["factor", "observation", "in another plate"])
@both
def test_observations_of_globals(estimator, kind):
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if kind == "factor":
            pyro.factor("ridge", -(w - 3.0).square())
        elif kind == "observation":
            pyro.sample("gauge", dist.Normal(w, 0.5), obs=torch.tensor(2.0))
        else:
            with pyro.plate("gauges", 2):
                pyro.sample("gauge", dist.Normal(w, 0.5), obs=torch.tensor([2.0, 1.0]))
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(w, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    guide = AutoNormal(model, init_scale=0.5)
    reference = mean_of(PYROS, model, guide, 60)
    one, many = (mean_of(estimator(K=K, num_particles=8), model, guide, 60) for K in (1, 20))
    assert agree(one, reference)
    assert many[0] > one[0]


def test_an_observation_that_reads_nothing_stands_anywhere():
    def model(beside):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y)
        if beside:
            with pyro.plate("other", 2):
                pyro.sample("x", dist.Normal(pyro.param("p", torch.tensor(0.5)), 1.0), obs=Y[:2])

    def guide(beside):
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(0.5 * Y, 0.5**0.5))  # the posterior

    values = [-DRegIWELBO(K=3).loss_and_grads(model, guide, beside) for beside in (False, True)]
    expected = dist.Normal(0.5, 1.0).log_prob(Y[:2]).sum().item()
    assert values[1] - values[0] == pytest.approx(expected, abs=1e-5)
    assert pyro.param("p").grad.item() == pytest.approx(-(Y[:2] - 0.5).sum().item())


@both
def test_a_model_that_cannot_broadcast(estimator):
    x = Y[:, None]

    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(torch.cat([z, x], -1).sum(-1), 1.0), obs=Y)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    with pytest.raises(RuntimeError, match="pass vectorize_particles=False"):
        estimator(K=5).loss(model, guide)
    loss = estimator(K=5, vectorize_particles=False)
    assert torch.isfinite(torch.tensor(loss.loss(model, guide)))


@both
def test_a_model_that_broadcasts_wrongly(estimator):
    """Summed over its dimension "inside", z lacks one, so that samples are taken for data."""

    def sites(observe):
        data, inside = pyro.plate("data", 4, dim=-1), pyro.plate("inside", 2, dim=-2)
        with data:
            with inside:
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(z.sum(-2), 1.0), obs=Y)

    with pytest.raises(NotImplementedError, match="density of site 'y' differs"):
        estimator(K=5).loss(lambda: sites(True), lambda: sites(False))
    loss = estimator(K=600, vectorize_particles=False)
    evidence = dist.Normal(0.0, 3**0.5).log_prob(Y).sum().item()
    found = -loss.loss(lambda: sites(True), lambda: sites(False))
    assert found == pytest.approx(evidence, abs=0.2)


def test_wrong_broadcasting_beside_a_flow_without_an_inverse():
    """Of whose draws the density is known in the run that draws them only."""
    planar = transforms.planar(2)

    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z.sum(-1) / len(z), 1.0), obs=Y)

    def guide():
        pyro.module("planar", planar)
        with pyro.plate("data", 4):
            base = dist.Normal(torch.zeros(4, 2), 1.0).to_event(1)
            pyro.sample("z", dist.TransformedDistribution(base, [planar]))

    with pytest.raises(NotImplementedError, match="density of site 'y' differs"):
        PartiallyCollapsedIWELBO(K=3).loss(model, guide)


def test_errors_of_the_model_itself_come_out_as_they_are():
    runs = []

    def model():
        runs.append(0)
        if len(runs) > 1:
            raise ValueError("mine")
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="mine") as error:
        PartiallyCollapsedIWELBO(K=5).loss(model, guide)
    assert "vectorize_particles" not in str(error.value)


@pytest.mark.parametrize("option", [{}, {"vectorize_particles": False}, {"chunk_size": 7}])
@both
def test_dimensions_without_a_plate_are_summed(estimator, option):
    y = torch.tensor([[3.0, -3.0, 3.0]] * 4)

    def model():
        with pyro.plate("series", 4, dim=-2):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide():
        with pyro.plate("series", 4, dim=-2):
            pyro.sample("z", dist.Normal(torch.full((4, 1), 0.5), 0.7))

    loss = estimator(K=30, **option)
    evidence = dist.MultivariateNormal(torch.zeros(3), torch.eye(3) + 1.0).log_prob(y).sum()
    found = mean_of(loss, model, guide, 60)
    assert evidence.item() - 1.0 < found[0] < evidence.item() + 4 * found[1]
    assert loss.weight_diagnostics().effective_sample_size.shape == (1, 4, 1)


@both
def test_batch_dimensions_left_of_all_plates_are_refused(estimator):
    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, torch.ones(3, 1)), obs=Y)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    with pyro.validation_enabled(False), pytest.raises(ValueError, match="invalid log_prob shape"):
        estimator(K=2).loss(model, guide)


@both
def test_shared_draws(estimator):
    """One f_n for all K samples of a datum, whose KL stands outside the logarithm."""

    def sites(observe):
        with pyro.plate("data", 8, subsample_size=4):
            loc, scale = (0.0, 1.0) if observe else (0.3, 0.8)
            f = pyro.sample("f", dist.Normal(loc, scale), infer={"shared": True})
            loc, scale = (0.0, 1.0) if observe else (0.4 * (Y - f), 0.8)
            z = pyro.sample("z", dist.Normal(loc, scale))
            if observe:
                pyro.sample("y", dist.Normal(f + z, 1.0), obs=Y)

    model, guide = (lambda: sites(True)), (lambda: sites(False))
    # As K grows: E_q(f)[log p(y | f)] - KL(q(f) || p(f)).
    mean = torch.full((4,), 0.3)
    inner = smooth_expectation(lambda f: dist.Normal(f, 2**0.5).log_prob(Y), mean, 0.8**2)
    kl = torch.distributions.kl_divergence(dist.Normal(0.3, 0.8), dist.Normal(0.0, 1.0))
    expected = 2 * (inner.sum() - 4 * kl).item()
    one, many = mean_of(estimator(K=1), model, guide), mean_of(estimator(K=400), model, guide)
    assert many[0] == pytest.approx(expected, abs=4.5 * many[1] + 0.02)
    assert one[0] < many[0]
    assert agree(one, mean_of(Trace_ELBO(), model, guide))
    averaged = mean_of(estimator(K=400, num_particles=25), model, guide, 40)
    assert agree(many, averaged)
    assert averaged[1] * 40**0.5 < 0.4 * many[1] * 400**0.5


@pytest.mark.parametrize("kind", ["factor", "product", "sum"])
@both
def test_globals_that_do_not_broadcast(estimator, kind):
    """Sets of samples are then drawn one after the other."""
    X = torch.tensor([[1.0, 0.5, 0.0], [0.2, -1.0, 0.3], [0.0, 1.0, 1.0], [-0.5, 0.1, 0.4]])

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        if kind == "factor":
            pyro.factor("gauges", dist.Normal(w, 0.5).log_prob(torch.ones(3)).sum())
        loc = X @ w if kind == "product" else w.sum() * torch.ones(4)
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(loc, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    def guide():
        pyro.sample("w", dist.Normal(torch.full((3,), 0.3), 0.5).to_event(1))
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(0.2, 0.8))

    one = mean_of(estimator(K=1), model, guide, 200)
    assert agree(one, mean_of(Trace_ELBO(), model, guide, 200))
    assert agree(one, mean_of(estimator(K=1, num_particles=4), model, guide, 50))
    many = mean_of(estimator(K=20), model, guide, 200)
    assert agree(many, mean_of(estimator(K=20, num_particles=4), model, guide, 50))


def coupled(weight=None, grad=True):
    """A model whose data read each other's draws, and its guide."""

    def model(*args):
        with pyro.plate("data", 4):
            s = pyro.sample("s", dist.Normal(0.0, 1.0))
            with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
                others = s.cumsum(-1) - s
            c = 1.0 if weight is None else weight[0]
            pyro.sample("y", dist.Normal(s + c * others, 1.0), obs=Y)

    def guide(*args):
        with pyro.plate("data", 4):
            pyro.sample("s", dist.Normal(0.0, 1.0))

    return model, guide


@pytest.mark.parametrize(("number", "bits"), [(1, 0), (2, 2), (7, 5), (64, 8), (200, 10)])
def test_any_two_data_are_told_apart_in_few_runs(number, bits):
    words, num_bits = distinct_words(number)
    has = (words.unsqueeze(1) >> torch.arange(num_bits) & 1).bool()  # run: whose draws it exchanges
    assert (has.shape, num_bits) == ((number, bits), bits)
    exchanged_and_kept = (has.unsqueeze(1) & ~has).any(-1)  # [i, j]: some run exchanges i, keeps j
    assert torch.equal(exchanged_and_kept, ~torch.eye(number, dtype=torch.bool))


@pytest.mark.parametrize("repeatable", [True, False])
def test_every_dependence_of_one_datum_on_another_is_found(repeatable):
    """Also where densities are random, so that derivatives are needed."""
    unlike = itertools.repeat(0.0) if repeatable else itertools.count(0.1, 0.1)
    for i, j in itertools.permutations(range(4), 2):

        def model(i=i, j=j):
            with pyro.plate("data", 4):
                s = pyro.sample("s", dist.Normal(0.0, 1.0))
                read = torch.zeros(4).index_fill(0, torch.tensor(j), 1.0) * s[..., i : i + 1]
                pyro.sample("y", dist.Normal(s + read + next(unlike), 1.0), obs=Y)

        with pytest.raises(NotImplementedError, match="depend on each other's draws"):
            PartiallyCollapsedIWELBO(K=2).loss(model, coupled()[1])


@pytest.mark.parametrize("seed", [0, 1])
def test_data_that_read_each_others_draws_without_a_gradient(seed):
    """Also where the seed is one that other draws might be made with."""
    pyro.set_rng_seed(seed)
    with pytest.raises(NotImplementedError, match="depend on each other's draws"):
        PartiallyCollapsedIWELBO(K=2).loss(*coupled(grad=False))


def test_weights_that_are_zero_at_first():
    """Model and guide are looked at again after some evaluations."""
    weight = [0.0]
    loss, (model, guide) = DRegIWELBO(K=2), coupled(weight)
    loss.loss(model, guide)
    weight[0] = 1.0
    for _ in range(8):
        loss.loss(model, guide)
    with pytest.raises(NotImplementedError, match="depend on each other's draws"):
        loss.loss(model, guide)


def test_one_datum_at_first():
    def sites(y, observe):
        with pyro.plate("data", len(y)):
            s = pyro.sample("s", dist.Normal(0.0, 1.0))
            if observe:
                pyro.sample("y", dist.Normal(s.cumsum(-1), 1.0), obs=y)

    loss, model, guide = DRegIWELBO(K=2), (lambda y: sites(y, True)), (lambda y: sites(y, False))
    loss.loss(model, guide, Y[:1])
    with pytest.raises(NotImplementedError, match="depend on each other's draws"):
        loss.loss(model, guide, Y)


@pytest.mark.filterwarnings("ignore:No latent site")
def test_a_mask_that_is_lifted():
    def sites(seen, observe):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                with poutine.mask(mask=seen):
                    pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    loss, model, guide = DRegIWELBO(K=500), (lambda s: sites(s, True)), (lambda s: sites(s, False))
    assert loss.loss(model, guide, False) == pytest.approx(0.0, abs=1e-9)
    evidence = dist.Normal(0.0, 2**0.5).log_prob(Y).sum().item()
    assert -loss.loss(model, guide, True) == pytest.approx(evidence, abs=0.3)


def test_a_plate_that_subsamples_later():
    def sites(size, observe):
        with pyro.plate("data", 3, dim=-1):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe:
                with pyro.plate("inside", size, subsample_size=2, dim=-2):
                    pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(2, 3))

    loss, model, guide = DRegIWELBO(K=2), (lambda n: sites(n, True)), (lambda n: sites(n, False))
    loss.loss(model, guide, 2)
    with pytest.raises(NotImplementedError, match="'inside' of site 'y' subsamples"):
        loss.loss(model, guide, 20)


@pytest.mark.parametrize("kind", ["python", "iterator", "generator", "counter"])
@both
def test_models_that_change_from_run_to_run(estimator, kind):
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    count = iter(range(10**6))

    def model():
        shift = {
            "python": lambda: random.gauss(0.0, 1.0),
            "iterator": lambda: float(rng.normal()),
            "generator": lambda: torch.randn((), generator=generator).item(),
            "counter": lambda: 0.01 * next(count),
        }[kind]()
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + shift, 1.0), obs=Y)

    def guide():
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    assert torch.isfinite(torch.tensor(estimator(K=5).loss(model, guide)))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_decoders(reentrant):
    linear = torch.nn.Linear(1, 1)

    def model():
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            loc = torch.utils.checkpoint.checkpoint(linear, z, use_reentrant=reentrant)
            pyro.sample("y", dist.Normal(loc[..., 0], 1.0), obs=Y)

    def guide():
        loc = pyro.param("loc", torch.zeros(4, 1))
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Normal(loc, 1.0).to_event(1))

    PartiallyCollapsedIWELBO(K=5).loss_and_grads(model, guide)
    assert pyro.param("loc").grad.abs().sum() > 0
    assert linear.weight.grad.abs() > 0
