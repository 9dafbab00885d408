# %% [markdown]
# # Bayesian optimisation of a function with a jump
#
# A process runs smoothly on either side of an edge, where it tips over. A Gaussian process with a
# stationary kernel has one lengthscale everywhere. The jump makes it short, and then the model
# knows little between its points. In a deep GP, hidden layers bend the input space, so that the
# last one can be smooth.
#
# `pyro_dgp.botorch.FunctionDraws` gives BoTorch functions drawn from a trained deep GP. They are
# the same in every call, for all rows at once, and can be differentiated: what a Monte Carlo
# acquisition function needs. Needs `pip install 'pyro_dgp[botorch,plot]'`.

# %%
import argparse
import warnings
from pathlib import Path

import pyro
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import InputStandardize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from pyro_dgp import LatentDGP, NaturalGradient, PartiallyCollapsedIWELBO
from pyro_dgp.botorch import FunctionDraws
from pyro_dgp.infer import annealed_adam, fit

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def process(X: Tensor) -> Tensor:
    """[..., 2] -> [..., 1]; below the edge, 1.5 units are lost."""
    x, y = X[..., :1], X[..., 1:]
    lost = 1.5 * (x < 0.4 + 0.25 * torch.sin(4 * y))
    return torch.sin(6 * x + 1) * torch.cos(3 * y - 1) - lost


def grid(size: int) -> Tensor:
    axis = torch.linspace(0, 1, size, dtype=torch.float64)
    return torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)


BEST = process(grid(1001)).max().item()


# %% [markdown]
# ## Two surrogates
#
# Both see standardised targets. The deep GP has no latent input, as the
# function is one function; its q(u) take natural gradients, which suits full batches.


# %%
def gaussian_process(X: Tensor, y: Tensor, num_steps: int) -> Model:
    gp = SingleTaskGP(X, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def deep_gp(X: Tensor, y: Tensor, num_steps: int) -> Model:
    # Columns of mean 0 and standard deviation 1, which `from_data` is meant for.
    inputs, targets = InputStandardize(2), Standardize(1)
    data = inputs(X), targets(y)[0].squeeze(-1)
    dgp = LatentDGP.from_data(*data, latent_dim=0, num_inducing=len(X), kernel="matern52")
    optim = NaturalGradient(list(dgp.layers), annealed_adam(0.05, num_steps), lr=0.1)
    loss = PartiallyCollapsedIWELBO(K=1, num_particles=8)
    fit(
        dgp.model, dgp.guide, loss, data,
        num_steps=num_steps, batch_size=None, optim=optim, progress=False,
    )  # fmt: skip
    return FunctionDraws(
        dgp, 128, num_features=500, input_transform=inputs.eval(), outcome_transform=targets.eval()
    )


# %% [markdown]
# ## How well they predict
#
# The continuous ranked probability score (CRPS) of draws at new points: of distributions, what the
# mean absolute error is of numbers.


# %%
def crps(draws: Tensor, y: Tensor) -> float:
    """Of [S, N, 1], by E|f - y| - E|f - f'| / 2."""
    other = draws[torch.randperm(len(draws))]
    return ((draws - y).abs().mean() - 0.5 * (draws - other).abs().mean()).item()


def predictions(fit_model, sizes: tuple[int, ...], seeds: int, num_steps: int) -> Tensor:
    """CRPS at 300 points of models of random points, [sizes, seeds]."""
    found = torch.empty(len(sizes), seeds)
    for i, size in enumerate(sizes):
        for seed in range(seeds):
            pyro.set_rng_seed(seed)
            X, new = torch.rand(size, 2).double(), torch.rand(300, 2).double()
            model = fit_model(X, process(X), num_steps)
            with torch.no_grad():
                draws = model.posterior(new).rsample(torch.Size([128]))
            found[i, seed] = crps(draws, process(new))
    return found


# %% [markdown]
# ## How soon they find the best point
#
# ![Predictions and search](figures/bayesian_optimization.png)
#
# With 15 to 60 random points the deep GP's CRPS is 12 to 18% lower. It comes near the best point
# with fewer evaluations (after 20 it is 0.09 short of it, the GP 0.18; means of 10 seeds); after 30
# they are even, and a fit takes 4 s in place of 0.2.
#
# The same acquisition function for both, the expected improvement in its logarithmic form, four
# new points a round.


# %%
def optimise(fit_model, rounds: int, seed: int, num_steps: int) -> list[float]:
    """The best value so far, after the start and after each round."""
    pyro.set_rng_seed(seed)
    X = torch.rand(12, 2).double()
    y = process(X)
    best = [y.max().item()]
    for _ in range(rounds):
        acquisition = qLogExpectedImprovement(fit_model(X, y, num_steps), best_f=y.max())
        new, _ = optimize_acqf(acquisition, BOUNDS, q=4, num_restarts=4, raw_samples=64)
        X, y = torch.cat([X, new]), torch.cat([y, process(new)])
        best.append(y.max().item())
    return best


def random_search(rounds: int, seed: int) -> list[float]:
    pyro.set_rng_seed(seed)
    y = process(torch.rand(12 + 4 * rounds, 2).double())
    return [y[: 12 + 4 * i].max().item() for i in range(rounds + 1)]


def main(num_steps: int, rounds: int, seeds: int, sizes: tuple[int, ...], output: Path) -> dict:
    import matplotlib.pyplot as plt

    warnings.simplefilter("ignore")  # of lengthscales that a jump has driven to their limits
    models = {"SingleTaskGP": gaussian_process, "deep GP": deep_gp}
    scores = {name: predictions(m, sizes, seeds, num_steps) for name, m in models.items()}
    best = {
        name: torch.tensor([optimise(m, rounds, seed, num_steps) for seed in range(seeds)])
        for name, m in models.items()
    }
    best["random points"] = torch.tensor([random_search(rounds, seed) for seed in range(seeds)])

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    points = grid(200)
    figure.colorbar(left.contourf(*points.unbind(-1), process(points)[..., 0], 30))
    left.set(xlabel="x", ylabel="y", title="The process")
    for name, values in scores.items():
        error = values.std(1) / seeds**0.5
        middle.errorbar(sizes, values.mean(1), error, marker="o", capsize=3, label=name)
    middle.set(xlabel="points", ylabel="CRPS", ylim=(0, None), title="Predictions")
    evaluations = 12 + 4 * torch.arange(rounds + 1)
    for name, values in best.items():
        regret = BEST - values
        error = regret.std(0) / seeds**0.5
        right.errorbar(evaluations, regret.mean(0), error, marker="o", capsize=3, label=name)
    right.set(xlabel="evaluations", ylabel="short of the best", ylim=(0, None), title="Search")
    middle.legend(), right.legend()
    figure.savefig(output, dpi=150)
    return {"crps": scores, "best": best}


# %%
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("bayesian_optimization.png"))
    arguments = parser.parse_args()
    found = main(arguments.steps, arguments.rounds, arguments.seeds, (15, 30, 60), arguments.output)
    for name, values in found["crps"].items():
        print("CRPS", name, [f"{value:.3f}" for value in values.mean(1)])
    for name, values in found["best"].items():
        regret = BEST - values
        print("short of the best", name, [f"{value:.3f}" for value in regret.mean(0)])
