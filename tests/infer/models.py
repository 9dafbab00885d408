"""Model/guide pairs whose bound is an integral of few dimensions, and that integral.

Every model is linear and Gaussian. ``params`` are unconstrained numbers by name; both the integral
and the Pyro programs are functions of them, so the integral's derivative is the oracle of every
gradient estimator.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

Y = torch.tensor([0.7, -1.2, 0.1, 1.9], dtype=torch.float64)


def grid(num_dims: int, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes [J, num_dims] and weights [J] for a standard normal vector."""
    x, w = np.polynomial.hermite_e.hermegauss(num_nodes)
    x, w = torch.as_tensor(x), torch.as_tensor(w / w.sum())
    nodes = torch.stack(torch.meshgrid(*[x] * num_dims, indexing="ij"), -1).reshape(-1, num_dims)
    weights = torch.stack(torch.meshgrid(*[w] * num_dims, indexing="ij"), -1).prod(-1)
    return nodes, weights.reshape(-1)


def log_mean_exp(x: Tensor, dim: int) -> Tensor:
    return x.logsumexp(dim) - math.log(x.shape[dim])


@dataclass
class Case:
    """A model, its guide, its parameters' initial values, and its bound."""

    model: object
    guide: object
    exact: object
    init: dict[str, float]
    args: tuple = ()
    local: tuple[str, ...] = ()
    kwargs: dict = field(default_factory=dict)

    def exact_gradient(self, K: int) -> tuple[float, dict[str, float]]:
        p = {k: torch.tensor(v, requires_grad=True) for k, v in self.init.items()}
        value = self.exact(p, K)
        grads = torch.autograd.grad(value, list(p.values()), allow_unused=True)
        return value.item(), {
            k: 0.0 if g is None else g.item() for k, g in zip(p, grads, strict=True)
        }


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

    def exact(p, K):
        nodes, weights = grid(K, {1: 60, 2: 40, 3: 24}[K])
        y = Y.reshape(-1, 1, 1)
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) + Normal(z, p["log_s"].exp()).log_prob(y)
        return (log_mean_exp(log_w - q.log_prob(z), -1) * weights).sum()

    return Case(model, guide, exact, VAE_INIT, (Y,), local=("a", "b", "log_c"))


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

    def exact(p, K):
        nodes, weights = grid(1 + K, {1: 40, 2: 24, 3: 16}[K])
        y = Y.reshape(-1, 1, 1)
        q_mu = Normal(p["m"], p["log_v"].exp())
        mu = q_mu.mean + q_mu.stddev * nodes[:, :1]
        q = Normal(p["a"] * y + p["g"] * mu + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes[:, 1:]
        log_w = Normal(mu + p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = log_w + Normal(z, p["log_s"].exp()).log_prob(y)
        local = (log_mean_exp(log_w, -1) * weights).sum()
        return local - kl_divergence(q_mu, Normal(0.0, 1.0))

    return Case(model, guide, exact, GLOBAL_INIT, (Y,), local=("a", "b", "log_c", "g"))


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

    def exact(p, K):
        nodes, weights = grid(2 * K, {1: 40, 2: 18}[K])
        yn = y.reshape(-1, 1, 1)
        q1 = Normal(p["a"] * yn, p["log_c"].exp())
        z1 = q1.mean + q1.stddev * nodes[:, :K]
        q2 = Normal(p["g"] * z1 + p["b"] * yn, p["log_d"].exp())
        z2 = q2.mean + q2.stddev * nodes[:, K:]
        log_w = Normal(0.0, 1.0).log_prob(z1) - q1.log_prob(z1)
        log_w = log_w + Normal(z1, 1.0).log_prob(z2) - q2.log_prob(z2)
        log_w = log_w + Normal(z2, p["log_s"].exp()).log_prob(yn)
        return (log_mean_exp(log_w, -1) * weights).sum()

    return Case(model, guide, exact, TWO_INIT, (y,), local=("a", "log_c", "g", "b", "log_d"))


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

    def exact(p, K):
        nodes, weights = grid(2 * K, {1: 40, 2: 18}[K])
        q = Normal(p["a"] * y + p["b"], p["log_c"].exp())
        z = q.mean + q.stddev * nodes.reshape(-1, K, 2)
        log_w = Normal(p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = (log_w + Normal(z, p["log_s"].exp()).log_prob(y)).sum(-1)
        return (log_mean_exp(log_w, -1) * weights).sum()

    return Case(model, guide, exact, VAE_INIT, (y,), local=("a", "b", "log_c"))


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

    def exact(p, K):
        nodes, weights = grid(K, {1: 60, 2: 40, 3: 24}[K])
        loc = (p["a"] * y.mean(0) + p["b"]).reshape(-1, 1, 1)
        q = Normal(loc, p["log_c"].exp())
        z = q.mean + q.stddev * nodes
        log_w = Normal(p["theta"], 1.0).log_prob(z) - q.log_prob(z)
        log_w = log_w + Normal(z, p["log_s"].exp()).log_prob(y.reshape(2, 2, 1, 1)).sum(0)
        return (log_mean_exp(log_w, -1) * weights).sum()

    return Case(model, guide, exact, VAE_INIT, (y,), local=("a", "b", "log_c"))


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

    def exact(p, K):
        nodes, weights = grid(1, 60)
        q_mu = Normal(p["m"], p["log_v"].exp())
        mu = q_mu.mean + q_mu.stddev * nodes
        local = (Normal(mu, p["log_s"].exp()).log_prob(Y).sum(-1) * weights).sum()
        return local - kl_divergence(q_mu, Normal(0.0, 1.0))

    return Case(model, guide, exact, REGRESSION_INIT, (Y,))


CASES = {
    "plate": vae,
    "plate, subsampled": lambda: vae(2),
    "global": with_global,
    "global, subsampled": lambda: with_global(2),
    "hierarchical guide": hierarchical,
    "no plate": joint,
    "groups": grouped,
    "groups, subsampled": lambda: grouped(1),
    "only global": only_global,
    "only global, subsampled": lambda: only_global(2),
}
