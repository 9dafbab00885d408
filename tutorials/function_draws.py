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
# # Functions, not values
#
# A hidden layer of a deep GP is integrated by sampling. The paper, and the code it builds on, draw
# its value anew for each of the K importance samples of a datum. This is a good objective, but no
# bound: as K grows, the mean over samples integrates the hidden function inside the logarithm, for
# each datum by itself, while its KL is outside. With one draw of the *function* for all samples
# of a datum, each log weight depends on its own latent input alone, and the bound is strict.
#
# `function_draws="shared"` draws functions of a hidden layer: a draw of the prior in random
# features, corrected to agree with the drawn inducing values (Wilson et al. 2020).
# `dgp.draw_functions` returns such functions, smooth and the same at every call, for Thompson
# sampling or for pictures.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_dgp import DRegIWELBO, LatentDGP, fit
from pyro_dgp.gp import GaussianLikelihood, GPLayer, LatentLayer, Layer, kernel_named

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_draws, samples = (100, [1, 10, 50]) if SMOKE else (1000, [1, 3, 10, 30, 100])
num_steps = 20 if SMOKE else 2000
pyro.set_rng_seed(0)

# %% [markdown]
# ## Two data whose evidence is known
#
# y_n = f(x, z_n) + noise for two data with the same x, the values 1.2 and -1.2, and f from a GP.
# Given z, the two are jointly normal, and only the distance of their z counts: the evidence is an
# integral in one dimension.

# %%
X, Y = torch.zeros(2, 1, dtype=torch.float64), torch.tensor([1.2, -1.2], dtype=torch.float64)
noise, lengthscale = 0.25, 2.0

points, weights = np.polynomial.hermite_e.hermegauss(60)
distance, weights = torch.as_tensor(points) * 2**0.5, torch.as_tensor(weights / weights.sum())
k = torch.exp(-0.5 * (distance / lengthscale) ** 2)
diagonal = torch.full_like(k, 1 + noise)
covariance = torch.stack([torch.stack([diagonal, k], -1), torch.stack([k, diagonal], -1)], -1)
normal = torch.distributions.MultivariateNormal(torch.zeros_like(Y), covariance)
evidence = (normal.log_prob(Y).exp() @ weights).log().item()
print(f"log evidence {evidence:.3f}")

# %% [markdown]
# The last layer below returns its input, so that f is a hidden layer. The guide is the prior, whose
# KL is 0.


# %%
class Identity(Layer):
    """A last layer that returns its input."""

    input_dim = 1

    def width(self, input_dim: int) -> int:
        return input_dim

    def check_last(self) -> None:
        pass

    def marginal(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h, torch.zeros_like(h)


bounds = {}
for kind in ("independent", "shared"):
    kernel = kernel_named("rbf", 2).double()
    kernel.lengthscale = torch.tensor([1.0, lengthscale], dtype=torch.float64)
    Xu = torch.stack([torch.zeros(3), torch.linspace(-2, 2, 3)], 1).double()
    hidden = GPLayer(kernel, Xu, function_draws=kind)
    likelihood = GaussianLikelihood(torch.tensor(noise, dtype=torch.float64))
    dgp = LatentDGP([LatentLayer(1), hidden, Identity()], likelihood, len(Y)).double()
    bounds[kind] = []
    for K in samples:
        loss = DRegIWELBO(K=K)
        values = [-loss.loss(dgp.model, dgp.guide, X, Y) for _ in range(num_draws)]
        bounds[kind].append((np.mean(values), np.std(values) / num_draws**0.5))

print("      K", *(f"{K:>16d}" for K in samples))
for kind, values in bounds.items():
    print(f"{kind:12s}", *(f"{mean:7.3f} ± {error:.3f} " for mean, error in values))

# %% [markdown]
# With independent draws the bound exceeds the evidence as K grows; with shared draws it does not.

# %% [markdown]
# ## Smooth draws
#
# Data on two branches, and thirty functions drawn from the trained model. Each line is one
# function, with one latent input. The branches cross at x = 0, where a function may follow either.
# Functions between the branches, where there are no data, are errors of the model.

# %%
x = torch.rand(500, 1, dtype=torch.float64) * 4 - 2
y = torch.sin(2 * x[:, 0]) * torch.randn(500).sign() + 0.1 * torch.randn(500)
dgp = LatentDGP.from_data(x, y, num_inducing=32, function_draws="shared", num_features=200)
fit(dgp.model, dgp.guide, DRegIWELBO(K=10), (x, y), num_steps=num_steps, progress=False)

grid = torch.linspace(-2, 2, 200, dtype=torch.float64)[:, None]
functions = dgp.draw_functions(30)(grid)[..., 0].detach()
print(tuple(functions.shape))

# %% figure="function_draws"
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
left.axhline(evidence, color="black", label="log evidence")
for kind, values in bounds.items():
    mean, error = np.array(values).T
    left.errorbar(samples, mean, 2 * error, marker="o", capsize=3, label=f"{kind} draws")
left.set(xscale="log", xlabel="importance samples K", ylabel="bound", title="Two data")
left.legend()
right.plot(x[:, 0].numpy(), y.numpy(), ".", color="0.7", markersize=3)
right.plot(grid[:, 0].numpy(), functions.T.numpy(), linewidth=0.8)
right.set(xlabel="x", ylabel="f(x)", title="Thirty functions of a trained model")
plt.show()
