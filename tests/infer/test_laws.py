"""The laws that hold in every structure, over the table of :mod:`tests.infer.models`.

And the known wrong estimators, each of which a law must reject.
"""

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch.distributions import Normal

from pyro_dgp import DRegIWELBO, PartiallyCollapsedIWELBO
from pyro_dgp.infer import bounds, densities, paths, samples
from pyro_dgp.infer.structure import roles
from tests.infer.estimates import (
    LIMIT,
    ciwae,
    draws,
    estimates,
    exact,
    scores,
    slope,
    vr_iwae,
    z_score,
)
from tests.infer.models import CASES, TWO_INIT, hierarchical, vae

pytestmark = pytest.mark.statistical

ESTIMATORS = [PartiallyCollapsedIWELBO, DRegIWELBO]
both = pytest.mark.parametrize("estimator", ESTIMATORS)
everywhere = pytest.mark.parametrize("name", CASES)


# Where what is tested knows no estimator: the one with derivatives of its own in every structure,
# and the other, whose terms are among those of the first, in a few.
FEW = ("plate, subsampled", "global", "three levels", "sequential", "annealed")


def mostly_one(names):
    pairs = [(name, DRegIWELBO) for name in names] + [
        (name, PartiallyCollapsedIWELBO) for name in FEW
    ]
    return pytest.mark.parametrize(("name", "estimator"), pairs)


@pytest.mark.parametrize(
    ("name", "K", "estimator"),
    [(name, 2, estimator) for name in CASES for estimator in ESTIMATORS]
    + [(name, 1, DRegIWELBO) for name in CASES]
    + [(name, 1, PartiallyCollapsedIWELBO) for name in FEW]
    + [
        (name, 3, estimator)
        for name in ("plate", "two plates", "sequential", "flow", "missing, poutine.mask")
        for estimator in ESTIMATORS
    ],
)
def test_value_and_gradient_are_those_of_the_integral(estimator, name, K):
    """With which E[DReG] = E[REG], and subsampled = full, and K = 1 is the ordinary ELBO."""
    result = scores(draws(CASES[name](), estimator(K=K)), exact(name, K))
    assert max(result.values()) < LIMIT, result


@mostly_one([name for name in CASES if "dropout" not in name])
def test_looped_samples_have_the_same_expectation(estimator, name):
    """But with dropout: what is drawn in every run, is drawn for every sample if looped."""
    case = CASES[name]()
    loss = estimator(K=2, vectorize_particles=False)
    result = scores(estimates(case, loss, 60), exact(name, 2))
    assert max(result.values()) < LIMIT, result


@pytest.mark.parametrize("name", [name for name in CASES if "missing" not in name])
def test_the_integral_of_one_sample_is_the_elbo_of_pyro(name):
    """Of the oracle, against Trace_ELBO, but with missing data: that refuses a NaN."""
    case = CASES[name]()
    case.setup()
    loss = Trace_ELBO(num_particles=200, vectorize_particles=True)
    values = torch.tensor([-loss.loss(case.model, case.guide, *case.args) for _ in range(30)])
    assert z_score(values, exact(name, 1)[0]) < LIMIT


@everywhere
def test_bound_grows_with_K(name):
    case = CASES[name]()
    case.setup()
    loss = PartiallyCollapsedIWELBO(K=40, num_particles=40)
    values = torch.tensor([-loss.loss(case.model, case.guide, *case.args) for _ in range(30)])
    one, two = exact(name, 1)[0], exact(name, 2)[0]
    error = values.std().item() / 30**0.5
    local = two - one > 1e-6
    assert local != (name.startswith("only global") or name == "AutoDelta")
    assert two >= one - 1e-6
    assert (values.mean() - two) / (error + 1e-9) > (4 if local and case.iid else -LIMIT)


@everywhere
@both
def test_all_ways_to_call_agree(estimator, name):
    case = CASES[name]()
    parameters = case.setup()
    loss = estimator(K=3, num_particles=2)

    class Module(pyro.nn.PyroModule):
        def __init__(self, function):
            super().__init__()
            self.function = (function,)  # no submodule

        def forward(self, *args):
            return self.function[0](*args)

    module = loss(Module(case.model), Module(case.guide))
    calls = {
        "loss": lambda: loss.loss(case.model, case.guide, *case.args),
        "loss_and_grads": lambda: loss.loss_and_grads(case.model, case.guide, *case.args),
        "differentiable_loss": lambda: loss.differentiable_loss(case.model, case.guide, *case.args),
    }
    if "Messenger" not in name:  # Pyro knows a GuideMessenger by its type
        calls["ELBOModule"] = lambda: module(*case.args)
    values, gradients = {}, {}
    for kind, call in calls.items():
        with torch.no_grad():
            call() if kind != "loss_and_grads" else None  # learns the structure, which draws
        pyro.set_rng_seed(1)
        value = call()
        if isinstance(value, torch.Tensor):
            value.backward()
            value = value.item()
        values[kind] = value
        if kind != "loss":
            gradients[kind] = {n: p.grad for n, p in parameters.items() if p.grad is not None}
            for p in parameters.values():
                p.grad = None
    assert len(set(values.values())) == 1, values
    first = gradients.pop("loss_and_grads")
    assert first
    for other in gradients.values():
        torch.testing.assert_close(other, first, rtol=0, atol=0)


@mostly_one(CASES)
def test_chunks_are_exact(estimator, name):
    """Chunks that are drawn twice give what the same draws give if all are held."""
    case = CASES[name]()
    results = []
    for chunk_size in (2, None):
        parameters = case.setup()
        loss = estimator(K=3, num_particles=3, beta=0.2, chunk_size=chunk_size)
        loss._chunks = estimator(K=3, num_particles=3, chunk_size=2)._chunks
        loss.loss(case.model, case.guide, *case.args)
        pyro.set_rng_seed(3)
        value = loss.loss_and_grads(case.model, case.guide, *case.args)
        grads = {n: p.grad for n, p in parameters.items() if p.grad is not None}
        ess, largest, _ = loss.weight_diagnostics()
        results.append((value, grads, ess, largest, torch.rand(1)))
        pyro.set_rng_seed(3)
        assert loss.loss(case.model, case.guide, *case.args) == value
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


# Other bounds.


@pytest.mark.parametrize("beta", [0.3, 1.0])
@pytest.mark.parametrize(
    "name",
    [
        "plate",
        "global, subsampled",
        "three levels",
        "AutoNormal, positive",
        "AutoDelta",
        "annealed",
    ],
)
@both
def test_mixed_bound(estimator, name, beta):
    case = CASES[name]()
    result = scores(draws(case, estimator(K=2, beta=beta)), exact(name, 2, ciwae(beta)))
    assert max(result.values()) < LIMIT, result


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.5), (0.8, 0.0)])
@pytest.mark.parametrize(
    "name", ["plate", "global, subsampled", "three levels", "AutoNormal, positive", "annealed"]
)
@both
def test_powers_of_weights(estimator, name, alpha, beta):
    """VR-IWAE, or half of it with half of the ordinary ELBO."""
    loss = estimator(K=2, alpha=alpha, beta=beta)
    result = scores(draws(CASES[name](), loss), exact(name, 2, vr_iwae(alpha, beta)))
    assert max(result.values()) < LIMIT, result


@pytest.mark.parametrize(
    ("name", "K", "beta"),
    [
        ("plate", 2, 0.0),
        ("plate", 2, 0.4),
        ("hierarchical guide", 1, 0.0),
        ("AutoNormal, positive", 1, 0.4),
        ("annealed", 1, 0.0),
    ],
)
@both
def test_two_targets(estimator, name, K, beta):
    """PIWAE: K M weights in one logarithm for the model, M logarithms of K for the guide."""
    case = CASES[name]()
    together, apart = (case.exact_gradient(k, ciwae(beta)) for k in (2 * K, K))
    of_model = {"theta", "log_s"}
    copies = 1 if name.startswith("Auto") else 600  # of the data, to have many draws at once
    expected = (
        copies * together[0],
        {n: copies * (together if n in of_model else apart)[1][n] for n in together[1]},
    )
    case.args = tuple(x.repeat(copies) for x in case.args)
    loss = estimator(K=K, num_particles=2, beta=beta, piwae=True)
    result = scores(estimates(case, loss, 30 if copies > 1 else 1000), expected)
    assert max(result.values()) < LIMIT, result


def test_two_targets_do_not_underflow():
    """A sample that counts in its set of K may count for nothing among all M K."""
    log_w = torch.tensor([[0.0], [0.0], [-400.0], [-400.0]], dtype=torch.float32)
    coefficients = bounds.Bound(2, 2, 0.0, True).coefficients(log_w)
    torch.testing.assert_close(
        coefficients.model * coefficients.factor(0.0), torch.full((4, 1), 0.25)
    )
    torch.testing.assert_close(coefficients.model, torch.tensor([[0.5], [0.5], [0.0], [0.0]]))


# Wrong estimators.


def unsquared_weights(monkeypatch):
    """The score of q is left out, with nothing in its place."""
    monkeypatch.setattr(
        bounds.Coefficients, "factor", lambda self, doubly: self.guide(0.0) / self.model
    )


def squared_weights_for_every_parameter(monkeypatch):
    right = bounds.Bound.coefficients

    def coefficients(self, log_w):
        c = right(self, log_w)
        return bounds.Coefficients(c.guide(1.0), c.weights, c.vi_share, c.iw_share)

    monkeypatch.setattr(bounds.Bound, "coefficients", coefficients)


def scale_inside_the_logarithm(monkeypatch):
    monkeypatch.setattr(densities, "tempering", lambda site, roles: site["scale"])
    monkeypatch.setattr(roles.Roles, "scale", lambda self, site: 1.0)


def globals_drawn_for_every_sample(monkeypatch):
    """Every sample has its own global draw, with the right KL outside the logarithm."""
    plate = samples.SamplePlate
    monkeypatch.setattr(plate, "_process_message", super(plate, plate)._process_message)


def detached_guide_distributions(monkeypatch):
    """Cuts the parameters of each guide distribution, other draws among them, out of log q."""
    right = paths.Gates.partials

    def partials(self, total, inputs):
        seen = {id(value) for value in self.values.values()}
        found = right(self, total, inputs)
        return [None if id(i) in seen else g for i, g in zip(inputs, found, strict=True)]

    monkeypatch.setattr(paths.Gates, "partials", partials)


def open_gates(monkeypatch):
    """Derivatives of log q go through later draws, which count those twice."""
    monkeypatch.setattr(
        paths.Gates,
        "partials",
        lambda self, total, inputs: list(
            torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
        ),
    )


@pytest.mark.parametrize(
    ("break_it", "estimator", "name", "K", "rejected"),
    [
        (unsquared_weights, DRegIWELBO, "plate", 3, "a"),
        (squared_weights_for_every_parameter, DRegIWELBO, "plate", 3, "theta"),
        (scale_inside_the_logarithm, PartiallyCollapsedIWELBO, "plate, subsampled", 3, "log_c"),
        (globals_drawn_for_every_sample, PartiallyCollapsedIWELBO, "global", 2, "bound"),
        (detached_guide_distributions, DRegIWELBO, "hierarchical guide", 2, "a"),
        (open_gates, DRegIWELBO, "three levels", 2, "a"),
    ],
)
def test_wrong_estimators_are_rejected(monkeypatch, break_it, estimator, name, K, rejected):
    case, expected = CASES[name](), exact(name, K)
    break_it(monkeypatch)
    result = scores(draws(case, estimator(K=K)), expected)
    assert result[rejected] > 6, result


# The four gradients of a hierarchical guide, of which two are right, without Pyro.


@pytest.mark.parametrize(
    ("variant", "right"),
    [
        ("detached distributions", False),
        ("hooked draws", False),
        ("hooked copies", True),
        ("leaf barrier", True),
    ],
)
def test_gradients_of_a_hierarchical_guide_in_plain_torch(variant, right):
    """The table of ways to write DReG that look alike; the oracle tells them apart."""
    case = hierarchical()
    _, expected = exact("hierarchical guide", 2)
    grads = plain_dreg(case.args[0], variant, num_draws=200_000)
    # d/da and d/dlog_c: parameters of z1, which z2 depends on.
    found = max(z_score(grads[name], expected[name]) for name in ("a", "log_c"))
    assert (found < LIMIT) == right, found


def plain_dreg(y, variant, num_draws, K=2):
    """Per-draw gradients by a and log_c, [num_draws] each, by one weight at a time."""
    p = {name: torch.tensor(value) for name, value in TWO_INIT.items()}
    e1, e2 = torch.randn(2, num_draws, K, len(y))
    loc, scale = (p["a"] * y).expand_as(e1), p["log_c"].exp().expand_as(e1)
    loc.requires_grad_(), scale.requires_grad_()
    q1 = Normal(loc, scale)
    z1 = q1.loc + q1.scale * e1
    weights = {}

    def hooked(z):
        z = z.view_as(z)
        z.register_hook(lambda gradient: gradient * weights["w"])
        return z

    def q2_at(z1):
        return Normal(p["g"] * z1 + p["b"] * y, p["log_d"].exp())

    def log_p(z1, z2):
        return (
            Normal(0.0, 1.0).log_prob(z1)
            + Normal(z1, 1.0).log_prob(z2)
            + Normal(z2, p["log_s"].exp()).log_prob(y)
        )

    held = Normal(loc.detach(), scale.detach())
    if variant == "hooked draws":
        z1 = hooked(z1)
        z2 = hooked(q2_at(z1).loc + q2_at(z1).scale * e2)
        log_w = log_p(z1, z2) - held.log_prob(z1) - q2_at(z1).log_prob(z2)
    elif variant == "leaf barrier":
        l1 = z1.detach().requires_grad_()
        z2 = q2_at(l1).loc + q2_at(l1).scale * e2
        l2 = z2.detach().requires_grad_()
        log_w = log_p(l1, l2) - held.log_prob(l1) - q2_at(l1).log_prob(l2)
        w = log_w.detach().softmax(1)
        g1, g2 = torch.autograd.grad(log_w.sum(), (l1, l2), retain_graph=True)
        (back,) = torch.autograd.grad(z2, l1, w**2 * g2)
        by_loc, by_scale = torch.autograd.grad(z1, (loc, scale), w**2 * g1 + back)
        return chain(by_loc, by_scale, y, p)
    else:
        z2 = q2_at(z1).loc + q2_at(z1).scale * e2
        c1, c2 = hooked(z1), hooked(z2)
        q2 = q2_at(c1)
        if variant == "detached distributions":
            q2 = Normal(q2.loc.detach(), q2.scale)
        log_w = log_p(c1, c2) - held.log_prob(c1) - q2.log_prob(c2)
    weights["w"] = log_w.detach().softmax(1)
    total = (weights["w"] * log_w).sum()
    return chain(*torch.autograd.grad(total, (loc, scale)), y, p)


def chain(by_loc, by_scale, y, p):
    return {
        "a": (by_loc * y).sum((1, 2)),
        "log_c": (by_scale * p["log_c"].exp()).sum((1, 2)),
    }


# Orders in K.


@pytest.mark.parametrize(
    ("estimator", "alpha", "orders"),
    [
        (PartiallyCollapsedIWELBO, 0.0, {"log_c": -0.5, "theta": 0.5}),
        (DRegIWELBO, 0.0, {"a": 0.5, "log_c": 0.5, "theta": 0.5}),
        (PartiallyCollapsedIWELBO, 0.5, {"a": 0.5, "log_c": 0.5, "theta": 0.5}),
        (DRegIWELBO, 0.5, {"a": 0.5, "log_c": 0.5, "theta": 0.5}),
    ],
)
def test_order_of_the_signal_to_noise_ratio_in_K(estimator, alpha, orders):
    """Rainforth et al. (2018), theorem 1; Tucker et al. (2019); Daudel et al. (2023)."""
    case = vae()
    case.args = (case.args[0][:1],)
    samples, log_snr = [4, 32, 256], {name: [] for name in orders}
    # A small ratio needs many particles to be told from 0.
    num_particles = 200 if min(orders.values()) < 0 else 50
    for K in samples:
        _, grads = estimates(case, estimator(K=K, num_particles=num_particles, alpha=alpha), 150)
        for name in orders:
            mean, var = grads[name].mean(), grads[name].var()
            # The square of the mean, less its bias.
            log_snr[name].append(0.5 * ((mean**2 - var / 150) / var).log())
    slopes = {name: slope(samples, log_snr[name]) for name in orders}
    assert slopes == pytest.approx(orders, abs=0.12)
