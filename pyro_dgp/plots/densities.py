"""Predictive densities of a regressor of one target."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from pyro_dgp.plots._axes import DensityModel, along, axes_of, like, name_of, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyro_dgp.sklearn.regressor import Predictive

__all__ = ["density_along_input", "fan_chart", "latent_traversal", "marginal_densities"]


def density_along_input(
    model: DensityModel,
    X: ArrayLike,
    feature: int,
    row: ArrayLike | None = None,
    num_points: int = 80,
    ax: "Axes | None" = None,
) -> "Axes":
    """Predictive density as shades along one input, with the other inputs fixed.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Index of the column of X that varies.
    :param row: Values of the other inputs, [D]; None for the medians of X.
    :param int num_points: Number of points along each axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = axes_of(ax)
    grid, rows = along(X, feature, row, num_points)
    y, density = _densities(model, rows, 0.002, num_points)
    # Scaled by column, as a single narrow peak would leave the rest white.
    shade = density / np.maximum(density.max(0), np.finfo(float).tiny)
    ax.pcolormesh(grid, y, shade, cmap="Blues", shading="nearest", rasterized=True)
    ax.set(xlabel=name_of(model, feature), ylabel="y", title="Predictive density")
    return ax


def fan_chart(
    model: DensityModel,
    X: ArrayLike,
    feature: int,
    row: ArrayLike | None = None,
    levels: Sequence[float] = (0.5, 0.9, 0.98),
    num_points: int = 100,
    ax: "Axes | None" = None,
) -> "Axes":
    """Median and central intervals along one input, with the other inputs fixed.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Index of the column of X that varies.
    :param row: Values of the other inputs, [D]; None for the medians of X.
    :param levels: Probabilities of the intervals.
    :param int num_points: Number of points along the axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = axes_of(ax)
    grid, rows = along(X, feature, row, num_points)
    levels = sorted(levels, reverse=True)
    lower, upper = ([0.5 + sign * p / 2 for p in levels] for sign in (-1, 1))
    probabilities = torch.tensor([*lower, *upper, 0.5], dtype=torch.float64)
    quantiles = _predictive(model, rows).quantile(probabilities).T.numpy()
    shades = pyplot().get_cmap("Blues")(np.linspace(0.2, 0.5, len(levels)))
    for i, (p, shade) in enumerate(zip(levels, shades, strict=True)):
        ends = quantiles[:, i], quantiles[:, len(levels) + i]
        ax.fill_between(grid, *ends, color=shade, lw=0, label=f"{100 * p:g}%")
    ax.plot(grid, quantiles[:, -1], color="C0", label="median")
    ax.set(xlabel=name_of(model, feature), ylabel="y", title="Quantiles")
    ax.legend(frameon=False)
    return ax


def marginal_densities(
    model: DensityModel,
    X: ArrayLike,
    y: ArrayLike | None = None,
    num_points: int = 500,
    labels: Sequence[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Predictive densities of a few rows, with their targets as vertical lines.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: Inputs of the rows, [N, D].
    :param y: Targets of the rows, [N], or None.
    :param int num_points: Number of points along the axis.
    :param labels: Labels of the rows, in Matplotlib's notation; None for their numbers.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    :raises ValueError: If the number of targets or labels is not that of the rows.
    """
    X = np.asarray(X, dtype=float)
    for name, values in (("y", y), ("labels", labels)):
        if values is not None and len(np.asarray(values)) != len(X):
            raise ValueError(
                f"{name} must have a value for each of the {len(X)} rows of X, but it has "
                f"{len(np.asarray(values))}."
            )
    ax = axes_of(ax)
    grid, density = _densities(model, X, 0.001, num_points)
    for i, column in enumerate(density.T):
        label = f"row {i}" if labels is None else labels[i]
        ax.plot(grid, column, color=f"C{i % 10}", label=label)
        if y is not None:
            ax.axvline(np.asarray(y)[i], color=f"C{i % 10}", ls=":")
    ax.set(xlabel="y", ylabel="density", ylim=(0, None), title="Predictive densities")
    ax.legend(frameon=False)
    return ax


def latent_traversal(
    model: DensityModel,
    X: ArrayLike,
    feature: int,
    row: ArrayLike | None = None,
    values: Sequence[float] = (-2, -1, 0, 1, 2),
    num_points: int = 100,
    ax: "Axes | None" = None,
) -> "Axes":
    """Effect of the latent input: the mean along one input, for some values of z.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target with
        ``latent_dim=1``.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Index of the column of X that varies.
    :param row: Values of the other inputs, [D]; None for the medians of X.
    :param values: Values of z, in standard deviations of its prior.
    :param int num_points: Number of points along the axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = axes_of(ax)
    grid, rows = along(X, feature, row, num_points)
    shades = pyplot().get_cmap("coolwarm")(np.linspace(0, 1, len(values)))
    for z, shade in zip(values, shades, strict=True):
        ax.plot(grid, _predictive(model, rows, z=z).mean, color=shade, label=f"z = {z:g}")
    ax.set(xlabel=name_of(model, feature), ylabel="mean of y given z", title="Latent input")
    ax.legend(frameon=False)
    return ax


def _predictive(model: DensityModel, rows: np.ndarray, **given: float) -> "Predictive":
    """The predictive distribution of one target.

    :raises ValueError: If there are several targets.
    """
    predictive = model.predictive(like(model, rows), **given)
    if predictive.event_shape:
        raise ValueError(
            f"model has {predictive.event_shape[0]} targets, but pictures of densities are of one: "
            "fit a model to it."
        )
    return predictive


def _densities(
    model: DensityModel, rows: np.ndarray, tail: float, num_points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Targets, and densities of each row there, [num_points, N].

    On a lattice these are its points, and probabilities per unit of the target.
    """
    predictive = _predictive(model, rows)
    ends = predictive.quantile(torch.tensor([tail, 1 - tail]))
    low, high = ends[0].min().item(), ends[1].max().item()
    lattice = getattr(predictive, "lattice", None)
    margin = 0.05 * (high - low) if lattice is None else 0.0
    y, unit = torch.linspace(low - margin, high + margin, num_points, dtype=torch.float64), 1.0
    if lattice is not None:
        origin, unit = lattice
        y = (origin + unit * ((y - origin) / unit).round()).unique()
    density = y.new_zeros(len(y), len(rows))
    # The margin may reach below 0, where positive targets have no density.
    possible = predictive.support.check(y)
    density[possible] = predictive.log_prob(y[possible].unsqueeze(-1)).exp() / unit
    return y.numpy(), density.numpy()
