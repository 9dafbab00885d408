"""Figures: functions from results to a Matplotlib figure."""

import itertools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.experiments.datasets import Split
from pyro_dgp.gp import LatentDGP
from pyro_dgp.infer import SNRPoint, SNRSweep
from pyro_dgp.plots import pyplot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "demo_figure",
    "depth_figure",
    "histogram_figure",
    "marginals_figure",
    "ordered_figure",
    "snr_figure",
    "training_figure",
    "violin_figure",
]


def _pyplot() -> ModuleType:
    plt = pyplot()
    plt.matplotlib.use("Agg", force=False)  # these figures go to files
    return plt


def demo_figure(dgp: LatentDGP, data: Split, num_samples: int = 2000) -> "Figure":
    """The demo data, draws from the trained model, and predictive densities at some inputs.

    :param LatentDGP dgp: A model of one input and one target.
    :param Split data: The data it was trained on.
    :param int num_samples: Number of samples per density.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    like = dgp.layers[-1].Xu
    x = np.linspace(data.X_train.min(), data.X_train.max(), 400)
    grid = np.linspace(data.y_train.min() - 0.5, np.quantile(data.y_train, 0.999) + 0.5, 400)

    def tensor(array: np.ndarray) -> Tensor:
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


def snr_figure(sweep: SNRSweep, groups: Sequence[str]) -> "Figure":
    """Figure 1: SNR against K for some parameters, REG and DReG on twin axes.

    :param SNRSweep sweep: Points of the estimators "REG" and "DReG".
    :param groups: Names of groups in the sweep, one line each.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    figure, left = plt.subplots(figsize=(7.5, 4), layout="constrained")
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
    figure.legend(handles=handles, fontsize=7, loc="outside right upper", frameon=False)
    return figure


def histogram_figure(
    draws: Mapping[str, Mapping[int, Tensor]], common_axis: bool = True
) -> "Figure":
    """Figures 2 and 8: histograms of one parameter's gradient, with zero and the mean marked.

    :param draws: Gradients [num_draws] by estimator and K.
    :param bool common_axis: All of an estimator on one axis (Figure 2), which spans the bulk at the
        two largest K, or each on its own (Figure 8).
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    columns = len(next(iter(draws.values())))
    figure, axes = plt.subplots(
        len(draws), columns, figsize=(3.4 * columns, 2.6 * len(draws)), squeeze=False,
        sharex="row" if common_axis else False, layout="constrained",
    )  # fmt: skip
    for row, (estimator, by_K) in zip(axes, draws.items(), strict=True):
        # Without the tails, which are long, especially for few samples.
        shared = _bulk(torch.cat([by_K[K].flatten() for K in sorted(by_K)[-2:]]))
        for axis, (K, gradients) in zip(row, by_K.items(), strict=True):
            g = gradients.cpu()
            mean, std = g.mean().item(), g.std().item()
            low, high = shared if common_axis else _bulk(g)
            # As densities of all draws, also of those beyond the axis.
            weights = np.full(g.numel(), _BINS / (g.numel() * (high - low)))
            axis.hist(
                g.numpy(), bins=_BINS, range=(low, high), weights=weights, color="tab:blue",
                alpha=0.5,
            )  # fmt: skip
            if std > 0:
                grid = np.linspace(low, high, 400)
                normal = np.exp(-0.5 * ((grid - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
                axis.plot(grid, normal, color="black", lw=1)
            axis.axvline(0.0, color="0.4", ls=":", lw=1)
            axis.axvline(mean, color="tab:red", lw=1)
            axis.set_xlim(low, high)
            snr = f"{abs(mean) / std:.3f}" if std > 0 else "-"
            axis.set_title(f"{estimator}, K = {K}: SNR {snr}", fontsize=9)
            axis.set_yticks([])
    for axis in axes[-1]:
        axis.set_xlabel("gradient")
    return figure


# Number of bins of a histogram of gradients.
_BINS = 80


def _bulk(values: Tensor) -> tuple[float, float]:
    """An interval with 98% of the values in its inner part."""
    values = values.cpu()[:1_000_000]
    low, high = torch.quantile(values, torch.tensor([0.01, 0.99]).to(values)).tolist()
    margin = 0.2 * (high - low) or 0.5  # of equal values
    return low - margin, high + margin


def depth_figure(sweeps: Mapping[str, Mapping[int, SNRSweep]]) -> "Figure":
    """Figure 3: mean SNR by depth, one bar for each K, REG above and DReG below.

    :param sweeps: Sweeps by data set and number of layers.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(
        2, len(sweeps), figsize=(1 + 3.4 * len(sweeps), 5), squeeze=False, layout="constrained"
    )
    for (dataset, by_depth), column in zip(sweeps.items(), axes.T, strict=True):
        for axis, name, colors in zip(
            column, ("REG", "DReG"), (plt.cm.Blues, plt.cm.Oranges), strict=True
        ):
            floor = 0.0
            for position, sweep in enumerate(by_depth.values()):
                points = sweep.select(estimator=name, group="encoder")
                points = sorted(points, key=lambda p: p.K)
                width = 0.8 / len(points)
                for i, p in enumerate(points):
                    axis.bar(
                        position - 0.4 + (i + 0.5) * width, p.snr, width, yerr=1.96 * p.snr_error,
                        color=colors(0.35 + 0.5 * i / max(1, len(points) - 1)),
                        error_kw={"elinewidth": 0.8}, label=f"K = {p.K}" if not position else None,
                    )  # fmt: skip
                    floor = math.sqrt(2 / (math.pi * p.num_draws))
            axis.axhline(floor, color="0.3", ls=":", lw=1, label="no signal")
            axis.set_xticks(range(len(by_depth)), [str(depth) for depth in by_depth])
            axis.set_title(f"{dataset}, {name}", fontsize=10)
            axis.set_ylim(bottom=0)
        column[1].set_xlabel("GP layers")
    for axis in axes[:, 0]:
        axis.set_ylabel("mean SNR of the encoder")
        axis.legend(fontsize=7, frameon=False)
    return figure


def training_figure(points: Mapping[str, Mapping[int, Sequence[SNRPoint]]]) -> "Figure":
    """Figure 9: SNR of a minibatch's gradient along training, REG left and DReG right.

    Lines are medians over seeds, areas interquartile ranges, dots the seeds.

    :param points: Points of both estimators and all seeds, by data set and training step.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(
        len(points), 2, figsize=(8, 1 + 2.4 * len(points)), squeeze=False,
        sharex=True, sharey="row", layout="constrained",
    )  # fmt: skip
    for (dataset, by_step), row in zip(points.items(), axes, strict=True):
        for axis, name, color in zip(row, ("REG", "DReG"), ("tab:blue", "tab:orange"), strict=True):
            steps = list(by_step)
            snr = np.array(
                [[p.snr for p in of_step if p.estimator == name] for of_step in by_step.values()]
            )
            low, middle, high = np.quantile(snr, [0.25, 0.5, 0.75], axis=1)
            axis.fill_between(steps, low, high, color=color, alpha=0.25, lw=0)
            axis.plot(steps, middle, color=color, marker="o", ms=3)
            axis.plot(steps, snr, color=color, marker=".", ms=3, ls="", alpha=0.6)
            floor = math.sqrt(2 / (math.pi * next(iter(by_step.values()))[0].num_draws))
            axis.axhline(floor, color="0.4", ls=":", lw=1)
            axis.set_xscale("symlog", linthresh=min((s for s in steps if s > 0), default=1))
            axis.set(title=f"{dataset}, {name}", yscale="log")
        row[0].set_ylabel("mean SNR of the encoder")
    for axis in axes[-1]:
        axis.set_xlabel("training step")
    return figure


def violin_figure(values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> "Figure":
    """Figure 4: test log-likelihoods over splits, with learned and with fixed q(z).

    :param values: Log-likelihoods by data set, kind ("learned", "fixed") and split.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(
        1, len(values), figsize=(0.6 + 1.9 * len(values), 3.2), squeeze=False, layout="constrained"
    )
    for axis, (dataset, by_kind) in zip(axes[0], values.items(), strict=True):
        for position, (kind, color) in enumerate((("learned", "tab:blue"), ("fixed", "tab:green"))):
            numbers = list(by_kind[kind].values())
            if len(set(numbers)) > 1:  # or there is no density to estimate
                parts = axis.violinplot(numbers, [position], showmeans=True, widths=0.8)
                for part in (*parts["bodies"], parts["cmeans"], parts["cbars"], parts["cmins"],
                             parts["cmaxes"]):  # fmt: skip
                    part.set_color(color)
            axis.plot([position] * len(numbers), numbers, ".", color=color, ms=4, alpha=0.6)
        axis.set_xticks([0, 1], ["learned", "fixed"])
        axis.set_title(dataset, fontsize=10)
    axes[0, 0].set_ylabel("test log-likelihood")
    return figure


def marginals_figure(points: Mapping[str, Sequence[Mapping]]) -> "Figure":
    """Figure 5: predictive densities at some test points, with learned and with fixed q(z).

    :param points: Mappings with "row", "target", "grid", "learned" and "fixed", by data set.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    columns = max(len(of_set) for of_set in points.values())
    figure, axes = plt.subplots(
        len(points), columns, figsize=(3 * columns, 2.4 * len(points)), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for row, (dataset, of_set) in zip(axes, points.items(), strict=True):
        for axis, point in zip(row, of_set, strict=False):
            for kind, color in (("learned", "tab:blue"), ("fixed", "tab:green")):
                grid, density = point["grid"].cpu(), point[kind].cpu()
                axis.plot(grid, density, color=color, lw=1, label=f"{kind} q(z)")
                axis.fill_between(grid, density, color=color, alpha=0.2, lw=0)
            axis.axvline(point["target"], color="black", lw=1, ls=":", label="target")
            axis.set_yscale("log")
            peak = max(point[kind].max().item() for kind in ("learned", "fixed"))
            axis.set_ylim(1e-3 * min(1.0, peak), 2 * peak)
            axis.set_title(f"{dataset}, test row {point['row']}", fontsize=9)
        row[0].set_ylabel("density")
    axes[0, 0].legend(fontsize=7, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("y")
    return figure


def ordered_figure(values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> "Figure":
    """Figure 6: test log-likelihoods of the splits, in order, and the differences DReG - REG.

    :param values: Log-likelihoods by data set, estimator ("reg", "dreg") and split.
    :returns: A Matplotlib figure.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(
        len(values), 2, figsize=(8, 0.6 + 2.6 * len(values)), squeeze=False, layout="constrained"
    )
    for (left, right), (dataset, by_kind) in zip(axes, values.items(), strict=True):
        splits = sorted(by_kind["reg"], key=by_kind["reg"].__getitem__)
        place = range(len(splits))
        for kind, color, name in (("reg", "tab:blue", "REG"), ("dreg", "tab:orange", "DReG")):
            numbers = [by_kind[kind][split] for split in splits]
            left.plot(place, numbers, "o-", color=color, ms=4, lw=1, label=name)
        difference = np.array([by_kind["dreg"][s] - by_kind["reg"][s] for s in splits])
        colors = np.where(difference > 0, "tab:orange", "tab:blue")
        right.bar(place, difference, color=colors)
        right.axhline(0, color="0.3", lw=0.8)
        for axis in (left, right):
            axis.set_xticks(place, [str(split) for split in splits], fontsize=7)
            axis.set_xlabel("split, by its log-likelihood under REG")
        left.set(title=f"{dataset}: test log-likelihood")
        right.set(title="DReG - REG")
        left.legend(frameon=False, fontsize=8)
    return figure
