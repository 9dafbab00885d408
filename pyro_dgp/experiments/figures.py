"""Drawing only: functions that take results and return a Matplotlib figure."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.experiments.datasets import Split
from pyro_dgp.gp import LatentDGP
from pyro_dgp.infer import SNRSweep

__all__ = ["demo_figure", "histogram_figure", "snr_figure"]


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


def snr_figure(sweep: SNRSweep, groups: Sequence[str]):
    """Figure 1: SNR against K for some parameters, REG and DReG on twin axes.

    :param SNRSweep sweep: Of the estimators "REG" and "DReG".
    :param groups: Names of groups in the sweep, one line each.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    figure, left = plt.subplots(figsize=(6, 4), layout="constrained")
    right = left.twinx()
    markers = "osd^vx*"
    for axis, name, color in ((left, "REG", "tab:blue"), (right, "DReG", "tab:red")):
        for group, marker in zip(groups, itertools.cycle(markers)):
            points = sorted(sweep.select(estimator=name, group=group), key=lambda p: p.K)
            K, snr = [p.K for p in points], [p.snr for p in points]
            error = [1.96 * p.snr_error for p in points]
            axis.errorbar(
                K, snr, error, color=color, marker=marker, ms=4, lw=1, label=f"{name}, {group}"
            )
        axis.set_ylabel(f"SNR, {name}", color=color)
        axis.tick_params(axis="y", labelcolor=color)
        axis.set_ylim(bottom=0)
    floor = math.sqrt(2 / (math.pi * sweep.points[0].num_draws))
    left.axhline(floor, color="0.5", ls=":", lw=1, label="floor (no signal)")
    left.set(xlabel="importance samples K", title="Encoder's signal-to-noise ratio")
    handles = [h for axis in (left, right) for h in axis.get_legend_handles_labels()[0]]
    left.legend(handles=handles, fontsize=7, loc="center right")
    return figure


def histogram_figure(draws: Mapping[str, Mapping[int, Tensor]], common_axis: bool = True):
    """Figures 2 and 8: histograms of one parameter's gradient, with zero and the mean marked.

    :param draws: Gradients [num_draws] by estimator and K.
    :param bool common_axis: All of an estimator on one axis (Figure 2), or each on its own
        (Figure 8).
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    columns = len(next(iter(draws.values())))
    figure, axes = plt.subplots(
        len(draws), columns, figsize=(3.4 * columns, 2.6 * len(draws)), squeeze=False,
        sharex="row" if common_axis else False, layout="constrained",
    )  # fmt: skip
    for row, (estimator, by_K) in zip(axes, draws.items(), strict=True):
        values = torch.cat([v.flatten() for v in by_K.values()]).cpu()
        # Tails are long, and the bulk is what there is to see.
        everything = torch.quantile(values[:1_000_000], torch.tensor([0.005, 0.995]).to(values))
        for axis, (K, gradients) in zip(row, by_K.items(), strict=True):
            g = gradients.cpu()
            mean, std = g.mean().item(), g.std().item()
            if common_axis:
                low, high = everything.tolist()
            else:
                low, high = mean - 4 * std, mean + 4 * std
            axis.hist(
                g.numpy(), bins=80, range=(low, high), density=True, color="tab:blue", alpha=0.5
            )
            grid = np.linspace(low, high, 400)
            normal = np.exp(-0.5 * ((grid - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
            axis.plot(grid, normal, color="black", lw=1)
            axis.axvline(0.0, color="0.4", ls=":", lw=1)
            axis.axvline(mean, color="tab:red", lw=1)
            axis.set_title(f"{estimator}, K = {K}: SNR {abs(mean) / std:.3f}", fontsize=9)
            axis.set_yticks([])
    for axis in axes[-1]:
        axis.set_xlabel("gradient")
    return figure
