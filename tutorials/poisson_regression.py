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
# # A latent deep GP inside a larger model
#
# Counts at several sites s, say of birds on walks. The log rate is an unknown function of x_n, plus
# a linear effect of covariates w_n, plus an effect of the site, which sites share a prior for:
#
#     y_n ~ Poisson(exp(f(x_n, z_n) + w_n beta + b_{s(n)})),   f a latent deep GP,
#     beta ~ N(0, I),   b_s ~ N(0, tau^2),   tau ~ LogNormal(-1, 1).
#
# The deep GP gives the marginals N(f_loc, f_var) of its last layer; what is observed is up to the
# larger model.

# %%
import os

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, pyro_method

from pyro_dgp import DRegIWELBO, LatentDGP, fit

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps = 300 if SMOKE else 1500
pyro.set_rng_seed(0)

# %% [markdown]
# ## Data
#
# 400 walks at eight sites.

# %%
X, W = torch.rand(400, 1) * 4 - 2, torch.randn(400, 2)
site = torch.randint(8, (400,))
f, beta, b = 1 + torch.sin(2 * X[:, 0]), torch.tensor([0.5, -0.3]), 0.5 * torch.randn(8)
y = torch.poisson((f + W @ beta + b[site]).exp())
print(f"counts from {y.min():.0f} to {y.max():.0f}, {y.mean():.1f} on average")

# %% [markdown]
# ## The model
#
# The bound needs E[log p(y | f)] over f ~ N(f_loc, f_var), not log E. For Poisson counts with a log
# link that is closed:
#
#     E[log p(y | f)] = y m - exp(m + v/2) - log y!      with m = f_loc + log(exposure), v = f_var.
#
# The package's Poisson likelihood has it. The exposure is a factor of the rate exp(f): here it is
# exp(w_n beta + b_{s(n)}).


# %%
class PoissonRegression(PyroModule):
    """Counts whose log rate is a deep GP of X, a linear term in W [N, C] and an effect of a site.

    ``site`` [N] numbers the sites from 0.
    """

    def __init__(self, dgp, num_covariates, num_sites):
        super().__init__()
        self.dgp = dgp
        self.beta_loc = PyroParam(torch.zeros(num_covariates))
        self.beta_scale = PyroParam(torch.full((num_covariates,), 0.1), constraints.positive)
        self.b_loc = PyroParam(torch.zeros(num_sites))
        self.b_scale = PyroParam(torch.full((num_sites,), 0.1), constraints.positive)
        self.tau_loc = PyroParam(torch.tensor(-1.0))
        self.tau_scale = PyroParam(torch.tensor(0.1), constraints.positive)

    @pyro_method
    def model(self, X, W, site, y=None):
        # What all data share stands outside the data plate: one draw for all importance samples.
        beta = pyro.sample("beta", dist.Normal(torch.zeros_like(W[0]), 1.0).to_event(1))
        tau = pyro.sample("tau", dist.LogNormal(-1.0, 1.0))
        b = pyro.sample("b", dist.Normal(torch.zeros_like(self.b_loc), tau).to_event(1))
        plate = self.dgp.plate(X)
        f_loc, f_var = self.dgp.function(X, plate)
        with plate:
            effects = (W @ beta + b[site]).exp()
            counts = self.dgp.likelihood.observation(f_loc, f_var, exposure=effects)
            return pyro.sample("y", counts, obs=y)

    @pyro_method
    def guide(self, X, W, site, y=None):
        pyro.sample("beta", dist.Normal(self.beta_loc, self.beta_scale).to_event(1))
        pyro.sample("tau", dist.LogNormal(self.tau_loc, self.tau_scale))
        pyro.sample("b", dist.Normal(self.b_loc, self.b_scale).to_event(1))
        self.dgp.guide(X, y)


# %%
dgp = LatentDGP.from_data(X, y, num_inducing=20, likelihood="poisson")
regression = PoissonRegression(dgp, num_covariates=2, num_sites=8)
trace = poutine.trace(regression.model).get_trace(X[:5], W[:5], site[:5], y[:5])
for name in ("beta", "tau", "b", "y"):
    node = trace.nodes[name]
    print(f"{name:5s} {tuple(node['value'].shape)}{', observed' * node['is_observed']}")

# %% [markdown]
# ## Train
#
# `beta`, `tau` and `b` are global: they enter the bound once, with their KL. The latent input is
# local: it has ten samples for each datum.

# %%
optim = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.05 ** (1 / num_steps)})
history = fit(
    regression.model,
    regression.guide,
    DRegIWELBO(K=10),
    (X, W, site, y),
    num_steps=num_steps,
    batch_size=100,
    optim=optim,
    progress=False,
)
print(f"loss: {history.losses[0]:.0f} at first, {history.losses[-1]:.0f} at the end")

# %% [markdown]
# ## Estimates and truth
#
# A constant can be moved from f to all sites. So effects of sites are compared by their differences
# from their mean, and f by its correlation with the truth.

# %%
with torch.no_grad():
    f_loc = torch.stack([dgp.function(X, dgp.plate(X))[0][:, 0] for _ in range(50)]).mean(0)
beta_loc, b_loc = regression.beta_loc.detach(), regression.b_loc.detach()
b_scale, tau = regression.b_scale.detach(), regression.tau_loc.exp().item()
beta_error = (beta_loc - beta).abs().max().item()
b_error = (b_loc - b_loc.mean() - (b - b.mean())).abs().max().item()
correlation = torch.corrcoef(torch.stack([f_loc, f]))[0, 1].item()
print(f"beta {beta_loc.numpy().round(2)}, in truth {beta.numpy().round(2)}")
print(f"tau {tau:.2f}, in truth 0.50; sites off by at most {b_error:.2f}")
print(f"correlation of the estimate with f {correlation:.3f}")

# %%
order = X[:, 0].argsort()
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot(X[order, 0].numpy(), (f - f.mean())[order].numpy(), color="black", label="truth")
left.plot(X[order, 0].numpy(), (f_loc - f_loc.mean())[order].numpy(), label="estimate")
left.set(xlabel="x", ylabel="f - mean of f", title="The function")
left.legend(frameon=False)
right.axline((0, 0), slope=1, color="0.7", lw=1)
right.errorbar((b - b.mean()).numpy(), (b_loc - b_loc.mean()).numpy(), 2 * b_scale.numpy(), fmt="o")
right.set(xlabel="truth", ylabel="estimate ± 2 deviations", title="Effects of sites")
right.set_xticks([-1, -0.5, 0, 0.5, 1])
plt.show()
