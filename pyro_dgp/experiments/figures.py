"""Drawing only: functions that take results and return a Matplotlib figure."""

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.experiments.datasets import Split
from pyro_dgp.gp import LatentDGP

__all__ = ["demo_figure"]


def _pyplot():
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Figures need Matplotlib: pip install 'pyro_dgp[plot]'.") from error
    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt

    return plt


def demo_figure(dgp: LatentDGP, data: Split, num_samples: int = 2000):
    """The demo data, draws from the trained model, and predictive densities at some inputs.

    :param LatentDGP dgp: A model of one input and one target.
    :param Split data: The data it was trained on.
    :param int num_samples: Samples behind each density.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    like = dgp.layers[-1].Xu
    x = np.linspace(data.X_train.min(), data.X_train.max(), 400)
    grid = np.linspace(data.y_train.min() - 0.5, np.quantile(data.y_train, 0.999) + 0.5, 400)

    def tensor(array) -> Tensor:
        return torch.as_tensor(array, dtype=like.dtype, device=like.device)

    draws = dgp.predict(tensor(x)[:, None], 200).sample((8,)).cpu()
    where = np.array([-1.4, -0.6, 0.1, 0.9])
    predictive = dgp.predict(tensor(where)[:, None], num_samples)
    density = predictive.log_prob(tensor(grid)[:, None]).exp().cpu()

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    style = {"s": 4, "alpha": 0.5, "linewidths": 0}
    axes[0].scatter(data.X_train[:, 0], data.y_train, color="0.35", label="training", **style)
    axes[0].scatter(data.X_test[:, 0], data.y_test, color="tab:red", label="test", **style)
    axes[0].legend(loc="upper right", markerscale=3, frameon=False)
    axes[0].set(title="Demo data", xlabel="x", ylabel="y")
    axes[1].scatter(np.tile(x, 8), draws.reshape(-1), color="tab:blue", **style)
    axes[1].set(title="Draws from the posterior predictive", xlabel="x", ylabel="y")
    for axis in axes[:2]:
        axis.set_ylim(grid[0], grid[-1])
    for i, at in enumerate(where):
        color = f"C{i}"
        axes[1].axvline(at, color=color, linewidth=0.8)
        near = np.abs(data.X_train[:, 0] - at) < 0.1
        axes[2].hist(
            data.y_train[near], bins=40, range=(grid[0], grid[-1]), density=True,
            histtype="stepfilled", color=color, alpha=0.2,
        )  # fmt: skip
        axes[2].plot(grid, density[:, i], color=color, label=f"x = {at}")
    axes[2].legend(frameon=False)
    axes[2].set(
        title="p(y | x), and the data within 0.1 of x", xlabel="y", ylabel="density", ylim=(0, None)
    )
    return figure
