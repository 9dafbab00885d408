# %% [markdown]
# # Importance-weighted ELBOs: what RenyiELBO does, and what these do
#
# `RenyiELBO(alpha=0)` is Pyro's importance-weighted bound. This tutorial runs two small models with
# it, with `PartiallyCollapsedIWELBO` and with `DRegIWELBO`, and shows three differences:
#
# 1. With minibatches, RenyiELBO scales log weights by N/B *inside* the logarithm. The result is no
#    bound, and its optimum is not that of the likelihood.
# 2. With a global latent variable, RenyiELBO has one weight for all data together, so that more
#    samples hardly help.
# 3. The signal-to-noise ratio of the encoder's gradient falls with K under the ordinary gradient
#    and rises under the doubly reparameterised one (`DRegIWELBO`).
#
# Run this file with `python tutorials/importance_weighted_elbos.py` (two minutes), or cell by cell.

# %%
import sys
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, RenyiELBO
from pyro.nn import PyroModule, PyroParam
from torch.distributions import constraints

from pyro_dgp import DRegIWELBO, PartiallyCollapsedIWELBO

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
        return dist.MultivariateNormal(x.new_zeros(len(self.w)), cov).log_prob(x).sum()


def simulate(num_data=200):
    z, noise = torch.randn(num_data, 1), torch.randn(num_data, 5)
    return z * torch.tensor([1.0, -1.0, 0.5, 1.5, -0.5]) + 0.6 * noise


def losses(K):
    return {
        "RenyiELBO": RenyiELBO(
            alpha=0, num_particles=K, vectorize_particles=True, max_plate_nesting=1
        ),
        "PartiallyCollapsedIWELBO": PartiallyCollapsedIWELBO(K=K),
        "DRegIWELBO": DRegIWELBO(K=K),
    }


# %% [markdown]
# ### 1. The value with minibatches
#
# With the parameters left alone, the mean of each estimate over all ten minibatches of 20 of the
# 200 rows, many times over, beside the evidence, which a bound must not exceed.


# %%
def values(vae, x, samples, num_draws=30, batch_size=20):
    """Mean and standard error of each bound, by K."""
    batches = torch.arange(len(x)).split(batch_size)
    table = {}
    for K in samples:
        for name, loss in losses(K).items():
            draws = torch.tensor(
                [
                    [-loss.loss(vae, vae.guide, x, rows) for rows in batches]
                    for _ in range(num_draws)
                ]
            ).mean(1)
            table.setdefault(name, []).append((draws.mean(), draws.std() / num_draws**0.5))
    return table


# %% [markdown]
# ### 2. What is learned
#
# The maximum of the likelihood is known, too (it is probabilistic PCA), and so is the evidence of
# what each loss has learned.


# %%
def train(loss, x, num_steps, batch_size=20):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    vae = LinearVAE(len(x))
    optim = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.05 ** (1 / num_steps)})
    svi = SVI(vae, vae.guide, optim, loss=loss)
    for _ in range(num_steps):
        svi.step(x, torch.randperm(len(x))[:batch_size])
    return vae


def highest_evidence(x):
    """Of all w and s: w is the first principal component, s^2 the mean of the other variances."""
    variances, vectors = torch.linalg.eigh(x.T @ x / len(x))
    best = LinearVAE(len(x))
    s2 = variances[:-1].mean()
    best.w, best.s = vectors[:, -1] * (variances[-1] - s2).sqrt(), s2.sqrt()
    return best.evidence(x)


# %% [markdown]
# ### 3. The encoder's signal-to-noise ratio
#
# |mean| / standard deviation of the gradient by the encoder's weights over many draws, for one row.
# Of Q draws of pure noise, this is sqrt(2 / (pi Q)): an estimate near that floor says that the
# ratio is smaller still.


# %%
def encoder_snr(vae, x, samples, num_draws=2000):
    rows = torch.arange(1)
    one = LinearVAE(1)
    one.load_state_dict(vae.state_dict())
    table = {}
    for K in samples:
        for name, loss in losses(K).items():
            grads = []
            for _ in range(num_draws):
                pyro.clear_param_store()
                one.zero_grad()
                loss.loss_and_grads(one, one.guide, x[:1], rows)
                grads.append(one.encoder.weight.grad.flatten().clone())
            grads = torch.stack(grads)
            table.setdefault(name, []).append((grads.mean(0).abs() / grads.std(0)).mean())
    return table


# %% [markdown]
# ## A hierarchical model
#
#     mu ~ N(0, 1),   z_n ~ N(mu, 1),   y_n ~ N(z_n, 1/2),   with the guide a mean field.
#
# One latent variable outside the data plate is enough for RenyiELBO to form a single weight of all
# data together. Among K such weights one dominates, so that it takes many more samples to get as
# near to the evidence as with a weight for each datum.


# %%
def hierarchical_values(samples, num_data=200, num_draws=100):
    y = 1 + torch.randn(num_data) * 1.2

    def model():
        mu = pyro.sample("mu", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", num_data):
            z = pyro.sample("z", dist.Normal(mu, 1.0))
            pyro.sample("y", dist.Normal(z, 0.5**0.5), obs=y)

    def guide():
        # The optimum of this guide at K = 1, but for scales a little too small.
        mean = num_data * y.mean() / (num_data + 3 / 2)
        pyro.sample("mu", dist.Normal(mean, (3 / 2 / (num_data + 3 / 2)) ** 0.5))
        with pyro.plate("data", num_data):
            pyro.sample("z", dist.Normal((mean + 2 * y) / 3, 0.4))

    covariance = torch.ones(num_data, num_data) + 1.5 * torch.eye(num_data)
    evidence = dist.MultivariateNormal(torch.zeros(num_data), covariance).log_prob(y)
    table = {}
    for K in samples:
        for name, loss in losses(K).items():
            draws = torch.tensor([-loss.loss(model, guide) for _ in range(num_draws)])
            table.setdefault(name, []).append((draws.mean(), draws.std() / num_draws**0.5))
    return table, evidence


# %% [markdown]
# ## Everything in a figure


# %%
def figure(samples, bounds, evidence, snr, num_draws, hierarchical, hierarchical_evidence):
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    panels = (
        (axes[0], bounds, evidence, "VAE, minibatches of 20 of 200"),
        (axes[1], hierarchical, hierarchical_evidence, "hierarchical model, all data"),
    )
    for ax, table, exact, title in panels:
        for name, points in table.items():
            means, errors = zip(*points, strict=True)
            ax.errorbar(samples, means, errors, marker="o", ms=4, label=name)
        ax.axhline(exact.item(), color="black", lw=1, ls="--", label="log evidence")
        ax.set(title=title, ylabel="estimate of the bound")
    axes[0].legend(fontsize=8)
    for name, points in snr.items():
        axes[2].loglog(samples, points, marker="o", ms=4, label=name)
    floor = (2 / (torch.pi * num_draws)) ** 0.5
    axes[2].axhline(floor, color="grey", lw=1, ls=":", label=f"floor of {num_draws} draws")
    axes[2].set(title="VAE, one datum", ylabel="encoder's signal-to-noise ratio")
    axes[2].legend(fontsize=8)
    for ax in axes:
        ax.set(xscale="log", xlabel="importance samples K")
    return fig


# %%
def main(num_steps=2000, num_draws=2000, output=None):
    """Prints what each loss gives; returns the tables by what they show."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    x, samples = simulate(), [1, 10, 100]
    vae = LinearVAE(len(x))
    evidence = vae.evidence(x).detach()
    bounds = values(vae, x, samples)
    print(f"1. Bounds for K = {samples}; the log evidence is {evidence:.1f}")
    for name, points in bounds.items():
        print(f"   {name:26s}", *(f"{m:8.1f} +- {e:.1f}" for m, e in points))

    best, learned = highest_evidence(x).item(), {}
    print(f"2. Log evidence after {num_steps} steps; the highest possible is {best:.1f}")
    for name, loss in losses(20).items():
        learned[name] = train(loss, x, num_steps)
        print(f"   {name:26s} {learned[name].evidence(x):8.1f}, noise {learned[name].s:.3f}")

    snr = encoder_snr(vae, x, samples, num_draws)
    print(f"3. The encoder's signal-to-noise ratio for K = {samples}")
    for name, points in snr.items():
        print(f"   {name:26s}", *(f"{r:8.3f}" for r in points))

    pyro.clear_param_store()
    hierarchical, hierarchical_evidence = hierarchical_values(samples)
    print(f"4. Bounds with a global latent; the log evidence is {hierarchical_evidence:.1f}")
    for name, points in hierarchical.items():
        print(f"   {name:26s}", *(f"{m:8.1f} +- {e:.1f}" for m, e in points))

    if output:
        tables = (samples, bounds, evidence, snr, num_draws, hierarchical, hierarchical_evidence)
        figure(*tables).savefig(output, dpi=110)
    evidences = {name: vae.evidence(x).item() for name, vae in learned.items()}
    return {
        "evidence": evidence, "bounds": bounds, "best": best, "learned": evidences, "snr": snr,
        "hierarchical": hierarchical, "hierarchical evidence": hierarchical_evidence,
    }  # fmt: skip


# %%
if __name__ == "__main__":
    figures = Path(__file__).parent / "figures"
    main(*map(int, sys.argv[1:]), output=figures / "importance_weighted_elbos.png")
