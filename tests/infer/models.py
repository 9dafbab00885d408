"""Model/guide pairs whose bound is an integral of few dimensions, and that integral.

One case for every structure that the ELBOs are to be right in. The parameters are those of Pyro's
param store, by name; both the integral and the Pyro programs are functions of them, so the
integral's derivative is the oracle of every gradient estimator.
"""

import math
from dataclasses import dataclass, replace

import pyro
import pyro.distributions as dist
import pyro.distributions.transforms as transforms
import pytest
import torch
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoHierarchicalNormalMessenger,
    AutoNormal,
    AutoNormalMessenger,
)
from torch import Tensor
from torch.distributions import Normal, kl_divergence, transform_to

from tests.quadrature import grid

Y = torch.tensor([0.7, -1.2, 0.1, 1.9], dtype=torch.float64)


def expectation(log_w: Tensor, weights: Tensor, mean) -> Tensor:
    """E[mean over K of log_w], from [..., J, K] and the weights [J] of the nodes, summed."""
    return (mean(log_w, -1) * weights).sum()


def log_mean_exp(x: Tensor, dim: int) -> Tensor:
    return x.logsumexp(dim) - math.log(x.shape[dim])


@dataclass
class Case:
    """A model and its guide, their parameters' initial values, and their bound.

    :param exact: ``exact(p, K, mean)`` is the bound of K weights, where ``p`` are the (constrained)
        parameters by name and ``mean(log_w, dim)`` is what the bound makes of log weights.
    :param dict init: Values of the parameters by their names in the param store.
    :param bool iid: The M estimates in one evaluation are independent: no global draw and no
        subsample that they share.
    :param bool shared: They share a subsample or a dropout mask, whatever else they draw.
    """

    model: object
    guide: object
    exact: object
    init: dict
    args: tuple = ()
    iid: bool = True
    shared: bool = False

    def __post_init__(self) -> None:
        self.iid = self.iid and not self.shared

    def setup(self) -> dict[str, Tensor]:
        """Fills an empty param store; returns the unconstrained parameters."""
        pyro.clear_param_store()
        with pyro.poutine.block(), torch.no_grad():
            self.guide(*self.args)
            pyro.poutine.block(self.model)(*self.args)
        store = pyro.get_param_store()
        unconstrained = {name: store[name].unconstrained() for name in self.init}
        for name, value in self.init.items():
            constrained = torch.as_tensor(value).expand(store[name].shape)
            unconstrained[name].data = self._transform(name).inv(constrained).clone()
            unconstrained[name].grad = None
        return unconstrained

    def exact_gradient(self, K: int, mean=None) -> tuple[float, dict[str, Tensor]]:
        """The bound and its gradient by the unconstrained parameters; fills the param store."""
        u = {k: v.detach().clone().requires_grad_() for k, v in self.setup().items()}
        p = {name: self._transform(name)(value) for name, value in u.items()}
        value = self.exact(p, K, log_mean_exp if mean is None else mean)
        grads = torch.autograd.grad(value, list(u.values()), materialize_grads=True)
        return value.item(), dict(zip(u, grads, strict=True))

    @staticmethod
    def _transform(name):
        return transform_to(pyro.get_param_store()._constraints[name])


def parameters(init: dict[str, float]) -> dict[str, Tensor]:
    return {name: pyro.param(name, torch.tensor(value)) for name, value in init.items()}


# Local latents in one plate

VAE_INIT = {"a": 0.4, "b": 0.3, "log_c": -0.2, "theta": 0.5, "log_s": -0.3}


def vae(subsample_size=None) -> Case:
    """z_n ~ N(theta, 1), y_n ~ N(z_n, s^2); q(z_n | y_n) = N(a y_n + b, c^2)."""

    def model(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y), subsample_size=subsample_size) as index:
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y[index])

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y), subsample_size=subsample_size) as index:
            pyro.sample("z", dist.Normal(p["a"] * y[index] + p["b"], p["log_c"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(K)
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) + Normal(z, p["log_s"].exp()).log_prob(y)
        return expectation(log_w - q.log_prob(z), weights, mean)

    return Case(model, guide, exact, VAE_INIT, (Y,), shared=bool(subsample_size))


# A global latent that the guide of the local ones reads

GLOBAL_INIT = {**VAE_INIT, "g": 0.6, "m": 0.2, "log_v": -0.5}


def with_global(subsample_size=None) -> Case:
    """mu ~ N(0, 1), z_n ~ N(mu + theta, 1); q(mu) = N(m, v^2), q(z_n) reads mu."""

    def model(y):
        p = parameters(GLOBAL_INIT)
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample_size=subsample_size) as index:
            z = pyro.sample("z", dist.Normal(mu + p["theta"], 1.0))
            pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y[index])

    def guide(y):
        p = parameters(GLOBAL_INIT)
        mu = pyro.sample("mu", dist.Normal(p["m"], p["log_v"].exp()))
        with pyro.plate("data", len(y), subsample_size=subsample_size) as index:
            loc = p["a"] * y[index] + p["g"] * mu + p["b"]
            pyro.sample("z", dist.Normal(loc, p["log_c"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(1 + K)
        y = Y.reshape(-1, 1, 1)
        q_mu = Normal(p["m"], p["log_v"].exp())
        mu = q_mu.mean + q_mu.stddev * nodes[:, :1]
        q = Normal(p["a"] * y + p["g"] * mu + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes[:, 1:]
        log_w = Normal(mu + p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = log_w + Normal(z, p["log_s"].exp()).log_prob(y)
        local = expectation(log_w, weights, mean)
        return local - kl_divergence(q_mu, Normal(0.0, 1.0))

    return Case(model, guide, exact, GLOBAL_INIT, (Y,), iid=False, shared=bool(subsample_size))


# A hierarchical guide

TWO_INIT = {"a": 0.3, "log_c": -0.4, "g": 0.5, "b": 0.2, "log_d": -0.3, "log_s": -0.1}


def hierarchical() -> Case:
    """z1 ~ N(0, 1), z2 ~ N(z1, 1), y ~ N(z2, s^2); q(z1) = N(a y, c^2), q(z2 | z1) reads z1."""
    y = Y[:2]

    def model(y):
        p = parameters(TWO_INIT)
        with pyro.plate("data", len(y)):
            z1 = pyro.sample("z1", dist.Normal(0.0, 1.0))
            z2 = pyro.sample("z2", dist.Normal(z1, 1.0))
            pyro.sample("y", dist.Normal(z2, p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(TWO_INIT)
        with pyro.plate("data", len(y)):
            z1 = pyro.sample("z1", dist.Normal(p["a"] * y, p["log_c"].exp()))
            pyro.sample("z2", dist.Normal(p["g"] * z1 + p["b"] * y, p["log_d"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(2 * K)
        yn = y.reshape(-1, 1, 1)
        q1 = Normal(p["a"] * yn, p["log_c"].exp())
        z1 = q1.mean + q1.stddev * nodes[:, :K]
        q2 = Normal(p["g"] * z1 + p["b"] * yn, p["log_d"].exp())
        z2 = q2.mean + q2.stddev * nodes[:, K:]
        log_w = Normal(0.0, 1.0).log_prob(z1) - q1.log_prob(z1)
        log_w = log_w + Normal(z1, 1.0).log_prob(z2) - q2.log_prob(z2)
        log_w = log_w + Normal(z2, p["log_s"].exp()).log_prob(yn)
        return expectation(log_w, weights, mean)

    return Case(model, guide, exact, TWO_INIT, (y,))


# No plate: one joint weight


def joint() -> Case:
    """The model of :func:`vae` for two data in one event: the weights are products over them."""
    y = Y[:2]

    def model(y):
        p = parameters(VAE_INIT)
        z = pyro.sample("z", dist.Normal(p["theta"].expand(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(z, p["log_s"].exp()).to_event(1), obs=y)

    def guide(y):
        p = parameters(VAE_INIT)
        pyro.sample("z", dist.Normal(p["a"] * y + p["b"], p["log_c"].exp()).to_event(1))

    def exact(p, K, mean):
        nodes, weights = grid(2 * K)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes.reshape(-1, K, 2)
        log_w = Normal(p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = (log_w + Normal(z, p["log_s"].exp()).log_prob(y)).sum(-1)
        return expectation(log_w, weights, mean)

    return Case(model, guide, exact, VAE_INIT, (y,))


# A plate inside the weights


def grouped(subsample_size=None) -> Case:
    """Groups with a latent each and two observations inside."""
    y = Y.reshape(2, 2)  # [observation, group]

    def model(y):
        p = parameters(VAE_INIT)
        with pyro.plate("groups", 2, subsample_size=subsample_size, dim=-1) as index:
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            with pyro.plate("inside", 2, dim=-2):
                pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y[:, index])

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("groups", 2, subsample_size=subsample_size, dim=-1) as index:
            loc = p["a"] * y[:, index].mean(0) + p["b"]
            pyro.sample("z", dist.Normal(loc, p["log_c"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(K)
        loc = (p["a"] * y.mean(0) + p["b"]).reshape(-1, 1, 1)
        q = Normal(loc, p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = log_w + Normal(z, p["log_s"].exp()).log_prob(y.reshape(2, 2, 1, 1)).sum(0)
        return expectation(log_w, weights, mean)

    return Case(model, guide, exact, VAE_INIT, (y,), shared=bool(subsample_size))


# Only global latents

REGRESSION_INIT = {"m": 0.2, "log_v": -0.5, "log_s": -0.3}


def only_global(subsample_size=None) -> Case:
    """mu ~ N(0, 1), y_n ~ N(mu, s^2): for every K the bound is that of VI."""

    def model(y):
        p = parameters(REGRESSION_INIT)
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample_size=subsample_size) as index:
            pyro.sample("y", dist.Normal(mu, p["log_s"].exp()), obs=y[index])

    def guide(y):
        p = parameters(REGRESSION_INIT)
        pyro.sample("mu", dist.Normal(p["m"], p["log_v"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(1)
        q_mu = Normal(p["m"], p["log_v"].exp())
        mu = q_mu.mean + q_mu.stddev * nodes
        local = (Normal(mu, p["log_s"].exp()).log_prob(Y).sum(-1) * weights).sum()
        return local - kl_divergence(q_mu, Normal(0.0, 1.0))

    return Case(model, guide, exact, REGRESSION_INIT, (Y,), iid=False, shared=bool(subsample_size))


# Other forms of the models above, for which the integral is the same or nearly so


def same_as(case: Case, model=None, guide=None, **options) -> Case:
    return replace(case, model=model or case.model, guide=guide or case.guide, **options)


def cells(subsample_size=None) -> Case:
    """Two plates carry the weights: every cell of a table has a latent and an observation."""
    y = Y.reshape(2, 2)

    def plates():
        rows = pyro.plate("rows", 2, subsample_size=subsample_size, dim=-2)
        columns = pyro.plate("columns", 2, subsample_size=subsample_size, dim=-1)
        return rows, columns

    def model(y):
        p = parameters(VAE_INIT)
        with (plates_ := plates())[0] as i, plates_[1] as j:
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y[i][:, j])

    def guide(y):
        p = parameters(VAE_INIT)
        with (plates_ := plates())[0] as i, plates_[1] as j:
            pyro.sample("z", dist.Normal(p["a"] * y[i][:, j] + p["b"], p["log_c"].exp()))

    return same_as(vae(subsample_size), model, guide, args=(y,))


def sequential(subsample_size=None) -> Case:
    """The model of :func:`vae` with a sequential plate."""

    def model(y):
        p = parameters(VAE_INIT)
        for i in pyro.plate("data", len(y), subsample_size=subsample_size):
            z = pyro.sample(f"z{i}", dist.Normal(p["theta"], 1.0))
            pyro.sample(f"y{i}", dist.Normal(z, p["log_s"].exp()), obs=y[i])

    def guide(y):
        p = parameters(VAE_INIT)
        for i in pyro.plate("data", len(y), subsample_size=subsample_size):
            pyro.sample(f"z{i}", dist.Normal(p["a"] * y[i] + p["b"], p["log_c"].exp()))

    return same_as(vae(subsample_size), model, guide)


def sequential_and_vectorised() -> Case:
    """A vectorised plate in a sequential one, both with weights."""

    def model(y):
        p = parameters(VAE_INIT)
        columns = pyro.plate("columns", 2)
        for i in pyro.plate("rows", 2):
            with columns:
                z = pyro.sample(f"z{i}", dist.Normal(p["theta"], 1.0))
                pyro.sample(f"y{i}", dist.Normal(z, p["log_s"].exp()), obs=y[i])

    def guide(y):
        p = parameters(VAE_INIT)
        columns = pyro.plate("columns", 2)
        for i in pyro.plate("rows", 2):
            with columns:
                pyro.sample(f"z{i}", dist.Normal(p["a"] * y[i] + p["b"], p["log_c"].exp()))

    return same_as(vae(), model, guide, args=(Y.reshape(2, 2),))


def sequential_inside() -> Case:
    """A sequential plate of observations inside a vectorised one with the weights."""
    case = grouped()

    def model(y):
        p = parameters(VAE_INIT)
        inside = pyro.plate("inside", 2)
        with pyro.plate("groups", 2):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            for i in inside:
                pyro.sample(f"y{i}", dist.Normal(z, p["log_s"].exp()), obs=y[i])

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("groups", 2):
            pyro.sample("z", dist.Normal(p["a"] * y.mean(0) + p["b"], p["log_c"].exp()))

    return same_as(case, model, guide)


def network() -> Case:
    """The encoder is a plain nn.Module of two outputs, the guide's mean and log scale."""
    net = torch.nn.Linear(1, 2)
    init = {
        "theta": 0.5,
        "log_s": -0.3,
        "net$$$weight": torch.tensor([[0.4], [0.1]]),
        "net$$$bias": torch.tensor([0.3, -0.2]),
    }

    def guide(y):
        pyro.module("net", net)
        loc, log_scale = net(y.unsqueeze(-1)).unbind(-1)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()))

    def exact(p, K, mean):
        y = Y.reshape(-1, 1, 1)
        weight, bias = p["net$$$weight"], p["net$$$bias"]
        q = Normal(weight[0] * y + bias[0], (weight[1] * y + bias[1]).exp())
        return one_latent(p, K, mean, y, q)

    return same_as(vae(), guide=guide, exact=exact, init=init)


def one_latent(p, K, mean, y, q, prior=None):
    """The bound where z ~ prior, N(theta, 1) if not given, and y ~ N(z, s^2)."""
    nodes, weights = grid(K)
    z = q.mean + q.stddev * nodes
    prior = Normal(p["theta"], 1.0) if prior is None else prior
    log_w = prior.log_prob(z) + Normal(z, p["log_s"].exp()).log_prob(y)
    return expectation(log_w - q.log_prob(z), weights, mean)


def shared_parameter() -> Case:
    """theta is the prior's mean and a part of the guide's."""

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(p["a"] * y + p["theta"] + p["b"], p["log_c"].exp()))

    def exact(p, K, mean):
        y = Y.reshape(-1, 1, 1)
        return one_latent(p, K, mean, y, Normal(p["a"] * y + p["theta"] + p["b"], p["log_c"].exp()))

    return same_as(vae(), guide=guide, exact=exact)


def two_observed_sites() -> Case:
    """y_n and x_n ~ N(2 z_n, 1), observed."""
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])

    def model(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y)
            pyro.sample("x", dist.Normal(2 * z, 1.0), obs=x)

    def exact(p, K, mean):
        nodes, weights = grid(K)
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) + Normal(z, p["log_s"].exp()).log_prob(y)
        log_w = log_w + Normal(2 * z, 1.0).log_prob(x.reshape(-1, 1, 1))
        return expectation(log_w - q.log_prob(z), weights, mean)

    return same_as(vae(), model, exact=exact)


INNER_INIT = {**VAE_INIT, "e": 0.5, "log_f": -0.4}


def latents_inside() -> Case:
    """A latent z for each group and one more, x, for each of its two observations."""
    y = Y.reshape(2, 2)

    def model(y):
        p = parameters(INNER_INIT)
        with pyro.plate("groups", 2, dim=-1):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            with pyro.plate("inside", 2, dim=-2):
                x = pyro.sample("x", dist.Normal(z, 1.0))
                pyro.sample("y", dist.Normal(x, p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(INNER_INIT)
        with pyro.plate("groups", 2, dim=-1):
            z = pyro.sample("z", dist.Normal(p["a"] * y.mean(0) + p["b"], p["log_c"].exp()))
            with pyro.plate("inside", 2, dim=-2):
                pyro.sample("x", dist.Normal(p["e"] * (y + z), p["log_f"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(3 * K)
        qz = Normal((p["a"] * y.mean(0) + p["b"]).reshape(-1, 1, 1), p["log_c"].exp())
        z = qz.mean + qz.stddev * nodes[:, :K]
        log_w = Normal(p["theta"], 1.0).log_prob(z) - qz.log_prob(z)
        for i in range(2):
            yi = y[i].reshape(-1, 1, 1)
            qx = Normal(p["e"] * (yi + z), p["log_f"].exp())
            x = qx.mean + qx.stddev * nodes[:, (1 + i) * K : (2 + i) * K]
            log_w = log_w + Normal(z, 1.0).log_prob(x) - qx.log_prob(x)
            log_w = log_w + Normal(x, p["log_s"].exp()).log_prob(yi)
        return expectation(log_w, weights, mean)

    return Case(model, guide, exact, INNER_INIT, (y,))


THREE_INIT = {**TWO_INIT, "h": 0.3, "k": -0.4, "log_e": -0.2}


def three_levels() -> Case:
    """q(z1), q(z2 | z1) and q(z3 | z1, z2), the last of which skips a level."""
    y = Y[:1]

    def model(y):
        p = parameters(THREE_INIT)
        with pyro.plate("data", len(y)):
            z1 = pyro.sample("z1", dist.Normal(0.0, 1.0))
            z2 = pyro.sample("z2", dist.Normal(z1, 1.0))
            z3 = pyro.sample("z3", dist.Normal(z1 - z2, 1.0))
            pyro.sample("y", dist.Normal(z2 + z3, p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(THREE_INIT)
        with pyro.plate("data", len(y)):
            z1 = pyro.sample("z1", dist.Normal(p["a"] * y, p["log_c"].exp()))
            z2 = pyro.sample("z2", dist.Normal(p["g"] * z1 + p["b"] * y, p["log_d"].exp()))
            pyro.sample("z3", dist.Normal(p["h"] * z1 + p["k"] * z2, p["log_e"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(3 * K)
        yn = y.reshape(-1, 1, 1)
        q1 = Normal(p["a"] * yn, p["log_c"].exp())
        z1 = q1.mean + q1.stddev * nodes[:, :K]
        q2 = Normal(p["g"] * z1 + p["b"] * yn, p["log_d"].exp())
        z2 = q2.mean + q2.stddev * nodes[:, K : 2 * K]
        q3 = Normal(p["h"] * z1 + p["k"] * z2, p["log_e"].exp())
        z3 = q3.mean + q3.stddev * nodes[:, 2 * K :]
        log_w = Normal(0.0, 1.0).log_prob(z1) - q1.log_prob(z1)
        log_w = log_w + Normal(z1, 1.0).log_prob(z2) - q2.log_prob(z2)
        log_w = log_w + Normal(z1 - z2, 1.0).log_prob(z3) - q3.log_prob(z3)
        log_w = log_w + Normal(z2 + z3, p["log_s"].exp()).log_prob(yn)
        return expectation(log_w, weights, mean)

    return Case(model, guide, exact, THREE_INIT, (y,))


# Flows

FLOW_INIT = {**VAE_INIT, "shift": 0.2, "log_stretch": -0.3}


def flow() -> Case:
    """z_n ~ LogNormal(theta, 1), q(z_n) an exponential of an affine flow with parameters."""

    def model(y):
        p = parameters(FLOW_INIT)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.LogNormal(p["theta"], 1.0))
            pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(FLOW_INIT)
        base = dist.Normal(p["a"] * y + p["b"], p["log_c"].exp())
        affine = transforms.AffineTransform(p["shift"], p["log_stretch"].exp())
        with pyro.plate("data", len(y)):
            pyro.sample(
                "z", dist.TransformedDistribution(base, [affine, transforms.ExpTransform()])
            )

    def exact(p, K, mean):
        y = Y.reshape(-1, 1, 1)
        stretch = p["log_stretch"].exp()
        loc = p["shift"] + stretch * (p["a"] * y + p["b"])
        return log_normal_latent(p, K, mean, y, Normal(loc, stretch * p["log_c"].exp()))

    return Case(model, guide, exact, FLOW_INIT, (Y,))


def log_normal_latent(p, K, mean, y, q):
    """The bound where log z ~ N(theta, 1) and y ~ N(z, s^2), with q of log z."""
    nodes, weights = grid(K, {1: 80, 2: 60, 3: 40}[K])
    u = q.mean + q.stddev * nodes
    log_w = Normal(p["theta"], 1.0).log_prob(u) - q.log_prob(u)
    return expectation(log_w + Normal(u.exp(), p["log_s"].exp()).log_prob(y), weights, mean)


def zuko_flow() -> Case:
    """The guide is a normalising flow of the package zuko, conditioned on y."""
    zuko = pytest.importorskip("zuko")
    from pyro.contrib.zuko import ZukoToPyro

    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = zuko.flows.MAF(features=1, context=1, transforms=2, hidden_features=(3,))
    init = {f"zuko$$${name}": value.detach().clone() for name, value in net.named_parameters()}

    def guide(y):
        pyro.module("zuko", net)
        with pyro.plate("data", len(y)):
            pyro.sample("z", ZukoToPyro(net(y.unsqueeze(-1))))

    def model(y):
        p = parameters({"theta": 0.5, "log_s": -0.3})
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0).expand([1]).to_event(1))
            pyro.sample("y", dist.Normal(z.squeeze(-1), p["log_s"].exp()), obs=y)

    def exact(p, K, mean):
        nodes, weights = grid(K)
        y, prefix = Y.reshape(-1, 1, 1), "zuko$$$"
        own = {n.removeprefix(prefix): v for n, v in p.items() if n.startswith(prefix)}
        swapped = torch.nn.utils.stateless._reparametrize_module(net, own)
        with swapped:
            q = net(Y.reshape(-1, 1, 1, 1).expand(-1, *nodes.shape, 1))
            z = q.transform.inv(nodes.unsqueeze(-1).expand(len(Y), *nodes.shape, 1))
            log_q = q.log_prob(z)
        z = z.squeeze(-1)
        log_w = Normal(p["theta"], 1.0).log_prob(z) + Normal(z, p["log_s"].exp()).log_prob(y)
        return expectation(log_w - log_q, weights, mean)

    return Case(model, guide, exact, {"theta": 0.5, "log_s": -0.3, **init}, (Y,))


# Autoguides and guides that run the model


def hierarchy(y):
    """mu ~ N(0, 1), z_n ~ N(mu, 1), y_n ~ N(z_n, s^2)."""
    p = parameters({"log_s": -0.3})
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y)


def hierarchy_exact(p, K, mean, q_mu, local_loc, local_scale):
    """The bound of :func:`hierarchy`, where q(z_n | mu) has mean ``local_loc(mu)``."""
    nodes, weights = grid(1 + K)
    mu = q_mu.mean + q_mu.stddev * nodes[:, :1]
    q = Normal(local_loc(mu), local_scale.reshape(-1, 1, 1))
    z = q.mean + q.stddev * nodes[:, 1:]
    log_w = Normal(mu, 1.0).log_prob(z) - q.log_prob(z)
    log_w = log_w + Normal(z, p["log_s"].exp()).log_prob(Y.reshape(-1, 1, 1))
    return expectation(log_w, weights, mean) - kl_divergence(q_mu, Normal(0.0, 1.0))


LOC = torch.tensor([0.5, -0.6, 0.3, 1.0], dtype=torch.float64)
SCALE = torch.tensor([0.5, 0.7, 0.6, 0.8], dtype=torch.float64)


def mean_field(guide, prefix) -> Case:
    """A guide with a normal distribution of its own for mu and every z_n."""
    names = {key: f"{prefix}{key}" for key in ("locs.mu", "scales.mu", "locs.z", "scales.z")}
    init = dict(zip(names.values(), (0.2, 0.6, LOC, SCALE), strict=True))

    def exact(p, K, mean):
        p = {**p, **{key: p[name] for key, name in names.items()}}
        q_mu = Normal(p["locs.mu"], p["scales.mu"])
        loc = p["locs.z"].reshape(-1, 1, 1)
        return hierarchy_exact(p, K, mean, q_mu, lambda mu: loc, p["scales.z"])

    return Case(hierarchy, guide, exact, {"log_s": -0.3, **init}, (Y,), iid=False)


def autonormal() -> Case:
    return mean_field(AutoNormal(hierarchy), "AutoNormal.")


def autonormal_messenger() -> Case:
    return mean_field(AutoNormalMessenger(hierarchy), "")


def autohierarchical_messenger() -> Case:
    """q(z_n | mu) = N(loc_n + weight_n mu, scale_n^2), by running the model."""
    init = {
        "log_s": -0.3,
        "locs.mu": 0.2,
        "scales.mu": 0.6,
        "locs.z": LOC,
        "scales.z": SCALE,
        "weights.z": torch.tensor([0.5, 0.2, 1.0, 0.3]),
    }

    def exact(p, K, mean):
        q_mu = Normal(p["locs.mu"], p["scales.mu"])
        loc, weight = (p[name].reshape(-1, 1, 1) for name in ("locs.z", "weights.z"))
        return hierarchy_exact(p, K, mean, q_mu, lambda mu: loc + weight * mu, p["scales.z"])

    guide = AutoHierarchicalNormalMessenger(hierarchy, hierarchical_sites=["z"])
    return Case(hierarchy, guide, exact, init, (Y,), iid=False)


def autoguide_list() -> Case:
    """A point estimate of mu beside normal distributions of z."""
    guide = AutoGuideList(hierarchy)
    guide.append(AutoDelta(pyro.poutine.block(hierarchy, expose=["mu"])))
    guide.append(AutoNormal(pyro.poutine.block(hierarchy, expose=["z"])))
    prefix = "AutoGuideList"
    init = {
        "log_s": -0.3,
        f"{prefix}.0.mu": 0.2,
        f"{prefix}.1.locs.z": LOC,
        f"{prefix}.1.scales.z": SCALE,
    }

    def exact(p, K, mean):
        mu = p[f"{prefix}.0.mu"]
        q = Normal(
            p[f"{prefix}.1.locs.z"].reshape(-1, 1, 1), p[f"{prefix}.1.scales.z"].reshape(-1, 1, 1)
        )
        local = one_latent(p, K, mean, Y.reshape(-1, 1, 1), q, Normal(mu, 1.0))
        return local + Normal(0.0, 1.0).log_prob(mu)

    return Case(hierarchy, guide, exact, init, (Y,))


def positive(y):
    p = parameters({"theta": 0.5, "log_s": -0.3})
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.LogNormal(p["theta"], 1.0))
        pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y)


def autonormal_positive() -> Case:
    """AutoNormal hands out z = exp(u) as a Delta with a density."""
    prefix = "AutoNormal"
    init = {"theta": 0.5, "log_s": -0.3, f"{prefix}.locs.z": LOC, f"{prefix}.scales.z": SCALE}

    def exact(p, K, mean):
        q = Normal(*(p[f"{prefix}.{key}.z"].reshape(-1, 1, 1) for key in ("locs", "scales")))
        return log_normal_latent(p, K, mean, Y.reshape(-1, 1, 1), q)

    return Case(positive, AutoNormal(positive), exact, init, (Y,))


def autodelta() -> Case:
    """Point estimates have weights, too, which are all equal."""
    init = {"theta": 0.5, "log_s": -0.3, "AutoDelta.z": SCALE}

    def exact(p, K, mean):
        z = p["AutoDelta.z"]
        log_w = dist.LogNormal(p["theta"], 1.0).log_prob(z)
        return (log_w + Normal(z, p["log_s"].exp()).log_prob(Y)).sum()

    return Case(positive, AutoDelta(positive), exact, init, (Y,))


# Handlers, missing data, randomness that is no site


def conditioned(intervene=False) -> Case:
    """y_n ~ N(z_n + v_n, s^2), where v_n is a latent of the model that a handler fixes."""
    v = torch.tensor([0.3, -0.2, 0.4, 0.1])
    handler = pyro.poutine.do if intervene else pyro.poutine.condition

    def model(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            v = pyro.sample("v", dist.Normal(p["theta"], 2.0))
            pyro.deterministic("sum", z + v, event_dim=0)
            pyro.sample("y", dist.Normal(z + v, p["log_s"].exp()), obs=y)

    def exact(p, K, mean):
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        value = one_latent(p, K, mean, y - v.reshape(-1, 1, 1), q)
        return value if intervene else value + Normal(p["theta"], 2.0).log_prob(v).sum()

    handled = handler(model, data={"v": v})
    if intervene:
        # The site itself is still drawn, for nothing.
        handled = pyro.poutine.block(handled, hide=["v"])
    return same_as(vae(), handled, exact=exact)


MISSING = torch.tensor([False, True, False, False])


def missing(handler) -> Case:
    """One y_n is NaN, and masked; its latent and weight remain.

    :param str handler: "poutine" or "distribution".
    """
    y = Y.masked_fill(MISSING, math.nan)

    def model(y):
        p = parameters(VAE_INIT)
        seen = ~y.isnan()
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            # A support that is bounded: 0 will not do in place of NaN.
            noise = dist.LogNormal(z, p["log_s"].exp())
            if handler == "distribution":
                pyro.sample("y", noise.mask(seen), obs=y.exp())
            else:
                with pyro.poutine.mask(mask=seen):
                    pyro.sample("y", noise, obs=y.exp())

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(p["a"] * y.nan_to_num() + p["b"], p["log_c"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(K)
        known, seen = y.nan_to_num().reshape(-1, 1, 1), ~MISSING.reshape(-1, 1, 1)
        q = Normal(p["a"] * known + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = log_w + seen * (Normal(z, p["log_s"].exp()).log_prob(known) - known)
        return expectation(log_w, weights, mean)

    return same_as(vae(), model, guide, exact=exact, args=(y,))


def partly_missing() -> Case:
    """Vectors y_n of which single elements are NaN, masked inside the event."""
    y = torch.stack([Y, Y.flip(0) + 0.5], -1).masked_fill(
        torch.stack([MISSING, ~MISSING], -1), math.nan
    )

    def model(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            noise = dist.Normal(z.unsqueeze(-1), p["log_s"].exp()).expand([*z.shape, 2])
            pyro.sample("y", noise.mask(~y.isnan()).to_event(1), obs=y)

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            loc = p["a"] * y.nansum(-1) + p["b"]
            pyro.sample("z", dist.Normal(loc, p["log_c"].exp()))

    def exact(p, K, mean):
        # One element of every pair is there.
        known = y.nansum(-1).reshape(-1, 1, 1)
        q = Normal(p["a"] * known + p["b"], p["log_c"].exp())
        return one_latent(p, K, mean, known, q)

    return same_as(vae(), model, guide, exact=exact, args=(y,))


def annealed(scale=0.4) -> Case:
    """poutine.scale on the latent site of model and guide, as KL annealing does it."""

    def model(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)):
            with pyro.poutine.scale(scale=scale):
                z = pyro.sample("z", dist.Normal(p["theta"], 1.0))
            pyro.sample("y", dist.Normal(z, p["log_s"].exp()), obs=y)

    def guide(y):
        p = parameters(VAE_INIT)
        with pyro.plate("data", len(y)), pyro.poutine.scale(scale=scale):
            pyro.sample("z", dist.Normal(p["a"] * y + p["b"], p["log_c"].exp()))

    def exact(p, K, mean):
        nodes, weights = grid(K)
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = scale * (Normal(p["theta"], 1.0).log_prob(z) - q.log_prob(z))
        return expectation(log_w + Normal(z, p["log_s"].exp()).log_prob(y), weights, mean)

    return same_as(vae(), model, guide, exact=exact)


def unscored() -> Case:
    """The guide masks one datum's z, so its log q counts for nothing, but the model reads it."""

    def guide(y):
        with pyro.poutine.mask(mask=~MISSING):
            vae().guide(y)

    def exact(p, K, mean):
        nodes, weights = grid(K)
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) - ~MISSING.reshape(-1, 1, 1) * q.log_prob(z)
        return expectation(log_w + Normal(z, p["log_s"].exp()).log_prob(y), weights, mean)

    return same_as(vae(), guide=guide, exact=exact)


def factor_in_guide() -> Case:
    """A term c y_n of log q that no distribution has."""
    init = {**VAE_INIT, "c": 0.3}

    def guide(y):
        p = parameters(init)
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(p["a"] * y + p["b"], p["log_c"].exp()))
            pyro.factor("penalty", p["c"] * y, has_rsample=True)

    def exact(p, K, mean):
        return vae().exact(p, K, mean) - p["c"] * Y.sum()

    return same_as(vae(), guide=guide, exact=exact, init=init)


def dropout() -> Case:
    """q(z_n | y_n) = N(a d_n y_n + b, c^2), where d_n is 0 or 2 with equal chances."""

    def guide(y):
        p = parameters(VAE_INIT)
        loc = torch.nn.functional.dropout(p["a"] * y, 0.5) + p["b"]
        with pyro.plate("data", len(y)):
            pyro.sample("z", dist.Normal(loc, p["log_c"].exp()))

    def exact(p, K, mean):
        y = Y.reshape(-1, 1, 1)
        return sum(
            0.5 * one_latent(p, K, mean, y, Normal(d * p["a"] * y + p["b"], p["log_c"].exp()))
            for d in (0, 2)
        )

    return same_as(vae(), guide=guide, exact=exact, shared=True)


def dropout_between_latents() -> Case:
    """q(z2 | z1) reads z1 through dropout."""
    case = hierarchical()

    def guide(y):
        p = parameters(TWO_INIT)
        with pyro.plate("data", len(y)):
            z1 = pyro.sample("z1", dist.Normal(p["a"] * y, p["log_c"].exp()))
            # One d_n for all samples of a datum.
            d = torch.nn.functional.dropout(torch.ones_like(y), 0.5)
            pyro.sample("z2", dist.Normal(p["g"] * d * z1 + p["b"] * y, p["log_d"].exp()))

    def exact(p, K, mean):
        return sum(0.5 * case.exact({**p, "g": d * p["g"]}, K, mean) for d in (0, 2))

    return same_as(case, guide=guide, exact=exact, shared=True)


CASES = {
    "plate": vae,
    "plate, subsampled": lambda: vae(2),
    "global": with_global,
    "global, subsampled": lambda: with_global(2),
    "hierarchical guide": hierarchical,
    "three levels": three_levels,
    "no plate": joint,
    "groups": grouped,
    "groups, subsampled": lambda: grouped(1),
    "latents inside": latents_inside,
    "two plates": cells,
    "two plates, subsampled": lambda: cells(1),
    "sequential": sequential,
    "sequential, subsampled": lambda: sequential(2),
    "sequential and vectorised": sequential_and_vectorised,
    "sequential inside": sequential_inside,
    "only global": only_global,
    "only global, subsampled": lambda: only_global(2),
    "two observed sites": two_observed_sites,
    "network": network,
    "shared parameter": shared_parameter,
    "flow": flow,
    "zuko": zuko_flow,
    "AutoNormal": autonormal,
    "AutoNormal, positive": autonormal_positive,
    "AutoDelta": autodelta,
    "AutoGuideList": autoguide_list,
    "AutoNormalMessenger": autonormal_messenger,
    "AutoHierarchicalNormalMessenger": autohierarchical_messenger,
    "condition": conditioned,
    "do": lambda: conditioned(intervene=True),
    "missing, poutine.mask": lambda: missing("poutine"),
    "missing, masked distribution": lambda: missing("distribution"),
    "partly missing": partly_missing,
    "annealed": annealed,
    "masked guide": unscored,
    "factor in the guide": factor_in_guide,
    "dropout": dropout,
    "dropout between latents": dropout_between_latents,
}
