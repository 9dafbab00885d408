# %% [markdown]
# # Any target: likelihoods
#
# A deep GP gives functions f of the inputs; the likelihood p(y | f) says what becomes of them. This
# tutorial takes three kinds of targets: numbers whose noise varies, counts at unequal exposure, and
# censored measurements, for which it writes a likelihood of its own.
#
# Run this file with `python tutorials/any_target.py` (half a minute), or cell by cell in an editor
# that knows percent cells. All likelihoods of the package, by name:
#
# | name | targets | functions | E[log p(y given f)] |
# |---|---|---|---|
# | `gaussian` | real numbers | 1 | closed |
# | `heteroscedastic` | real numbers, noise that varies with x | 2 | closed |
# | `student_t` | real numbers with outliers | 1 | quadrature |
# | `rounded` | grades, ages, coarse measurements | 1 | quadrature |
# | `zero_inflated` | one frequent value, and a density elsewhere | 1 + those of the other | both |
# | `gamma`, `log_normal` | positive numbers | 1 | closed |
# | `beta` | proportions in (0, 1) | 1 | quadrature |
# | `poisson` | counts | 1 | closed |
# | `negative_binomial` | counts that vary more | 1 | quadrature |
# | `bernoulli`, `binomial` | 0 and 1; ones among trials | 1 | quadrature |
# | `categorical` | classes | C | a lower bound |
# | `ordinal` | classes in an order | 1 | quadrature |

# %%
import sys
from pathlib import Path

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

# %% [markdown]
# ## A likelihood by its name
#
# `from_data(..., likelihood=...)` takes a name, a class or an instance. By name or class it starts
# from the targets: a rate from their mean, cut points from their shares. Data go to `fit` by the
# names of the model's arguments.
#
# The noise below varies tenfold: the function for it need not be held back, as it is by default
# (`noise_scale=0.25`) for the sake of sets of few rows.


# %%
def trained(data, num_steps, **options):
    """A model of one GP layer without a latent input, for data given by name."""
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(
        data["X"], data["y"], num_layers=1, latent_dim=0, num_inducing=30, **options
    )
    fit(
        dgp.model, dgp.guide, DRegIWELBO(K=1), data,
        num_steps=num_steps, batch_size=100, optim=annealed_adam(0.05, num_steps), progress=False,
    )  # fmt: skip
    return dgp


def varying_noise(num_data):
    """Targets whose noise is ten times as large on the right."""
    X = torch.rand(num_data, 1) * 4 - 2
    scale = torch.where(X[:, 0] > 0, 0.5, 0.05)
    return {"X": X, "y": torch.sin(2 * X[:, 0]) + scale * torch.randn(num_data)}


def noise(num_steps):
    """Test log-likelihood with one noise variance, and with a function for it."""
    data, test = varying_noise(400), varying_noise(1000)
    models = {
        "gaussian": trained(data, num_steps, likelihood="gaussian"),
        "heteroscedastic": trained(
            data, num_steps, likelihood=HeteroscedasticGaussian(noise_scale=1.0)
        ),
    }
    return models, {
        name: dgp.predict(test["X"], 1).log_prob(test["y"]).mean().item()
        for name, dgp in models.items()
    }


# %% [markdown]
# ## Counts at unequal exposure
#
# How many events were seen in a time t_n. The rate is a function of x; the expected count is t_n
# times that. What a likelihood takes per row beside y is an argument of the model, the guide and
# `predict`.


# %%
def counts(num_steps, num_data=400):
    """Relative error of the estimated rate, with the exposure and without it."""
    X = torch.rand(num_data, 1) * 4 - 2
    rate = (1 + torch.sin(2 * X[:, 0])).exp()
    exposure = 10 ** (2 * torch.rand(num_data) - 1)  # from 0.1 to 10
    data = {"X": X, "y": torch.poisson(rate * exposure), "exposure": exposure}
    errors = {}
    for name, given in (("exposure", data), ("none", {n: data[n] for n in ("X", "y")})):
        dgp = trained(given, num_steps, likelihood="poisson")
        errors[name] = (dgp.predict(X, 1).mean / rate - 1).abs().mean().item()
    return errors


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


def censored(num_steps, num_data=400):
    """Mean errors of the function where it is above the limit, by likelihood."""
    X = torch.rand(num_data, 1) * 4 - 2
    f = 1 + torch.sin(2 * X[:, 0])
    y = (f + 0.2 * torch.randn(num_data)).clamp(max=CensoredNormal.limit)
    errors = {}
    for likelihood in ("gaussian", Tobit):
        dgp = trained({"X": X, "y": y}, num_steps, likelihood=likelihood)
        with torch.no_grad():
            f_loc, _ = dgp.function(X, dgp.plate(X))
        name = likelihood if isinstance(likelihood, str) else likelihood.__name__
        errors[name] = (f_loc[:, 0] - f)[f > CensoredNormal.limit].mean().item()
    return errors


# %% [markdown]
# ## What comes back
#
# With the defaults below, this file draws the predictive intervals of the first two models, and
# prints
#
#     log-likelihood: gaussian -0.38, heteroscedastic 0.33
#     error of the rate: 5% with the exposure, 113% without
#     error above the limit: gaussian -0.58, Tobit 0.02


# %%
def draw(models, figure):
    """Median and 90% intervals."""
    x = torch.linspace(-2, 2, 200).unsqueeze(-1)
    data = varying_noise(300)
    _, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for axis, (name, dgp) in zip(axes, models.items(), strict=True):
        low, middle, high = dgp.predict(x, 1).quantile(torch.tensor([0.05, 0.5, 0.95]))
        axis.plot(data["X"][:, 0], data["y"], ".", color="0.7", ms=3)
        axis.fill_between(x[:, 0], low, high, color="C0", alpha=0.3, lw=0)
        axis.plot(x[:, 0], middle, color="C0")
        axis.set(title=name, xlabel="x")
    axes[0].set_ylabel("y")
    plt.savefig(figure, dpi=120)
    plt.close()


def main(num_steps=1000, figure=Path(__file__).parent / "figures" / "any_target.png"):
    """Trains the six models; returns the numbers that it prints."""
    pyro.set_rng_seed(0)
    models, log_likelihood = noise(num_steps)
    draw(models, figure)
    rate_errors, errors = counts(num_steps), censored(num_steps)
    print("log-likelihood: " + ", ".join(f"{n} {v:.2f}" for n, v in log_likelihood.items()))
    print(
        f"error of the rate: {rate_errors['exposure']:.0%} with the exposure, "
        f"{rate_errors['none']:.0%} without"
    )
    print("error above the limit: " + ", ".join(f"{n} {v:.2f}" for n, v in errors.items()))
    return log_likelihood, rate_errors, errors


# %%
if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
