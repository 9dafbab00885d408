import gc
import math
import pickle
import weakref

import pyro
import pyro.distributions as dist
import pyro.ops.jit
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
)

from pyro_dgp import DRegIWELBO, PartiallyCollapsedIWELBO
from tests.infer.models import CASES, VAE_INIT, Y, vae, with_global

ESTIMATORS = [PartiallyCollapsedIWELBO, DRegIWELBO]


def test_both_estimators_report_one_bound():
    case = with_global()
    case.setup()
    values = []
    for estimator in ESTIMATORS:
        loss = estimator(K=7)
        loss.loss(case.model, case.guide, Y)
        pyro.set_rng_seed(1)
        values.append(loss.loss_and_grads(case.model, case.guide, Y))
    assert values[0] == pytest.approx(values[1], abs=1e-12)


def test_one_sample_of_dreg_sticks_the_landing():
    """Where q is the posterior, the K = 1 gradient vanishes at every draw."""
    y = torch.tensor([0.5, 1.0])

    def model():
        with pyro.plate("data", 2):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide():
        loc = pyro.param("loc", y / 2)
        scale = pyro.param("scale", torch.full((2,), 0.5**0.5))
        with pyro.plate("data", 2):
            pyro.sample("z", dist.Normal(loc, scale))

    DRegIWELBO(K=1).loss_and_grads(model, guide)
    for name in ("loc", "scale"):
        assert pyro.param(name).unconstrained().grad.abs().max() < 1e-12


@pytest.mark.parametrize("name", ["global", "hierarchical guide", "AutoNormal, positive"])
def test_dreg_runs_model_and_guide_once(name):
    case, calls = CASES[name](), {"model": 0, "guide": 0}

    def counted(function, kind):
        def run(*args):
            calls[kind] += 1
            return function(*args)

        return run

    model, guide = counted(case.model, "model"), counted(case.guide, "guide")
    loss = DRegIWELBO(K=3)
    loss.loss_and_grads(model, guide, *case.args)
    calls.update(model=0, guide=0)
    loss.loss_and_grads(model, guide, *case.args)
    assert calls == {"model": 1, "guide": 1}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weights_that_underflow_do_not_give_nan(estimator):
    """The model's support is narrower than the guide's: some weights are exactly 0."""

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Uniform(-1.0, 1.0, validate_args=False))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    def guide():
        loc = pyro.param("loc", torch.zeros(3))
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Normal(loc, 1.0))

    with pyro.validation_enabled(False):
        loss = estimator(K=50).loss_and_grads(model, guide)
    assert math.isfinite(loss)
    assert pyro.param("loc").grad.isfinite().all()


def test_svi_finds_the_evidence():
    """At the optimum of this conjugate model the bound is the evidence."""
    case = vae()
    optim = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.995})
    svi = SVI(case.model, case.guide, optim, loss=DRegIWELBO(K=10, num_particles=5))
    for _ in range(800):
        svi.step(Y)
    p = {k: pyro.param(k).detach() for k in VAE_INIT}
    evidence = dist.Normal(p["theta"], (1 + (2 * p["log_s"]).exp()).sqrt()).log_prob(Y).sum()
    assert -svi.evaluate_loss(Y) == pytest.approx(evidence.item(), abs=0.05)
    # Maximum likelihood: the moments of y, whose variance is above 1.
    assert p["theta"].item() == pytest.approx(Y.mean().item(), abs=0.1)
    assert 1 + (2 * p["log_s"]).exp().item() == pytest.approx(Y.var(unbiased=False).item(), abs=0.3)


def test_elbo_module():
    class Model(pyro.nn.PyroModule):
        def forward(self, y):
            with pyro.plate("data", len(y)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    class Guide(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def forward(self, y):
            with pyro.plate("data", len(y)):
                pyro.sample("z", dist.Normal(self.linear(y.unsqueeze(-1)).squeeze(-1), 0.5))

    loss = DRegIWELBO(K=5)(Model(), Guide())
    value = loss(Y)
    value.backward()
    assert value.dim() == 0
    assert loss.guide.linear.weight.grad.abs() > 0


@pytest.mark.parametrize(("name", "M"), [("global, subsampled", 1), ("plate, subsampled", 2)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_chunks_are_the_whole(monkeypatch, estimator, name, M):
    """With noise that is drawn row by row, so that chunks do not change it."""

    def by_rows(shape, dtype, device):
        if len(shape) < 2:
            return torch.randn(shape, dtype=dtype, device=device)
        return torch.stack(
            [torch.randn(shape[1:], dtype=dtype, device=device) for _ in range(shape[0])]
        )

    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", by_rows)
    case = CASES[name]()
    results = []
    for chunk_size in (None, 3, 1, 100):
        parameters = case.setup()
        loss = estimator(K=5, num_particles=M, chunk_size=chunk_size)
        loss.loss(case.model, case.guide, Y)
        pyro.set_rng_seed(2)
        value = loss.loss_and_grads(case.model, case.guide, Y)
        results.append((value, {name: p.grad for name, p in parameters.items()}))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_chunks_do_not_keep_their_graphs(estimator):
    """At most two runs of the model are alive: the first, and the one that is drawn."""
    alive, most = weakref.WeakSet(), []

    def model(y):
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(pyro.param("theta", torch.tensor(0.3)), 1.0))
            activation = z.exp()
            alive.add(activation)
            most.append(len(alive))
            pyro.sample("y", dist.Normal(activation, 1.0), obs=y)

    loss = estimator(K=20, chunk_size=1)
    loss.loss_and_grads(model, vae().guide, Y)
    assert len(most) >= 39
    assert max(most) <= 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weight_diagnostics(estimator):
    case = vae()
    loss = estimator(K=7, num_particles=3)
    with pytest.raises(RuntimeError, match="evaluate the loss first"):
        loss.weight_diagnostics()
    loss.loss_and_grads(case.model, case.guide, Y)
    ess, largest, _ = loss.weight_diagnostics()
    assert ess.shape == largest.shape == (3, 4)
    assert not ess.requires_grad
    assert (ess >= 1).all()
    assert (ess < 7).all()
    assert (largest > 1 / 7).all()
    assert (largest <= 1).all()
    case = CASES["sequential and vectorised"]()
    loss.loss(case.model, case.guide, *case.args)
    assert loss.weight_diagnostics().largest_weight.shape == (3, 4)
    case = CASES["AutoDelta"]()
    loss.loss(case.model, case.guide, *case.args)
    torch.testing.assert_close(
        loss.weight_diagnostics().effective_sample_size, torch.full((3, 4), 7.0)
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_local_parameters_of_modules(estimator):
    """ELBOModule with parameters outside the param store; two models do not share them."""

    class Model(pyro.nn.PyroModule):
        def forward(self, y):
            with pyro.plate("data", len(y)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    class Guide(pyro.nn.PyroModule):
        def __init__(self, a):
            super().__init__()
            self.a = pyro.nn.PyroParam(torch.tensor(a))
            self.c = pyro.nn.PyroParam(torch.tensor(0.7), dist.constraints.positive)

        def forward(self, y):
            with pyro.plate("data", len(y)):
                pyro.sample("z", dist.Normal(self.a * y, self.c))

    with pyro.settings.context(module_local_params=True):
        modules = [estimator(K=5, chunk_size=2)(Model(), Guide(a)) for a in (0.1, 0.9)]
        optim = torch.optim.Adam(modules[0].parameters(), lr=0.05)
        for _ in range(200):
            optim.zero_grad()
            modules[0](Y).backward()
            optim.step()
        assert len(pyro.get_param_store()) == 0
        assert modules[1].guide.a.item() == 0.9
        # The posterior is N(y / 2, 1 / 2).
        assert modules[0].guide.a.item() == pytest.approx(0.5, abs=0.1)
        assert modules[0].guide.c.item() == pytest.approx(0.5**0.5, abs=0.1)


@pytest.mark.parametrize("name", ["plate", "three levels", "missing, poutine.mask", "annealed"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_float32(estimator, name):
    torch.set_default_dtype(torch.float32)
    case = CASES[name]()
    case.args = tuple(x.float() for x in case.args)
    parameters = case.setup()
    value = estimator(K=3, chunk_size=2).loss_and_grads(case.model, case.guide, *case.args)
    assert math.isfinite(value)
    assert all(p.dtype == torch.float32 for p in parameters.values())
    assert all(p.grad.isfinite().all() for p in parameters.values())


def test_a_delta_in_an_independent_is_a_delta():
    """A point estimate gets the whole gradient, not the one of a draw."""

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=torch.ones(3))

    def guide():
        loc = pyro.param("loc", torch.full((3, 2), 0.2))
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Delta(loc).to_event(1))

    DRegIWELBO(K=4).loss_and_grads(model, guide)
    # d/dz of -z^2/2 - (1 - z1 - z2)^2/2
    torch.testing.assert_close(pyro.param("loc").grad, torch.full((3, 2), -(1 - 0.4 - 0.2)))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("vectorize", [False, True])
def test_observations_in_two_plates_beside_global_latents_only(estimator, vectorize):
    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        for name, size in (("one", 3), ("two", 2)):
            with pyro.plate(name, size):
                pyro.sample(f"y_{name}", dist.Normal(mu, 1.0), obs=torch.ones(size))

    def guide():
        pyro.sample("mu", dist.Normal(pyro.param("m", torch.tensor(0.3)), 1e-9))

    with pyro.validation_enabled(False):
        loss = estimator(K=3, vectorize_particles=vectorize)
        value = -loss.loss_and_grads(model, guide)
    kl = torch.distributions.kl_divergence(dist.Normal(0.3, 1e-9), dist.Normal(0.0, 1.0))
    expected = 5 * dist.Normal(0.3, 1.0).log_prob(torch.tensor(1.0)) - kl
    assert value == pytest.approx(expected.item(), abs=1e-6)
    assert pyro.param("m").grad.item() == pytest.approx(-(5 * 0.7 - 0.3), abs=1e-6)


def test_an_elbo_does_not_hold_its_model():
    case = vae()

    class Model:
        def model(self, y):
            case.model(y)

    loss, instance = DRegIWELBO(K=2), Model()
    loss.loss(instance.model, case.guide, Y)
    assert pickle.loads(pickle.dumps(loss)).K == 2
    gone = weakref.ref(instance)
    del instance
    gc.collect()
    assert gone() is None


def seeded_loss(loss, *args):
    """The loss after its structure is known, which takes a draw, from one seed."""
    loss.loss(*args)
    pyro.set_rng_seed(5)
    return loss.loss(*args)


def test_one_object_for_several_models():
    shared = DRegIWELBO(K=2)
    for name in ("plate", "no plate", "global", "groups", "plate", "hierarchical guide"):
        case = CASES[name]()
        args = (case.model, case.guide, *case.args)
        shared.loss(*args)
        pyro.set_rng_seed(5)
        assert shared.loss(*args) == seeded_loss(DRegIWELBO(K=2), *args)


def test_structure_that_depends_on_the_arguments():
    """The latent site stands in both plates, or in one of them."""

    def sites(y, both, sample):
        with pyro.plate("data", 4, dim=-1):
            if not both:
                sample("z")
            with pyro.plate("inside", 2, dim=-2):
                if both:
                    sample("z")
                if y is not None:
                    y()

    def model(y, both):
        z = {}

        def sample(name):
            z[name] = pyro.sample(name, dist.Normal(0.0, 1.0))

        def observe():
            pyro.sample("y", dist.Normal(z["z"], 1.0), obs=torch.stack([y, y + 1]))

        sites(observe, both, sample)

    def guide(y, both):
        sites(None, both, lambda name: pyro.sample(name, dist.Normal(y, 1.0)))

    shared = PartiallyCollapsedIWELBO(K=50, max_plate_nesting=2)
    for both in (False, True, False):
        shared.loss(model, guide, Y, both)
        pyro.set_rng_seed(5)
        found = shared.loss(model, guide, Y, both)
        fresh = PartiallyCollapsedIWELBO(K=50, max_plate_nesting=2)
        assert found == seeded_loss(fresh, model, guide, Y, both)


@pytest.mark.parametrize("handler", [poutine.mask, poutine.scale])
def test_a_handler_on_the_prior_alone(handler):
    """The closed-form KL would ignore it."""
    option = {"mask": False} if handler is poutine.mask else {"scale": 0.1}

    def model(y):
        with handler(**option):
            mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    def guide(y):
        pyro.sample("mu", dist.Normal(3.0, 0.5))

    loss, reference = PartiallyCollapsedIWELBO(K=2), Trace_ELBO()
    a = torch.tensor([loss.loss(model, guide, Y) for _ in range(500)])
    b = torch.tensor([reference.loss(model, guide, Y) for _ in range(500)])
    assert abs(a.mean() - b.mean()) < 4 * (a.var() / 500 + b.var() / 500).sqrt()


# Models that are hard to tell from those that are refused.


def local_and_global(y):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, rate))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def test_a_joint_autoguide_over_the_global_latents_is_fine():
    globals_guide = AutoDiagonalNormal(poutine.block(local_and_global, expose=["rate"]))

    def guide(y):
        globals_guide(y)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(torch.zeros_like(y), 2.0))

    losses = [PartiallyCollapsedIWELBO(K=K) for K in (1, 50)]
    values = [
        torch.tensor([-loss.loss(local_and_global, guide, Y) for _ in range(300)])
        for loss in losses
    ]
    assert values[1].mean() - values[0].mean() > 4 * (values[0].var() / 300).sqrt()
    assert math.isfinite(DRegIWELBO(K=3).loss_and_grads(local_and_global, guide, Y))


def test_sequences_of_different_lengths():
    """Masks that differ between dependent draws are right where the model has them, too."""
    y = torch.tensor([[0.3, -0.5], [1.0, 0.0]])
    seen = torch.tensor([[True, True], [True, False]])  # [datum, time]

    def model(y, seen):
        z = torch.zeros(())
        with pyro.plate("data", len(y)):
            for t in range(y.shape[1]):
                z = pyro.sample(f"z{t}", dist.Normal(z, 1.0).mask(seen[:, t]))
                pyro.sample(f"y{t}", dist.Normal(z, 1.0).mask(seen[:, t]), obs=y[:, t])

    def guide(y, seen):
        a, z = pyro.param("a", torch.tensor(0.4)), torch.zeros(())
        with pyro.plate("data", len(y)):
            for t in range(y.shape[1]):
                z = pyro.sample(f"z{t}", dist.Normal(a * (z + y[:, t]), 0.7).mask(seen[:, t]))

    found = []
    for estimator, batches in (
        (PartiallyCollapsedIWELBO, [(y, seen)]),
        (DRegIWELBO, [(y, seen)]),
        (DRegIWELBO, [(y[:1], seen[:1]), (y[1:, :1], seen[1:, :1])]),
    ):
        grads = []
        for _ in range(60):
            pyro.param("a", torch.tensor(0.4)).grad = None
            for batch in batches:
                estimator(K=3, num_particles=500).loss_and_grads(model, guide, *batch)
            grads.append(pyro.param("a").grad)
        grads = torch.stack(grads)
        found.append((grads.mean(), grads.var() / len(grads)))
    for mean, variance in found[1:]:
        assert abs(mean - found[0][0]) < 4 * (variance + found[0][1]).sqrt()


def test_dreg_refuses_a_draw_on_the_edge():
    case = CASES["flow"]()

    def guide(y):
        base = dist.Normal(pyro.param("b", torch.tensor(-1000.0)), 1.0)
        with pyro.plate("data", len(y)):
            exp = dist.transforms.ExpTransform(cache_size=1)
            pyro.sample("z", dist.TransformedDistribution(base, [exp]))

    with pyro.validation_enabled(False), pytest.raises(ValueError, match="'z' is not finite"):
        DRegIWELBO(K=3).loss_and_grads(case.model, guide, Y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_sequential_plate_that_is_gone_through_twice(estimator):
    def model(y):
        plate = pyro.plate("data", len(y))
        z = {i: pyro.sample(f"z{i}", dist.Normal(0.0, 1.0)) for i in plate}
        for i in plate:
            pyro.sample(f"y{i}", dist.Normal(z[i], 0.3), obs=y[i])

    def guide(y):
        for i in pyro.plate("data", len(y)):
            pyro.sample(f"z{i}", dist.Normal(0.9 * y[i], 0.5))

    evidence = dist.Normal(0.0, 1.09**0.5).log_prob(Y).sum().item()
    assert -estimator(K=5000).loss(model, guide, Y) == pytest.approx(evidence, abs=0.05)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mixed_dtypes(estimator):
    """float32 parameters and float64 data, as numpy gives them."""
    torch.set_default_dtype(torch.float32)
    a = pyro.param("a", torch.tensor(0.3))

    def model(y):
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guide(y):
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(pyro.param("a"), 1.0))

    loss = estimator(K=3, chunk_size=2)
    assert math.isfinite(loss.loss_and_grads(model, guide, Y.double()))
    assert a.grad.dtype == torch.float32


def test_a_model_without_parameters_in_chunks():
    loss = PartiallyCollapsedIWELBO(K=5, chunk_size=2)

    def model():
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    def guide():
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    assert math.isfinite(loss.loss_and_grads(model, guide))


def test_plates_that_get_deeper():
    def sites(depth, observe):
        with pyro.plate("data", 3, dim=-1):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if observe and depth == 1:
                pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))
            elif observe:
                with pyro.plate("inside", 2, dim=-2):
                    pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(2, 3))

    loss = DRegIWELBO(K=2)
    model, guide = (lambda depth: sites(depth, True)), (lambda depth: sites(depth, False))
    for depth in (1, 2, 1):
        assert math.isfinite(loss.loss(model, guide, depth))


def test_a_site_that_is_conditioned_on_may_be_blocked():
    case = CASES["hierarchical guide"]()
    model = poutine.condition(case.model, data={"z1": torch.zeros(2)})
    fine = poutine.block(case.guide, hide=["z1"])
    assert math.isfinite(DRegIWELBO(K=3).loss_and_grads(model, fine, *case.args))


def test_there_may_be_fewer_plates_than_was_said():
    case = vae()
    assert math.isfinite(DRegIWELBO(K=2, max_plate_nesting=3).loss(case.model, case.guide, Y))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*deprecated")
@pytest.mark.parametrize(
    ("estimator", "options", "refused"),
    [
        (PartiallyCollapsedIWELBO, {}, False),
        (PartiallyCollapsedIWELBO, {"chunk_size": 1}, True),
        (PartiallyCollapsedIWELBO, {"piwae": True, "num_particles": 2}, True),
        (DRegIWELBO, {}, True),
    ],
)
def test_a_traced_loss_has_its_gradient_or_is_refused(estimator, options, refused):
    case = vae()
    parameters = case.setup()
    loss = estimator(K=3, **options)
    loss.loss(case.model, case.guide, *case.args)

    def gradients(function):
        pyro.set_rng_seed(2)
        return torch.autograd.grad(function(*case.args), list(parameters.values()))

    def eager(*args):
        return loss.differentiable_loss(case.model, case.guide, *args)

    traced = pyro.ops.jit.trace(eager, ignore_warnings=True)
    if refused:
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace would give.*hooks"):
            traced(*case.args)
    else:
        traced(*case.args)
        torch.testing.assert_close(gradients(traced), gradients(eager))
