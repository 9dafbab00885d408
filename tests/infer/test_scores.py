"""Local latents without a gradient: the bound and its derivatives are sums over their values."""

import functools
import itertools
import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import Bernoulli, Normal

from pyro_dgp import VIMCOIWELBO
from pyro_dgp.infer.bounds import Bound
from tests.infer.estimates import LIMIT, estimates, exact, scores, vr_iwae, z_score
from tests.infer.models import log_mean_exp, parameters, vae
from tests.quadrature import grid

Y = torch.tensor([0.7, -1.2], dtype=torch.float64)
INIT = {"theta": 0.3, "log_s": -0.2, "a": 0.5, "b": 0.1, "c": 0.4, "log_d": -0.3}


def switch_model(y):
    """s_n ~ Bernoulli(theta), z_n ~ N(2 s_n, 1), y_n ~ N(z_n, s^2)."""
    p = parameters(INIT)
    with pyro.plate("data", len(y)):
        s = pyro.sample("s", dist.Bernoulli(logits=p["theta"]))
        z = pyro.sample("z", dist.Normal(2 * s, 1.0))
        pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y)


def switch_guide(y):
    """q(s_n | y_n) by a logit, q(z_n | s_n, y_n) normal."""
    p = parameters(INIT)
    with pyro.plate("data", len(y)):
        s = pyro.sample("s", dist.Bernoulli(logits=p["a"] * y + p["b"]))
        pyro.sample("z", dist.Normal(p["c"] * y + s, p["log_d"].exp()))


def reversed_guide(y):
    """q(z_n | y_n), then q(s_n | z_n): the discrete draw's score reaches z's parameters."""
    p = parameters(INIT)
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(p["c"] * y, p["log_d"].exp()))
        pyro.sample("s", dist.Bernoulli(logits=p["a"] * z + p["b"]))


def expected_bound(p, K, mean, is_reversed):
    """Over all values of s_1, ..., s_K and by quadrature over z_1, ..., z_K."""
    nodes, weights = grid(K)
    y, total = Y.reshape(-1, 1, 1), 0.0
    for values in itertools.product((0.0, 1.0), repeat=K):
        s = torch.tensor(values)
        loc = p["c"] * y if is_reversed else p["c"] * y + s
        z = loc + p["log_d"].exp() * nodes
        q_s = Bernoulli(logits=p["a"] * (z if is_reversed else y) + p["b"]).log_prob(s)
        log_w = Bernoulli(logits=p["theta"]).log_prob(s) + Normal(2 * s, 1.0).log_prob(z)
        log_w = log_w + Normal(z, p["log_s"].exp()).log_prob(y) - q_s
        log_w = log_w - Normal(loc, p["log_d"].exp()).log_prob(z)
        chance = q_s.expand(log_w.shape).sum(-1).exp()
        total = total + (mean(log_w, -1) * chance * weights).sum()
    return total


def exact_gradient(K, mean, is_reversed):
    p = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in INIT.items()}
    value = expected_bound(p, K, mean, is_reversed)
    return value.item(), dict(zip(p, torch.autograd.grad(value, list(p.values())), strict=True))


class Switch:
    model, args, iid = staticmethod(switch_model), (Y,), True

    def __init__(self, is_reversed):
        self.guide = reversed_guide if is_reversed else switch_guide

    def setup(self):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        return {n: p.unconstrained() for n, p in parameters(INIT).items()}


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("K", "alpha", "beta"), [(2, 0.0, 0.0), (3, 0.0, 0.0), (2, 0.4, 0.3)])
def test_value_and_gradient_are_those_of_the_sum(K, alpha, beta, is_reversed):
    loss = VIMCOIWELBO(K=K, num_particles=800, alpha=alpha, beta=beta)
    expected = exact_gradient(K, vr_iwae(alpha, beta), is_reversed)
    result = scores(estimates(Switch(is_reversed), loss, 60), expected)
    assert max(result.values()) < LIMIT, result


@pytest.mark.parametrize("option", [{"vectorize_particles": False}, {"chunk_size": 7}])
def test_loops_and_chunks(option):
    loss = VIMCOIWELBO(K=2, num_particles=4 if "chunk_size" not in option else 20, **option)
    result = scores(estimates(Switch(False), loss, 60), exact_gradient(2, vr_iwae(0, 0), False))
    assert max(result.values()) < LIMIT, result


def test_without_the_scores_the_gradient_is_wrong(monkeypatch):
    monkeypatch.setattr(Bound, "signals", lambda self, log_w: torch.zeros_like(log_w))
    loss = VIMCOIWELBO(K=2, num_particles=800)
    _, grads = estimates(Switch(False), loss, 30)
    assert z_score(grads["a"], exact_gradient(2, vr_iwae(0, 0), False)[1]["a"]) > 10


def test_reparameterised_latents_have_their_gradient():
    result = scores(estimates(vae(), VIMCOIWELBO(K=2, num_particles=800), 60), exact("plate", 2))
    assert max(result.values()) < LIMIT, result


def test_signals_by_their_formula():
    log_w = torch.randn(6, 3)
    for alpha, beta in ((0.0, 0.0), (0.5, 0.2)):
        bound = Bound(2, 3, beta, False, alpha)
        found = bound.signals(log_w)
        for i in range(6):
            m, k = divmod(i, 3)
            others = [3 * m + j for j in range(3) if j != k]
            changed = log_w.clone()
            changed[i] = log_w[others].mean(0)
            torch.testing.assert_close(found[i], bound.value(log_w) - bound.value(changed))
    assert Bound(1, 2, 0.0, False).signals(torch.full((2, 1), -math.inf)).isfinite().all()


def test_signals_of_weights_that_are_zero():
    """A draw of weight 0 has a signal, too, unless all others have weight 0."""
    zero, bound = -math.inf, Bound(1, 3, 0.0, False)
    log_w = torch.tensor([[0.0, zero, -1.0], [0.0, zero, zero], [zero, zero, zero]]).T
    found = bound.signals(log_w).T
    total = 1 + math.exp(-1)
    alone = math.log(total / (total + math.exp(-0.5)))
    torch.testing.assert_close(
        found[0], torch.tensor([math.log(total) + 1, alone, math.log(total)])
    )
    assert not found[1:].any()


def test_the_baseline_takes_noise():
    """Beside the score times the bound itself."""
    case = Switch(False)

    def noise():
        return estimates(case, VIMCOIWELBO(K=10, num_particles=20), 60)[1]["a"].std().item()

    with_baseline = noise()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Bound,
            "signals",
            lambda self, log_w: (
                self.sets(log_w).logsumexp(1, keepdim=True).expand(-1, 10, -1).flatten(0, 1)
                - math.log(10)
            ) / self.num_particles,
        )  # fmt: skip
        assert noise() > 3 * with_baseline


def test_categorical_draws():
    """Integers, whose gradients autograd does not know of."""
    means = torch.tensor([-2.0, 0.0, 2.0])

    def model():
        with pyro.plate("data", 2):
            k = pyro.sample("k", dist.Categorical(torch.ones(3)))
            pyro.sample("y", dist.Normal(means[k], 1.0), obs=Y)

    def guide():
        logits = pyro.param("logits", torch.zeros(2, 3))
        with pyro.plate("data", 2):
            pyro.sample("k", dist.Categorical(logits=logits))

    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), VIMCOIWELBO(K=5))
    for _ in range(400):
        svi.step()
    log_joint = Normal(means, 1.0).log_prob(Y[:, None]) - math.log(3)
    evidence = log_joint.logsumexp(1).sum().item()
    loss = VIMCOIWELBO(K=50)
    values = torch.tensor([-loss.loss(model, guide) for _ in range(50)])
    assert values.mean().item() == pytest.approx(evidence, abs=0.02)
    found = pyro.param("logits").softmax(1).detach()
    assert (found - log_joint.softmax(1)).abs().max() < 0.2


# Scales and masks change the weights, but not the draws.


def handled_model(y, handler):
    p = parameters(INIT)
    with pyro.plate("data", len(y)):
        with handler():
            s = pyro.sample("s", dist.Bernoulli(logits=p["theta"]))
        pyro.sample("y", dist.Normal(2 * s, 1.0), obs=y)


def handled_guide(y, handler):
    p = parameters(INIT)
    with pyro.plate("data", len(y)), handler():
        pyro.sample("s", dist.Bernoulli(logits=p["a"] * y + p["b"]))


HANDLERS = {
    "scale": (lambda: poutine.scale(scale=0.3), 0.3),
    "mask": (lambda: poutine.mask(mask=torch.tensor([False, False])), 0.0),
    "whole mask": (lambda: poutine.mask(mask=False), 0.0),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_scores_are_those_of_the_draws_under_scales_and_masks(name):
    handler, factor = HANDLERS[name]
    K, p = 2, {n: torch.tensor(v).double().requires_grad_() for n, v in INIT.items()}
    value, y = 0.0, Y.unsqueeze(-1)
    for values in itertools.product((0.0, 1.0), repeat=K):
        s = torch.tensor(values).double()
        q = Bernoulli(logits=p["a"] * y + p["b"]).log_prob(s)
        ratio = Bernoulli(logits=p["theta"]).log_prob(s) - q
        log_w = factor * ratio + Normal(2 * s, 1.0).log_prob(y)
        value = value + (log_mean_exp(log_w, -1) * q.sum(-1).exp()).sum()
    names = ["a", "b"]
    expected = dict(zip(names, torch.autograd.grad(value, [p[n] for n in names]), strict=True))

    class Handled(Switch):
        def __init__(self):
            self.model = functools.partial(handled_model, handler=handler)
            self.guide = functools.partial(handled_guide, handler=handler)

    found, grads = estimates(Handled(), VIMCOIWELBO(K=K, num_particles=800), 60)
    assert z_score(found, value.item()) < LIMIT
    for n in names:
        assert z_score(grads[n], expected[n]) < LIMIT, n
