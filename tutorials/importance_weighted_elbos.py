# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Importance-weighted ELBOs: what RenyiELBO does, and what these do
#
# `RenyiELBO(alpha=0)` is Pyro's importance-weighted bound. This tutorial runs two small models with
# it, with `PartiallyCollapsedIWELBO` and with `DRegIWELBO`, and shows three differences:
#
# 1. With minibatches, RenyiELBO scales log weights by N/B *inside* the logarithm. The result is no
#    bound, and its optimum is not that of the likelihood.
# 2. With a global latent variable, RenyiELBO has one weight for all data together, so that more
#    samples help far less than with a weight for each datum.
# 3. The signal-to-noise ratio of the encoder's gradient falls with K under the ordinary gradient
#    and rises under the doubly reparameterised one (`DRegIWELBO`).

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, RenyiELBO
from pyro.nn import PyroModule, PyroParam
from torch.distributions import constraints

from pyro_dgp import DRegIWELBO, PartiallyCollapsedIWELBO

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps, num_draws, num_repeats = (500, 60, 10) if SMOKE else (2000, 4000, 30)
samples = [1, 10, 100]
pyro.set_rng_seed(0)

# %% [markdown]
# ## A VAE whose evidence is known
#
#     z_n ~ N(0, 1),   x_n ~ N(w z_n, s^2 I) in five dimensions,   q(z_n | x_n) = N(a'x_n, c^2).
#
# The evidence is N(x_n; 0, w w' + s^2 I), so every bound can be compared to it. Minibatches are a
# plate with `subsample`.


# %%
class LinearVAE(PyroModule):
    def __init__(self, num_data, num_pixels=5):
        super().__init__()
        self.num_data = num_data
        self.w = PyroParam(torch.full((num_pixels,), 0.5))
        self.s = PyroParam(torch.tensor(1.0), constraints.positive)
        self.encoder = torch.nn.Linear(num_pixels, 1, bias=False)
        torch.nn.init.constant_(self.encoder.weight, 0.1)
        self.c = PyroParam(torch.tensor(0.7), constraints.positive)

    def plate(self, rows):
        return pyro.plate("data", self.num_data, subsample=rows)

    def forward(self, x, rows):
        with self.plate(rows):
            z = pyro.sample("z", dist.Normal(x.new_zeros(()), 1.0))
            noise = dist.Normal(z.unsqueeze(-1) * self.w, self.s)
            pyro.sample("x", noise.to_event(1), obs=x[rows])

    def guide(self, x, rows):
        pyro.module("encoder", self.encoder)
        with self.plate(rows):
            pyro.sample("z", dist.Normal(self.encoder(x[rows]).squeeze(-1), self.c))

    def evidence(self, x):
        """log p(x), summed over the data."""
        cov = torch.outer(self.w, self.w) + self.s.square() * torch.eye(len(self.w))
        return dist.MultivariateNormal(x.new_zeros(len(self.w)), cov).log_prob(x).sum().item()


def losses(K):
    return {
        "RenyiELBO": RenyiELBO(
            alpha=0, num_particles=K, vectorize_particles=True, max_plate_nesting=1
        ),
        "PartiallyCollapsedIWELBO": PartiallyCollapsedIWELBO(K=K),
        "DRegIWELBO": DRegIWELBO(K=K),
    }


# %% [markdown]
# ## The value with minibatches
#
# With fixed parameters, the mean of each estimate over all ten minibatches of 20 of the 200 rows,
# repeated 30 times, compared with the evidence, which a bound must not exceed.

# %%
mixing = torch.tensor([1.0, -1.0, 0.5, 1.5, -0.5])
x = torch.randn(200, 1) * mixing + 0.6 * torch.randn(200, 5)
vae = LinearVAE(len(x))
evidence = vae.evidence(x)

bounds = {name: [] for name in losses(1)}
for K in samples:
    for name, loss in losses(K).items():
        values = [
            np.mean([-loss.loss(vae, vae.guide, x, rows) for rows in torch.arange(200).split(20)])
            for _ in range(num_repeats)
        ]
        bounds[name].append((np.mean(values), np.std(values) / len(values) ** 0.5))

print(f"log evidence {evidence:.1f}\n{'K':24s}", *(f"{K:>16d}" for K in samples))
for name, points in bounds.items():
    print(f"{name:26s}", *(f"{mean:9.1f} ± {error:4.1f}" for mean, error in points))

# %% [markdown]
# ## What is learned
#
# The maximum of the likelihood is known, too (it is probabilistic PCA: w is the first principal
# component, s^2 the mean of the other variances), and so is the evidence of what each loss has
# learned with K = 20.

# %%
variances, vectors = torch.linalg.eigh(x.T @ x / len(x))
best, s2 = LinearVAE(len(x)), variances[:-1].mean()
best.w, best.s = vectors[:, -1] * (variances[-1] - s2).sqrt(), s2.sqrt()

learned = {}
for name, loss in losses(20).items():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    learned[name] = LinearVAE(len(x))
    optim = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.05 ** (1 / num_steps)})
    svi = SVI(learned[name], learned[name].guide, optim, loss=loss)
    for _ in range(num_steps):
        svi.step(x, torch.randperm(len(x))[:20])

for name, found in {"highest possible": best, **learned}.items():
    print(f"{name:26s} log evidence {found.evidence(x):7.1f}, noise {found.s.item():.3f}")

# %% [markdown]
# ## The encoder's signal-to-noise ratio
#
# |mean| / standard deviation of the gradient with respect to the encoder's weights over many draws,
# for 16 rows: the mean of five ratios, one for each weight. (With a single row, the five gradients
# would be multiples of each other, with one and the same ratio.) For Q draws of pure noise, this is
# sqrt(2 / (pi Q)) on average: an estimate near that floor says only that the ratio is small. The
# standard error of one ratio is about 1/sqrt(Q), 0.016, where the ratio is small.
# [`SNRProfiler`](signal_to_noise.ipynb) does the same, faster.

# %%
some, rows = LinearVAE(16), torch.arange(16)
some.load_state_dict(vae.state_dict())
snr = {name: [] for name in losses(1)}
for K in samples:
    for name, loss in losses(K).items():
        grads = []
        for _ in range(num_draws):
            pyro.clear_param_store()
            some.zero_grad()
            loss.loss_and_grads(some, some.guide, x[:16], rows)
            grads.append(some.encoder.weight.grad.flatten().clone())
        grads = torch.stack(grads)
        snr[name].append((grads.mean(0).abs() / grads.std(0)).mean().item())

floor = (2 / (np.pi * num_draws)) ** 0.5
print(f"floor of {num_draws} draws: {floor:.3f}\n{'K':26s}", *(f"{K:8d}" for K in samples))
for name, ratios in snr.items():
    print(f"{name:26s}", *(f"{ratio:8.3f}" for ratio in ratios))

# %% [markdown]
# ## A hierarchical model
#
#     mu ~ N(0, 1),   z_n ~ N(mu, 1),   y_n ~ N(z_n, 1/2),   with the guide a mean field.
#
# One latent variable outside the data plate is enough for RenyiELBO to form a single weight for all
# data together. Among K such weights one dominates, so that many more samples are needed to get as
# near to the evidence as with a weight for each datum. From K = 1 to 100 the distance of RenyiELBO
# falls from 21 nats to 12, that of the others to 1. The guide is the optimum at K = 1, except that
# the scales of z are a little too small.

# %%
y = 1 + torch.randn(200) * 1.2


def model():
    mu = pyro.sample("mu", dist.Normal(torch.zeros(()), 1.0))
    with pyro.plate("data", 200):
        z = pyro.sample("z", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(z, 0.5**0.5), obs=y)


def guide():
    mean = 200 * y.mean() / (200 + 3 / 2)
    pyro.sample("mu", dist.Normal(mean, (3 / 2 / (200 + 3 / 2)) ** 0.5))
    with pyro.plate("data", 200):
        pyro.sample("z", dist.Normal((mean + 2 * y) / 3, 0.4))


covariance = torch.ones(200, 200) + 1.5 * torch.eye(200)
hierarchical_evidence = dist.MultivariateNormal(torch.zeros(200), covariance).log_prob(y).item()
hierarchical = {name: [] for name in losses(1)}
pyro.clear_param_store()
for K in samples:
    for name, loss in losses(K).items():
        values = [-loss.loss(model, guide) for _ in range(100)]
        hierarchical[name].append((np.mean(values), np.std(values) / len(values) ** 0.5))

print(f"log evidence {hierarchical_evidence:.1f}\n{'K':24s}", *(f"{K:>16d}" for K in samples))
for name, points in hierarchical.items():
    print(f"{name:26s}", *(f"{mean:9.1f} ± {error:4.1f}" for mean, error in points))

# %% [markdown]
# ## All in one figure

# %% figure="importance_weighted_elbos"
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
panels = (
    (axes[0], bounds, evidence, "VAE, minibatches of 20 of 200"),
    (axes[1], hierarchical, hierarchical_evidence, "hierarchical model, all data"),
)
for ax, table, exact, title in panels:
    for name, points in table.items():
        means, errors = zip(*points, strict=True)
        ax.errorbar(samples, means, errors, marker="o", ms=4, label=name)
    ax.axhline(exact, color="black", lw=1, ls="--", label="log evidence")
    ax.set(title=title, ylabel="estimate of the bound")
axes[0].legend(fontsize=8)
for name, ratios in snr.items():
    axes[2].loglog(samples, ratios, marker="o", ms=4, label=name)
axes[2].axhline(floor, color="grey", lw=1, ls=":", label=f"floor of {num_draws} draws")
axes[2].set(title="VAE, 16 data", ylabel="encoder's signal-to-noise ratio")
axes[2].legend(fontsize=8)
for ax in axes:
    ax.set(xscale="log", xlabel="importance samples K")
plt.show()
