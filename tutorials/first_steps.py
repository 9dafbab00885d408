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
# # First steps
#
# A latent deep GP as a Pyro model and guide, on data that no regression with normal noise can
# describe: half of the targets follow one curve, half another, and nothing in x says which.
#
# For tables, without Pyro, see [Densities for your table](densities_for_your_table.ipynb).

# %%
import os

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive

from pyro_dgp import DRegIWELBO, LatentDGP, fit
from pyro_dgp.infer import annealed_adam

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps = 60 if SMOKE else 2000
pyro.set_rng_seed(0)

# %% [markdown]
# ## Data
#
# Inputs [N, D] and targets [N]. The model expects columns of mean 0 and standard deviation 1: test
# rows are standardised by the means and deviations of the training rows.

# %%
X = torch.rand(700, 1) * 4 - 2
sign = torch.randint(2, (700,)) * 2.0 - 1
curve = 0.3 + X[:, 0].cos().abs()
y = sign * curve + 0.08 * torch.randn(700)

y_loc, y_scale = y[:500].mean(), y[:500].std()
X, y = (X - X[:500].mean()) / X[:500].std(), (y - y_loc) / y_scale
(X, X_test), (y, y_test) = X.split([500, 200]), y.split([500, 200])

_, ax = plt.subplots(figsize=(5, 3))
ax.plot(X[:, 0].numpy(), y.numpy(), ".", ms=3)
ax.set(xlabel="x", ylabel="y")
plt.show()

# %% [markdown]
# ## Model and guide
#
# `from_data` makes the configuration of the paper: a latent input z_n ~ N(0, 1) for each x_n, an
# encoder q(z | x, y), hidden layers of GPs, a last GP, normal noise. `dgp.model` and `dgp.guide`
# are like any other pair for `SVI`. These are their sample sites, for five rows:

# %%
dgp = LatentDGP.from_data(X, y, num_inducing=30)
guide_trace = poutine.trace(dgp.guide).get_trace(X[:5], y[:5])
trace = poutine.trace(poutine.replay(dgp.model, guide_trace)).get_trace(X[:5], y[:5])
print(trace.format_shapes())

# %% [markdown]
# Any ELBO of Pyro will do. With `DRegIWELBO` the bound is importance-weighted with K samples of z,
# and the encoder's gradient has a signal-to-noise ratio of order √K. Training is Pyro's usual loop:

# %%
svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=10))
for _ in range(20):
    rows = torch.randint(len(X), (128,))
    loss = svi.step(X[rows], y[rows])
print(f"loss after 20 steps: {loss:.0f}")

# %% [markdown]
# ## Train
#
# `fit` is the same loop with shuffled minibatches, checks and a progress bar. With
# `checkpoint="model.pt"`, training that was interrupted (by Ctrl-C, too) continues exactly at the
# next call. `annealed_adam` is for few steps: its learning rate falls to 0 along half a cosine. The
# default is the paper's schedule, for hundreds of thousands of steps.

# %%
history = fit(
    dgp.model,
    dgp.guide,
    DRegIWELBO(K=10),
    (X, y),
    num_steps=num_steps,
    batch_size=128,
    optim=annealed_adam(0.03, num_steps),
    progress=False,
)
print(f"loss: {history.losses[0]:.0f} at first, {history.losses[-1]:.0f} at the end")

# %% [markdown]
# ## Predict
#
# `dgp.predict` gives a `torch.distributions` object with a density in closed form, a mixture over
# draws of z and of the hidden layers. Its mean log density of rows that training has not seen,
# compared with that of one normal distribution for all targets, with that of a normal with the
# model's mean and variance at each x, and with that of the true density:

# %%
predictive = dgp.predict(X_test, 1000)
log_density = predictive.log_prob(y_test).mean().item()
branches = dist.Normal((torch.stack([curve, -curve], -1)[500:] - y_loc) / y_scale, 0.08 / y_scale)
others = {
    "one normal": dist.Normal(y.mean(), y.std()),
    "a normal at each x": dist.Normal(predictive.mean, predictive.stddev),
    "true density": dist.MixtureSameFamily(dist.Categorical(torch.ones(200, 2)), branches),
}
print(f"{'deep GP':18s}  {log_density:6.2f}")
for name, other in others.items():
    print(f"{name:18s}  {other.log_prob(y_test).mean():6.2f}")

# %% [markdown]
# Pyro's `Predictive` draws from the model:

# %%
draws = Predictive(dgp.model, guide=dgp.guide, num_samples=200, parallel=True)(X_test)
print({name: tuple(value.shape) for name, value in draws.items() if "likelihood" in name})

# %% [markdown]
# Left, the density and the data: two curves. In the middle, the mean for some values of z: for each
# z the deep GP is a smooth function of x, and z moves it from one curve to the other. Right, the
# density at x = 0. The mean is a smooth function of z, too, which leaves some density between the
# curves, where there are no data. The true peaks are of the same height; those of the model are
# not.

# %% figure="first_steps"
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
x, target = torch.linspace(-1.7, 1.7, 120).unsqueeze(-1), torch.linspace(-2, 2, 200)
across, up = x[:, 0].numpy(), target.numpy()
density = dgp.predict(x, 500, shared_draws=True).log_prob(target.unsqueeze(-1)).exp().numpy()
axes[0].pcolormesh(across, up, density, cmap="Blues", shading="nearest", rasterized=True)
axes[0].plot(X[:, 0].numpy(), y.numpy(), ".", ms=2, color="C1", alpha=0.5)
axes[0].set(title="Predictive density and data", xlabel="x", ylabel="y", xlim=(-1.7, 1.7))
for z in (-2.0, -1.0, 0.0, 1.0, 2.0):
    mean = dgp.predict(x, 100, shared_draws=True, z=torch.tensor([z])).mean.numpy()
    axes[1].plot(across, mean, label=f"z = {z:g}", color=plt.cm.coolwarm(z / 4 + 0.5))
axes[1].legend(frameon=False, loc=(0.38, 0.5))
axes[1].set(title="Mean given z", xlabel="x", ylabel="mean of y")
cut = dgp.predict(torch.zeros(1, 1), 2000).log_prob(target.unsqueeze(-1)).exp()[:, 0]
axes[2].plot(up, cut.numpy())
axes[2].set(title="Density at x = 0", xlabel="y", ylabel="density")
plt.show()
