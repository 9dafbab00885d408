# %% [markdown]
# # First steps
#
# A latent deep GP as a Pyro model and guide, on data that no regression with normal noise can
# describe: half of the targets follow one curve, half another, and nothing in x says which.
#
# Run this file with `python tutorials/first_steps.py` (three minutes), or cell by cell in an editor
# that knows percent cells. Those who have a table and do not care for Pyro may read
# `densities_for_your_table.py` instead.

# %%
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import torch
from pyro.infer import SVI, Predictive
from pyro.poutine.util import site_is_subsample

from pyro_dgp import DRegIWELBO, LatentDGP, fit
from pyro_dgp.infer import annealed_adam

# %% [markdown]
# ## Data
#
# Inputs [N, D] and targets [N], each column with mean 0 and standard deviation 1.


# %%
def simulate(num_data=500):
    X = torch.rand(num_data, 1) * 4 - 2
    sign = torch.randint(2, (num_data,)) * 2.0 - 1
    y = sign * (0.3 + X[:, 0].cos().abs()) + 0.08 * torch.randn(num_data)
    return (X - X.mean()) / X.std(), (y - y.mean()) / y.std()


# %% [markdown]
# ## Model and guide
#
# `from_data` makes the configuration of the paper: a latent input z_n ~ N(0, 1) beside x_n, an
# encoder q(z | x, y), hidden layers of GPs, a last GP, normal noise. `dgp.model` and `dgp.guide`
# are like any other pair for `SVI`, and any ELBO of Pyro will do. With `DRegIWELBO` the bound is
# importance-weighted with K samples of z, and its gradient does not drown in noise as K grows.


# %%
def sites(dgp, X, y):
    """Sample sites of the guide and the model, with the shapes of their values."""
    guide = pyro.poutine.trace(dgp.guide).get_trace(X, y)
    model = pyro.poutine.trace(pyro.poutine.replay(dgp.model, trace=guide)).get_trace(X, y)
    return {
        name: tuple(site["value"].shape)
        for name, site in model.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site)
    }


def a_few_steps(dgp, X, y, num_steps=20):
    """The loop in full; `fit` below does the same with a progress bar, checkpoints and checks."""
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 0.01}), loss=DRegIWELBO(K=10))
    for _ in range(num_steps):
        rows = torch.randint(len(X), (128,))
        loss = svi.step(X[rows], y[rows])
    return loss


# %% [markdown]
# ## Train
#
# `annealed_adam` is for few steps: its learning rate falls to 0 along half a cosine. The paper's
# schedule, for hundreds of thousands, is what `fit` uses unless told otherwise. With
# `checkpoint="model.pt"` Ctrl-C loses nothing, and the same call goes on.


# %%
def train(dgp, X, y, num_steps):
    return fit(
        dgp.model, dgp.guide, DRegIWELBO(K=10), (X, y), num_steps=num_steps, batch_size=128,
        optim=annealed_adam(0.03, num_steps),
    )  # fmt: skip


# %% [markdown]
# ## Predict
#
# `dgp.predict` gives a `torch.distributions` object with a density in closed form, a mixture over
# draws of z and of the hidden layers. `Predictive` of Pyro draws from the model, as from any other.
#
# ![](figures/first_steps.png)
#
# Left, the density and the data: two curves. Right, a cut at x = 0. The picture in the middle shows
# how: for each value of z the deep GP is a smooth function of x, and z moves it from one curve to
# the other.
#
# With the defaults, the held-out log density is about -0.1 a datum; a normal distribution of the
# targets has -1.42. The mean is 0 everywhere, so a regression with normal noise gets no further, or
# to -1.26 if its variance depends on x.


# %%
def picture(dgp, X, y, path):
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    x, target = torch.linspace(-1.7, 1.7, 120).unsqueeze(-1), torch.linspace(-2, 2, 200)
    across, up = x[:, 0].numpy(), target.numpy()  # what Matplotlib takes without a warning
    density = dgp.predict(x, 500, shared_draws=True).log_prob(target.unsqueeze(-1)).exp().numpy()
    axes[0].pcolormesh(across, up, density, cmap="Blues", shading="nearest", rasterized=True)
    axes[0].plot(X[:, 0].numpy(), y.numpy(), ".", ms=2, color="C1", alpha=0.5)
    axes[0].set(title="Predictive density and data", ylabel="y")
    for z in (-2.0, -1.0, 0.0, 1.0, 2.0):
        mean = dgp.predict(x, 100, shared_draws=True, z=torch.tensor([z])).mean.numpy()
        axes[1].plot(across, mean, label=f"z = {z:g}", color=plt.cm.coolwarm(z / 4 + 0.5))
    axes[1].legend(frameon=False)
    axes[1].set(title="Mean given z", xlabel="x")
    cut = dgp.predict(torch.zeros(1, 1), 2000).log_prob(target.unsqueeze(-1)).exp()[:, 0]
    axes[2].plot(up, cut.numpy())
    axes[2].set(title="Density at x = 0", xlabel="y")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(num_steps=2000, path=None):
    """Trains and predicts; returns the model and the held-out log density of a datum."""
    pyro.set_rng_seed(0)
    X, y = simulate(700)
    (X, X_test), (y, y_test) = X.split(500), y.split(500)
    dgp = LatentDGP.from_data(X, y, num_inducing=30)
    print("sites:", sites(dgp, X[:5], y[:5]))
    print(f"loss after 20 steps by hand: {a_few_steps(dgp, X, y):.0f}")
    print(f"loss at the end: {train(dgp, X, y, num_steps).losses[-1]:.0f}")
    log_density = dgp.predict(X_test, 1000).log_prob(y_test).mean().item()
    print(f"held-out log density: {log_density:.3f}")
    draws = Predictive(dgp.model, guide=dgp.guide, num_samples=200, parallel=True)(X_test)
    print({name: tuple(value.shape) for name, value in draws.items() if "likelihood" in name})
    picture(dgp, X, y, path or Path(__file__).parent / "figures" / "first_steps.png")
    return dgp, log_density


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
