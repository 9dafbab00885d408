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
# censored measurements, for which it defines a new likelihood.
# [Likelihoods](../.docs/likelihoods.md) lists those of the package;
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
# ## A likelihood by its name
#
# All models below have one GP layer and no latent input. Data go to `fit` by the names of the
# model's arguments. `likelihood=` takes a name, a class or an instance. By name or class it starts
# from the targets: a rate from their mean, cut points from their shares.
#
# The noise below is ten times as large on the right. The function for it may vary strongly, so
# `noise_scale=1`; the default, 0.25, keeps it smoother, for data sets of few rows. The mean log
# density of 1000 new rows:


# %%
def trained(data, likelihood):
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(
        data["X"], data["y"], num_layers=1, latent_dim=0, num_inducing=30, likelihood=likelihood
    )
    fit(
        dgp.model,
        dgp.guide,
        DRegIWELBO(K=1),
        data,
        num_steps=num_steps,
        batch_size=100,
        optim=annealed_adam(0.05, num_steps),
        progress=False,
    )
    return dgp


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
# count is t_n times that. Further data per row, such as an exposure, are arguments of the model,
# the guide and `predict`.

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
# ## A likelihood of your own
#
# An instrument that shows nothing above 1: larger values are recorded as 1. The distribution of y
# given f is a normal's below the limit, with the rest of its probability at the limit. A likelihood
# must define `conditional`, which returns the distribution of y given f. Training needs its
# `log_prob`. Predictions need its `sample`, `cdf` (for quantiles, too), `mean` and `variance`. The
# integrals over f come from quadrature.


# %%
class CensoredNormal(dist.TorchDistribution):
    """min(x, limit) for x ~ N(loc, scale^2)."""

    limit = 1.0

    def __init__(self, loc, scale):
        self.uncensored = dist.Normal(loc, scale)
        super().__init__(self.uncensored.batch_shape, validate_args=False)

    def log_prob(self, value):
        x = self.uncensored
        above = torch.special.log_ndtr((x.loc - self.limit) / x.scale)
        return torch.where(value < self.limit, x.log_prob(value), above)

    def cdf(self, value):
        return torch.where(value < self.limit, self.uncensored.cdf(value), 1.0)

    def sample(self, sample_shape=()):
        return self.uncensored.sample(sample_shape).clamp(max=self.limit)

    def below(self):
        """First and second moments of limit - y, in units of the scale."""
        a = (self.limit - self.uncensored.loc) / self.uncensored.scale
        share, density = torch.special.ndtr(a), dist.Normal(0.0, 1.0).log_prob(a).exp()
        return a * share + density, (a.square() + 1) * share + a * density

    @property
    def mean(self):
        return self.limit - self.uncensored.scale * self.below()[0]

    @property
    def variance(self):
        first, second = self.below()
        return self.uncensored.variance * (second - first.square())


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


p = CensoredNormal(torch.tensor(0.9), torch.tensor(0.2))
draws = p.sample((100_000,))
at_limit = p.log_prob(torch.tensor(1.0)).exp()
print(f"mean {p.mean:.3f}, of draws {draws.mean():.3f}")
print(f"standard deviation {p.stddev:.3f}, of draws {draws.std():.3f}")
print(f"probability of y = 1 {at_limit:.3f}, of draws {(draws == 1).float().mean():.3f}")

# %% [markdown]
# The function behind the censored measurements goes up to 2. The first column is the mean error of
# its estimate where it is above the limit. Predictions are of measurements: no mean should be above
# the limit, and P(y <= 1) should be 1 everywhere.

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
    predictive = dgp.predict(X, 1)
    largest, within = predictive.mean.max(), predictive.cdf(torch.ones(len(X))).min()
    print(
        f"{name:8s} {error_above[name]:5.2f}, largest mean {largest:.2f}, P(y <= 1) >= {within:.2f}"
    )

# %%
order = X[:, 0].argsort()
_, ax = plt.subplots(figsize=(5, 3))
ax.plot(X[:, 0].numpy(), y.numpy(), ".", color="0.7", ms=3, label="y")
ax.plot(X[order, 0].numpy(), f[order].numpy(), color="black", lw=1, label="f")
for name, estimate in estimates.items():
    ax.plot(X[order, 0].numpy(), estimate[order].numpy(), label=name)
ax.set(xlabel="x", ylabel="y, and estimates of f")
ax.legend(frameon=False)
plt.show()
