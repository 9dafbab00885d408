# %% [markdown]
# # A deep GP inside a larger Pyro model
#
# Counts at several sites s, say of birds on walks. The log rate is an unknown function of x_n, plus
# a linear effect of covariates w_n, plus an effect of the site, which sites share a prior for:
#
#     y_n ~ Poisson(exp(f(x_n, z_n) + w_n beta + b_{s(n)})),   f a latent deep GP,
#     beta ~ N(0, I),   b_s ~ N(0, tau^2),   tau ~ LogNormal(-1, 1).
#
# The deep GP gives the marginals N(f_loc, f_var) of its last layer; what is observed is up to the
# larger model. Run this file with `python tutorials/poisson_regression.py`, or cell by cell in an
# editor that knows percent cells.

# %%
import sys

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, pyro_method

from pyro_dgp import DRegIWELBO, LatentDGP, fit

# %% [markdown]
# The bound needs E[log p(y | f)] over f ~ N(f_loc, f_var), not log E. For Poisson counts with a log
# link that is closed:
#
#     E[log p(y | f)] = y m - exp(m + v/2) - log y!      with m = f_loc + log(exposure), v = f_var.
#
# The package's Poisson likelihood has it. What multiplies the rate beside exp(f) is the exposure:
# here exp(w_n beta + b_{s(n)}).


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


# %% [markdown]
# ## Data, and what comes back
#
# The sites' mean and the level of f cannot be told apart, so effects are compared by their
# differences from the mean, and f by its correlation with the truth. With the defaults below, this
# file prints
#
#     beta off by at most 0.011
#     sites off by at most 0.149; tau 0.51 (0.50 in truth)
#     correlation of the estimate with f 0.997


# %%
def simulate(num_data=400, num_sites=8):
    """Inputs, covariates, sites and counts, and f, beta and b behind them."""
    X, W = torch.rand(num_data, 1) * 4 - 2, torch.randn(num_data, 2)
    site = torch.randint(num_sites, (num_data,))
    f, beta = 1 + torch.sin(2 * X[:, 0]), torch.tensor([0.5, -0.3])
    b = 0.5 * torch.randn(num_sites)
    return (X, W, site, torch.poisson((f + W @ beta + b[site]).exp())), (f, beta, b)


def main(num_steps=1500):
    """Trains the model; returns it, errors of beta and b, and the correlation with f."""
    pyro.set_rng_seed(0)
    data, (f, beta, b) = simulate()
    X, W, _, y = data
    dgp = LatentDGP.from_data(X, y, num_inducing=20, likelihood="poisson")
    regression = PoissonRegression(dgp, W.shape[1], len(b))
    optim = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.05 ** (1 / num_steps)})
    fit(
        regression.model, regression.guide, DRegIWELBO(K=10), data,
        num_steps=num_steps, batch_size=100, optim=optim,
    )  # fmt: skip
    with torch.no_grad():
        f_loc = torch.stack([dgp.function(X, dgp.plate(X))[0][:, 0] for _ in range(50)]).mean(0)
        beta_error = (regression.beta_loc - beta).abs().max().item()
        b_loc = regression.b_loc
        b_error = (b_loc - b_loc.mean() - (b - b.mean())).abs().max().item()
        tau = regression.tau_loc.exp().item()
    correlation = torch.corrcoef(torch.stack([f_loc, f]))[0, 1].item()
    print(f"beta off by at most {beta_error:.3f}")
    print(f"sites off by at most {b_error:.3f}; tau {tau:.2f} (0.50 in truth)")
    print(f"correlation of the estimate with f {correlation:.3f}")
    return regression, beta_error, b_error, correlation


# %%
if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
