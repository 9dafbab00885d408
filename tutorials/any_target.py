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
# # Any target: likelihoods
#
# A deep GP gives functions f of the inputs; the likelihood p(y | f) says what becomes of them. This
# tutorial takes three kinds of targets: numbers whose noise varies, counts at unequal exposure, and
# censored measurements, for which it writes a likelihood of its own. All likelihoods of the package
# are on [a page](../.docs/likelihoods.md);
# [Counts, classes, grades](counts_classes_grades.ipynb) has some of them on real data.

# %%
import os

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch.distributions import constraints

from pyro_dgp import DRegIWELBO, LatentDGP, fit
from pyro_dgp.gp import Likelihood
from pyro_dgp.gp.likelihoods import HeteroscedasticGaussian
from pyro_dgp.infer import annealed_adam

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps = 200 if SMOKE else 1000

# %% [markdown]
# All models below have one GP layer and no latent input. Data go to `fit` by the names of the
# model's arguments.


# %%
def trained(data, likelihood):
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(
        data["X"], data["y"], num_layers=1, latent_dim=0, num_inducing=30, likelihood=likelihood
    )
    fit(
        dgp.model, dgp.guide, DRegIWELBO(K=1), data,
        num_steps=num_steps, batch_size=100, optim=annealed_adam(0.05, num_steps), progress=False,
    )  # fmt: skip
    return dgp


# %% [markdown]
# ## A likelihood by its name
#
# `likelihood=` takes a name, a class or an instance. By name or class it starts from the targets: a
# rate from their mean, cut points from their shares.
#
# The noise below is ten times as large on the right: the function for it need not be held back, as
# it is by default (`noise_scale=0.25`) for the sake of sets of few rows. The mean log density of
# 1000 new rows:

# %%
pyro.set_rng_seed(0)
X = torch.rand(1400, 1) * 4 - 2
y = torch.sin(2 * X[:, 0]) + torch.where(X[:, 0] > 0, 0.5, 0.05) * torch.randn(1400)
(X, X_test), (y, y_test) = X.split([400, 1000]), y.split([400, 1000])
likelihoods = {
    "gaussian": "gaussian",
    "heteroscedastic": HeteroscedasticGaussian(noise_scale=1.0),
}
models = {name: trained({"X": X, "y": y}, option) for name, option in likelihoods.items()}
log_density = {
    name: dgp.predict(X_test, 1).log_prob(y_test).mean().item() for name, dgp in models.items()
}
for name, value in log_density.items():
    print(f"{name:16s} {value:5.2f}")

# %% [markdown]
# Median and 90% intervals:

# %% figure="any_target"
x = torch.linspace(-2, 2, 200).unsqueeze(-1)
figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for ax, (name, dgp) in zip(axes, models.items(), strict=True):
    low, middle, high = dgp.predict(x, 1).quantile(torch.tensor([0.05, 0.5, 0.95])).numpy()
    across = x[:, 0].numpy()
    ax.plot(X_test[:300, 0].numpy(), y_test[:300].numpy(), ".", color="0.7", ms=3)
    ax.fill_between(across, low, high, color="C0", alpha=0.3, lw=0)
    ax.plot(across, middle, color="C0")
    ax.set(title=name, xlabel="x")
axes[0].set_ylabel("y")
plt.show()

# %% [markdown]
# ## Counts at unequal exposure
#
# How many events were seen in a time t_n, from 0.1 to 10. The rate is a function of x; the expected
# count is t_n times that. What a likelihood takes per row beside y is an argument of the model, the
# guide and `predict`.

# %%
pyro.set_rng_seed(0)
X = torch.rand(400, 1) * 4 - 2
rate = (1 + torch.sin(2 * X[:, 0])).exp()
exposure = 10 ** (2 * torch.rand(400) - 1)
data = {"X": X, "y": torch.poisson(rate * exposure), "exposure": exposure}
with_exposure = trained(data, "poisson")
without = trained({"X": X, "y": data["y"]}, "poisson")

rate_error = {
    "with the exposure": (with_exposure.predict(X, 1).mean / rate - 1).abs().mean().item(),
    "without": (without.predict(X, 1).mean / rate - 1).abs().mean().item(),
}
for name, value in rate_error.items():
    print(f"mean error of the rate, {name}: {value:.0%}")

# %% [markdown]
# ## A likelihood of one's own
#
# An instrument that shows nothing above 1: larger values are recorded as 1. The distribution of y
# given f is a normal's up to there, with the rest of its probability at 1. A likelihood needs no
# more than `conditional`; the expected log density and predictions come from quadrature.


# %%
class CensoredNormal(dist.Normal):
    """A normal whose values above a limit are recorded as the limit."""

    limit = 1.0

    def log_prob(self, value):
        above = torch.special.log_ndtr((self.loc - self.limit) / self.scale)
        return torch.where(value < self.limit, super().log_prob(value), above)

    def sample(self, sample_shape=()):
        return super().sample(sample_shape).clamp(max=self.limit)


class Tobit(Likelihood):
    """Gaussian noise under a limit (Tobin, 1958)."""

    accepts = "numbers up to 1"

    def __init__(self, event_dim=0):
        super().__init__(event_dim)
        self.scale = PyroParam(torch.tensor(0.2), constraints.positive)

    def conditional(self, f):
        return CensoredNormal(f, self.scale)

    def check_targets(self, y):
        self.refuse(y, y > CensoredNormal.limit, self.accepts)


# %% [markdown]
# The function behind the censored measurements goes up to 2. The mean error of its estimate where
# it is above the limit:

# %%
pyro.set_rng_seed(0)
X = torch.rand(400, 1) * 4 - 2
f = 1 + torch.sin(2 * X[:, 0])
y = (f + 0.2 * torch.randn(400)).clamp(max=CensoredNormal.limit)

estimates, error_above = {}, {}
for name, option in {"gaussian": "gaussian", "Tobit": Tobit}.items():
    dgp = trained({"X": X, "y": y}, option)
    with torch.no_grad():
        estimates[name] = dgp.function(X, dgp.plate(X))[0][:, 0]
    error_above[name] = (estimates[name] - f)[f > CensoredNormal.limit].mean().item()
    print(f"{name:8s} {error_above[name]:5.2f}")

# %%
order = X[:, 0].argsort()
plt.figure(figsize=(5, 3))
plt.plot(X[:, 0].numpy(), y.numpy(), ".", color="0.7", ms=3)
plt.plot(X[order, 0].numpy(), f[order].numpy(), color="black", lw=1, label="f")
for name, estimate in estimates.items():
    plt.plot(X[order, 0].numpy(), estimate[order].numpy(), label=name)
plt.xlabel("x"), plt.ylabel("y"), plt.legend(frameon=False)
plt.show()
