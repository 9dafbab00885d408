"""The generalised doubly reparameterised gradient: priors' parameters have it, too."""

import pyro
import pyro.distributions as dist
import pyro.distributions.transforms as transforms
import pytest
import torch
from torch.distributions import Normal

from pyro_dgp import DRegIWELBO, GDRegIWELBO
from pyro_dgp.infer import bounds, priors
from pyro_dgp.infer.priors import drawn_by
from tests.infer.estimates import LIMIT, ciwae, draws, estimates, exact, scores, slope, vr_iwae
from tests.infer.models import CASES, Case, Y, expectation, parameters
from tests.quadrature import grid

pytestmark = pytest.mark.statistical

INIT = {"m": 0.4, "log_t": -0.3, "a": 0.5, "b": -0.3, "log_c": -0.2, "g": 0.3, "log_s": -0.1}


def normal_prior() -> Case:
    """z_n ~ N(m, t^2), y_n ~ N(z_n, s^2)."""

    def model(y):
        p = parameters(INIT)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(p["m"], p["log_t"].exp()))
            pyro.sample("y", dist.Normal(z + p["g"], p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(INIT)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(p["a"] * y + p["b"], p["log_c"].exp()))

    def log_joint(p, z, y):
        log_p = Normal(p["m"], p["log_t"].exp()).log_prob(z)
        return log_p + Normal(z + p["g"], p["log_s"].exp()).log_prob(y)

    return Case(model, guide, one_latent(log_joint), INIT, (Y,))


def flow_prior() -> Case:
    """exp(z_n) of the case above, by a flow that has the prior's parameters in a transform."""

    def model(y):
        p = parameters(INIT)
        scaled = transforms.AffineTransform(p["m"], p["log_t"].exp())
        prior = dist.TransformedDistribution(
            dist.Normal(0.0, 1.0), [scaled, transforms.ExpTransform()]
        )
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", prior)
            pyro.sample("y", dist.Normal(z.log() + p["g"], p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(INIT)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.LogNormal(p["a"] * y + p["b"], p["log_c"].exp()))

    return Case(model, guide, normal_prior().exact, INIT, (Y,))


def hierarchy() -> Case:
    """z1 ~ N(m, t^2), z2 ~ N(z1 + g, 1), of which the second has the ordinary gradient."""
    y = Y[:2]

    def model(y):
        p = parameters(INIT)
        with pyro.plate("data", len(y)):
            z1 = pyro.sample("z1", dist.Normal(p["m"], p["log_t"].exp()))
            z2 = pyro.sample("z2", dist.Normal(z1 + p["g"], 1.0))
            pyro.sample("y", dist.Normal(z2 + 0.2 * z1, p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(INIT)
        with pyro.plate("data", len(y)):
            z2 = pyro.sample("z2", dist.Normal(p["a"] * y, p["log_c"].exp()))
            pyro.sample("z1", dist.Normal(0.5 * z2 + p["b"], 0.8))

    def exact(p, K, mean):
        nodes, weights = grid(2 * K)
        yn = y.reshape(-1, 1, 1)
        q2 = Normal(p["a"] * yn, p["log_c"].exp())
        z2 = q2.mean + q2.stddev * nodes[:, :K]
        q1 = Normal(0.5 * z2 + p["b"], 0.8)
        z1 = q1.mean + q1.stddev * nodes[:, K:]
        log_w = Normal(p["m"], p["log_t"].exp()).log_prob(z1)
        log_w = log_w + Normal(z1 + p["g"], 1.0).log_prob(z2)
        log_w = log_w + Normal(z2 + 0.2 * z1, p["log_s"].exp()).log_prob(yn)
        log_w = log_w - q1.log_prob(z1) - q2.log_prob(z2)
        return expectation(log_w, weights, mean)

    return Case(model, guide, exact, INIT, (y,))


def one_latent(log_joint):
    def exact(p, K, mean):
        nodes, weights = grid(K)
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        return expectation(log_joint(p, z, y) - q.log_prob(z), weights, mean)

    return exact


PRIORS = {"normal": normal_prior, "flow": flow_prior, "hierarchy": hierarchy}


def handled(case, K=2):
    """The local sites whose priors have the generalised gradient."""
    found = set()
    paths = priors.PriorPaths

    class Spy(paths):
        def __exit__(self, *args):
            found.update(self.terms)
            return super().__exit__(*args)

    case.setup()
    loss = GDRegIWELBO(K=K)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_dgp.infer.estimators.PriorPaths", Spy)
        loss.loss_and_grads(case.model, case.guide, *case.args)
    return found


@pytest.mark.parametrize(("name", "K"), [("normal", 3), *((n, K) for n in PRIORS for K in (1, 2))])
def test_value_and_gradient_are_those_of_the_integral(name, K):
    case = PRIORS[name]()
    result = scores(draws(case, GDRegIWELBO(K=K)), case.exact_gradient(K))
    assert max(result.values()) < LIMIT, result
    assert handled(case) == {"z1" if name == "hierarchy" else "z"}


@pytest.mark.parametrize("name", CASES)
def test_every_structure_keeps_its_expectation(name):
    """Where no prior has the generalised gradient, it is the other one to the last bits."""
    case = CASES[name]()
    if not name.startswith("Auto") and not handled(case):  # which keep their first parameters
        assert same_gradients(case.model, case.guide, case.args, case.init)
        return
    result = scores(draws(CASES[name](), GDRegIWELBO(K=2)), exact(name, 2))
    assert max(result.values()) < LIMIT, result


@pytest.mark.parametrize("name", ["normal", "hierarchy"])
@pytest.mark.parametrize("option", [{"beta": 0.4}, {"alpha": 0.5}])
def test_other_bounds(name, option):
    case = PRIORS[name]()
    mean = vr_iwae(0.5) if "alpha" in option else ciwae(0.4)
    result = scores(draws(case, GDRegIWELBO(K=2, **option)), case.exact_gradient(2, mean))
    assert max(result.values()) < LIMIT, result


def test_chunks_are_exact():
    results = []
    for chunk_size in (2, None):
        case = normal_prior()
        parameters = case.setup()
        loss = GDRegIWELBO(K=4, num_particles=2, chunk_size=chunk_size)
        loss._chunks = GDRegIWELBO(K=4, num_particles=2, chunk_size=2)._chunks
        loss.loss(case.model, case.guide, *case.args)
        pyro.set_rng_seed(3)
        value = loss.loss_and_grads(case.model, case.guide, *case.args)
        results.append((value, {name: p.grad for name, p in parameters.items()}))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_looped_samples_have_the_same_expectation():
    case = normal_prior()
    loss = GDRegIWELBO(K=2, vectorize_particles=False)
    result = scores(estimates(case, loss, 100), case.exact_gradient(2))
    assert max(result.values()) < LIMIT, result


def test_the_value_is_that_of_the_other_estimators():
    """With and without gradients, bit for bit."""
    case, values = normal_prior(), []
    for loss in (DRegIWELBO(K=5), GDRegIWELBO(K=5)):
        for call in (loss.loss, loss.loss_and_grads):
            case.setup()
            call(case.model, case.guide, *case.args)
            pyro.set_rng_seed(0)
            values.append(call(case.model, case.guide, *case.args))
    assert len(set(values)) == 1


# Wrong variants.


def one_weight_for_both_paths(monkeypatch):
    """c' is left out: T and T' are weighed alike."""
    monkeypatch.setattr(bounds.Coefficients, "guide", lambda self, doubly=0.0: self.model)


def own_score_kept(monkeypatch):
    """The prior's score beside what stands in its place."""
    right = priors.local_log_prob
    monkeypatch.setattr(priors, "local_log_prob", lambda *args: _Kept(right(*args)))


class _Kept(torch.Tensor):
    def __new__(cls, x):
        return x.as_subclass(cls)

    def detach(self):
        return self.as_subclass(torch.Tensor)


def without_log_q(monkeypatch):
    right = priors.PriorPaths.__init__

    def init(self, samples, copies, slopes):
        right(self, samples, copies, {})

    monkeypatch.setattr(priors.PriorPaths, "__init__", init)


@pytest.mark.parametrize("break_it", [one_weight_for_both_paths, own_score_kept, without_log_q])
def test_wrong_variants_are_rejected(monkeypatch, break_it):
    case = normal_prior()
    expected = case.exact_gradient(2)
    break_it(monkeypatch)
    result = scores(draws(case, GDRegIWELBO(K=2)), expected)
    assert max(result["m"], result["log_t"]) > 6, result


# Where the ordinary gradient is kept, and what is refused.


def same_gradients(model, guide, args, init, **options):
    """Whether DReG and GDReG have one gradient from one state of the generator."""
    found = []
    for estimator in (DRegIWELBO, GDRegIWELBO):
        pyro.clear_param_store()
        loss = estimator(K=3, **options)
        loss.loss_and_grads(model, guide, *args)
        store = {name: pyro.get_param_store()[name].unconstrained() for name in init}
        for p in store.values():
            p.grad = None
        pyro.set_rng_seed(1)
        loss.loss_and_grads(model, guide, *args)
        found.append({name: p.grad for name, p in store.items() if p.grad is not None})
    return all(torch.allclose(found[0][name], found[1][name]) for name in found[0])


def test_masked_scaled_and_frozen_draws_keep_the_ordinary_gradient():
    case = normal_prior()
    assert not same_gradients(case.model, case.guide, case.args, INIT)
    mask = torch.tensor([True, False, True, True])
    for handler in (pyro.poutine.mask(mask=mask), pyro.poutine.scale(scale=0.5)):
        assert same_gradients(handler(case.model), handler(case.guide), case.args, INIT)

    def frozen(y):
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(0.5 * y, 0.8))

    assert same_gradients(case.model, frozen, case.args, ["m", "log_t", "g", "log_s"])


def test_points_made_of_a_draw_keep_the_ordinary_gradient():
    case = normal_prior()

    def guide(y):
        p = parameters(INIT)
        with pyro.plate("data", len(y)):
            u = pyro.sample(
                "u", dist.Normal(p["a"] * y, p["log_c"].exp()), infer={"is_auxiliary": True}
            )
            pyro.sample("z", dist.Delta(u + 0.1, log_density=torch.zeros_like(u)))

    assert same_gradients(case.model, guide, case.args, ["m", "log_t", "a", "log_c"])


# How a prior draws.

LOC, SCALE = torch.tensor([0.3, -1.0]), torch.tensor([0.7, 1.5])
TRIL = torch.tensor([[0.7, 0.0], [-0.4, 1.2]])
FACTOR = torch.tensor([[0.7], [-0.4]])
DISTRIBUTIONS = {
    "Normal": lambda p: dist.Normal(p[0], p[1]),
    "Laplace": lambda p: dist.Laplace(p[0], p[1]),
    "Cauchy": lambda p: dist.Cauchy(p[0], p[1]),
    "Logistic": lambda p: dist.Logistic(p[0], p[1]),
    "StudentT": lambda p: dist.StudentT(3.0, p[0], p[1]),
    "Gumbel": lambda p: dist.Gumbel(p[0], p[1]),
    "LogNormal": lambda p: dist.LogNormal(p[0], p[1]),
    "HalfNormal": lambda p: dist.HalfNormal(p[1]),
    "HalfCauchy": lambda p: dist.HalfCauchy(p[1]),
    "Exponential": lambda p: dist.Exponential(p[1]),
    "Weibull": lambda p: dist.Weibull(p[1], 1.3),
    "MultivariateNormal": lambda p: dist.MultivariateNormal(p[0], scale_tril=p[2]),
    "Independent": lambda p: dist.Normal(p[0], p[1]).to_event(1),
    "expanded": lambda p: dist.LogNormal(p[0], p[1]).expand([3, 2]),
    "affine autoregressive": lambda p: dist.TransformedDistribution(
        dist.Normal(p[0], p[1]).to_event(1), [transforms.LowerCholeskyAffine(p[0], p[2])]
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_paths_are_those_of_the_sampler(name, dtype):
    pyro.set_rng_seed(0)
    p = [x.to(dtype, copy=True).requires_grad_() for x in (LOC, SCALE, TRIL)]
    fn = DISTRIBUTIONS[name](p)
    value = fn.rsample()
    path = drawn_by(fn, value.detach())
    weights = torch.rand_like(value)
    wanted, found = (
        torch.autograd.grad((weights * x).sum(), p, materialize_grads=True, allow_unused=True)
        for x in (value, path)
    )
    tolerance = {torch.float32: 1e-3, torch.float64: 1e-9}[dtype]
    torch.testing.assert_close(path, value, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_low_rank_normals_have_the_covariance_of_their_draws():
    """Their sampler has more noise than dimensions; any path to one distribution is right."""
    p = [x.double().requires_grad_() for x in (LOC, SCALE, FACTOR)]
    fn = dist.LowRankMultivariateNormal(p[0], p[2], p[1])
    value = fn.sample()
    (by_loc,) = torch.autograd.grad(drawn_by(fn, value).sum(), p[0])
    torch.testing.assert_close(by_loc, torch.ones_like(by_loc))


# Signal-to-noise ratios.


def signal_to_noise(estimator, log_s, K, num_draws, name):
    case = normal_prior()
    case.init = {**INIT, "log_s": log_s}
    _, grads = estimates(case, estimator(K=K, num_particles=20), num_draws)
    return (grads[name].mean().abs() / grads[name].std()).item()


def test_signal_of_a_prior_of_which_the_data_say_little():
    """A wide likelihood moves less with a draw than the prior's score does; a sharp one, more."""
    reg, gdreg = (signal_to_noise(e, 1.0, 4, 100, "m") for e in (DRegIWELBO, GDRegIWELBO))
    assert gdreg > 3 * reg
    reg, gdreg = (signal_to_noise(e, -1.5, 16, 100, "m") for e in (DRegIWELBO, GDRegIWELBO))
    assert reg > 3 * gdreg


def test_order_of_the_signal_to_noise_ratio_in_K():
    samples = [16, 64, 256]
    log_snr = [torch.tensor(signal_to_noise(GDRegIWELBO, -0.5, K, 150, "m")).log() for K in samples]
    assert slope(samples, log_snr) == pytest.approx(0.5, abs=0.12)
