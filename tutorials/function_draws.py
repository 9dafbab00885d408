# %% [markdown]
# # Functions, not values
#
# A hidden layer of a deep GP is integrated by sampling. The paper, and the codes it builds on, draw
# its value anew for each of the K importance samples of a datum. A good objective, but no
# bound: as K grows, the mean over samples integrates the hidden function inside the logarithm, for
# each datum by itself, while its KL stands outside. With one draw of the *function* for all samples
# of a datum, each log weight depends on its own latent input alone, and the bound is strict.
#
# `function_draws="shared"` draws a hidden layer so: a draw of its prior in random features, moved
# to where the inducing values have been drawn (Wilson et al. 2020). `dgp.draw_functions` gives such
# functions to you, smooth and the same at every call, for Thompson sampling or for pictures.

# %%
import argparse
from pathlib import Path

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_dgp import DRegIWELBO, LatentDGP
from pyro_dgp.gp import GaussianLikelihood, GPLayer, LatentLayer, Layer, kernel_named
from pyro_dgp.infer import fit

# %% [markdown]
# ## Two data whose evidence is known
#
# y_n = f(x, z_n) + noise for two data with the same x, the values 1.2 and -1.2, and f from a GP.
# Given z, the two are jointly normal, and only the distance of their z counts: the evidence is an
# integral in one dimension. The last layer below hands f on, so that f is a hidden layer. The guide
# is the prior, whose KL is 0.


# %%
class Identity(Layer):
    """A last layer that hands its input on."""

    input_dim = 1

    def width(self, input_dim: int) -> int:
        return input_dim

    def check_last(self) -> None:
        pass

    def marginal(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h, torch.zeros_like(h)


X, Y = torch.zeros(2, 1, dtype=torch.float64), torch.tensor([1.2, -1.2], dtype=torch.float64)
NOISE, LENGTHSCALE = 0.25, 2.0


def two_points(function_draws: str) -> LatentDGP:
    kernel = kernel_named("rbf", 2).double()
    kernel.lengthscale = torch.tensor([1.0, LENGTHSCALE], dtype=torch.float64)
    Xu = torch.stack([torch.zeros(3), torch.linspace(-2, 2, 3)], 1).double()
    hidden = GPLayer(kernel, Xu, function_draws=function_draws)
    likelihood = GaussianLikelihood(torch.tensor(NOISE, dtype=torch.float64))
    return LatentDGP([LatentLayer(1), hidden, Identity()], likelihood, len(Y)).double()


def log_evidence() -> float:
    x, w = np.polynomial.hermite_e.hermegauss(60)
    difference, w = torch.as_tensor(x) * 2**0.5, torch.as_tensor(w / w.sum())
    k = torch.exp(-0.5 * (difference / LENGTHSCALE) ** 2)
    diagonal = torch.full_like(k, 1 + NOISE)
    cov = torch.stack([torch.stack([diagonal, k], -1), torch.stack([k, diagonal], -1)], -1)
    normal = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), cov)
    return (normal.log_prob(Y).exp() @ w).log().item()


def bounds(samples: tuple[int, ...], num_draws: int) -> dict[str, list[tuple[float, float]]]:
    """Means of the bound and their standard errors, for each K."""
    found: dict[str, list[tuple[float, float]]] = {}
    for kind in ("independent", "shared"):
        dgp, found[kind] = two_points(kind), []
        for K in samples:
            loss = DRegIWELBO(K=K)
            values = -torch.tensor(
                [loss.loss(dgp.model, dgp.guide, X, Y) for _ in range(num_draws)]
            )
            found[kind].append((values.mean().item(), values.std().item() / num_draws**0.5))
    return found


# %% [markdown]
# ## Smooth draws
#
# Two branches, as in the other tutorials. Each line is one function, with one latent input.


# %%
def branches(num_steps: int) -> tuple[LatentDGP, Tensor, Tensor]:
    pyro.set_rng_seed(0)
    x = torch.rand(500, 1) * 4 - 2
    y = torch.sin(2 * x[:, 0]) * torch.randn(500).sign() + 0.1 * torch.randn(500)
    dgp = LatentDGP.from_data(x, y, num_inducing=32, function_draws="shared", num_features=200)
    fit(dgp.model, dgp.guide, DRegIWELBO(K=10), (x, y), num_steps=num_steps, progress=False)
    return dgp, x, y


def main(num_steps: int, num_draws: int, samples: tuple[int, ...], output: Path) -> dict:
    import matplotlib.pyplot as plt

    pyro.set_rng_seed(0)
    exact, found = log_evidence(), bounds(samples, num_draws)
    dgp, x, y = branches(num_steps)
    grid = torch.linspace(-2, 2, 200)[:, None]
    functions = dgp.draw_functions(30)(grid)[..., 0].detach()

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    left.axhline(exact, color="black", label="log evidence")
    for kind, values in found.items():
        mean, error = np.array(values).T
        left.errorbar(samples, mean, 2 * error, marker="o", capsize=3, label=f"{kind} draws")
    left.set(xscale="log", xlabel="importance samples K", ylabel="bound", title="Two data")
    left.legend()
    right.plot(x[:, 0], y, ".", color="0.7", markersize=3)
    right.plot(grid[:, 0], functions.T, linewidth=0.8)
    right.set(xlabel="x", ylabel="f(x)", title="Thirty functions of a trained model")
    figure.savefig(output, dpi=150)
    return {"evidence": exact, "bounds": found, "functions": functions}


# %%
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=Path("function_draws.png"))
    arguments = parser.parse_args()
    main(arguments.steps, arguments.draws, (1, 3, 10, 30, 100), arguments.output)
