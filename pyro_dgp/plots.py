"""Pictures of predictive densities. Each function draws into ``ax``, or a new one, and returns it.

Needs Matplotlib: ``pip install 'pyro_dgp[plot]'``.
"""

from collections.abc import Sequence

import numpy as np
import torch

from pyro_dgp.infer.snr_sweep import SNRSweep

__all__ = [
    "calibration_curve",
    "density_along_input",
    "fan_chart",
    "latent_traversal",
    "marginal_densities",
    "pit_histogram",
    "pyplot",
    "snr_along_training",
    "training_curve",
]


def density_along_input(model, X, feature: int, row=None, num_points: int = 80, ax=None):
    """Predictive density as shades along one input, the others held fixed.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Column of X that varies.
    :param row: Values of the inputs, [D]; None for the medians of X.
    :param int num_points: Points along each axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    grid, rows = _along(X, feature, row, num_points)
    y, density = _densities(model, rows, 0.002, num_points)
    # By column of the same greatest shade: a narrow peak would leave the rest white.
    shade = density / np.maximum(density.max(0), np.finfo(float).tiny)
    ax.pcolormesh(grid, y, shade, cmap="Blues", shading="nearest", rasterized=True)
    ax.set(xlabel=_name(model, feature), ylabel="y", title="Predictive density")
    return ax


def fan_chart(
    model, X, feature: int, row=None, levels: Sequence[float] = (0.5, 0.9, 0.98),
    num_points: int = 100, ax=None,
):  # fmt: skip
    """Median and central intervals along one input, the others held fixed.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Column of X that varies.
    :param row: Values of the inputs, [D]; None for the medians of X.
    :param levels: Probabilities of the intervals.
    :param int num_points: Points along the axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    grid, rows = _along(X, feature, row, num_points)
    levels = sorted(levels, reverse=True)
    lower, upper = ([0.5 + sign * p / 2 for p in levels] for sign in (-1, 1))
    quantiles = np.asarray(model.predict_quantiles(like(model, rows), [*lower, *upper, 0.5]))
    shades = pyplot().get_cmap("Blues")(np.linspace(0.2, 0.5, len(levels)))
    for i, (p, shade) in enumerate(zip(levels, shades, strict=True)):
        ends = quantiles[:, i], quantiles[:, len(levels) + i]
        ax.fill_between(grid, *ends, color=shade, lw=0, label=f"{p:.0%}")
    ax.plot(grid, quantiles[:, -1], color="C0", label="median")
    ax.set(xlabel=_name(model, feature), ylabel="y", title="Quantiles")
    ax.legend(frameon=False)
    return ax


def pit_histogram(pit, num_bins: int = 10, ax=None):
    """Histogram of P(target <= y), flat if predictions are calibrated.

    The band holds a bar of a calibrated model with probability 0.95.

    :param pit: Values in (0, 1), [N]: ``model.cdf(X, y)``.
    :param int num_bins: Bars.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    from scipy.stats import binom

    ax = _axes(ax)
    pit = np.ravel(pit)
    low, high = binom.interval(0.95, len(pit), 1 / num_bins)
    scale = num_bins / len(pit)
    ax.axhspan(low * scale, high * scale, color="0.9", lw=0)
    ax.axhline(1.0, color="0.5", lw=1)
    ax.hist(pit, np.linspace(0, 1, num_bins + 1), density=True, color="C0", alpha=0.7, ec="white")
    ax.set(xlim=(0, 1), xlabel="P(target ≤ y)", ylabel="density", title="PIT histogram")
    return ax


def calibration_curve(pit, ax=None):
    """Share of the targets below each quantile, on the diagonal if predictions are calibrated.

    The band holds the whole curve of a calibrated model with probability 0.95, by the
    Dvoretzky-Kiefer-Wolfowitz inequality.

    :param pit: Values in (0, 1), [N]: ``model.cdf(X, y)``.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    pit = np.sort(np.ravel(pit))
    ends = np.array([0.0, 1.0])
    width = np.sqrt(np.log(2 / 0.05) / (2 * len(pit)))
    ax.fill_between(ends, ends - width, ends + width, color="0.9", lw=0)
    ax.plot(ends, ends, color="0.5", lw=1)
    ax.step([0, *pit, 1], [0, *np.arange(1, len(pit) + 1) / len(pit), 1], where="post", color="C0")
    ax.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="probability of the quantile",
        ylabel="share of targets below it", title="Calibration", aspect="equal",
    )  # fmt: skip
    return ax


def marginal_densities(
    model, X, y=None, num_points: int = 500, labels: Sequence[str] | None = None, ax=None
):
    """Predictive densities of a few rows, with their targets as vertical lines.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target.
    :param X: The rows, [N, D].
    :param y: Their targets, [N], or None.
    :param int num_points: Points along the axis.
    :param labels: What to call the rows; None for their numbers.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    grid, density = _densities(model, np.asarray(X, dtype=float), 0.001, num_points)
    for i, column in enumerate(density.T):
        label = f"row {i}" if labels is None else labels[i]
        ax.plot(grid, column, color=f"C{i % 10}", label=label)
        if y is not None:
            ax.axvline(np.asarray(y)[i], color=f"C{i % 10}", ls=":")
    ax.set(xlabel="y", ylabel="density", ylim=(0, None), title="Predictive densities")
    ax.legend(frameon=False)
    return ax


def latent_traversal(
    model, X, feature: int, row=None, values: Sequence[float] = (-2, -1, 0, 1, 2),
    num_points: int = 100, ax=None,
):  # fmt: skip
    """What the latent input does: the mean along one input, for some values of z.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPRegressor` of one target with
        ``latent_dim=1``.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Column of X that varies.
    :param row: Values of the inputs, [D]; None for the medians of X.
    :param values: Of z, in standard deviations of its prior.
    :param int num_points: Points along the axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    grid, rows = _along(X, feature, row, num_points)
    shades = pyplot().get_cmap("coolwarm")(np.linspace(0, 1, len(values)))
    for z, shade in zip(values, shades, strict=True):
        ax.plot(
            grid, model.predictive(like(model, rows), z=z).mean, color=shade, label=f"z = {z:g}"
        )
    ax.set(xlabel=_name(model, feature), ylabel="mean of y given z", title="Latent input")
    ax.legend(frameon=False)
    return ax


def training_curve(history, validation=None, window: int | None = None, ax=None):
    """The loss along training, as means over windows of steps, and held-out scores.

    :param history: A :class:`~pyro_dgp.infer.TrainingHistory`.
    :param validation: Steps and scores, such as ``(model.validation_steps_,
        model.validation_crps_)``, or None.
    :param int window: Steps that a mean is over; None for a 50th of all.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    losses = np.asarray(history.losses, dtype=float)
    window = window or max(1, len(losses) // 50)
    edges = np.arange(0, len(losses), window)
    steps = np.minimum(edges + window, len(losses))
    means = np.add.reduceat(losses, edges) / (steps - edges)
    ax.plot(steps, means, color="C0", label="loss")
    ax.set(xlabel="step", ylabel="loss", title="Training")
    ax.set_yscale("log" if means.min() > 0 and means.max() > 100 * means.min() else "linear")
    if validation is not None and len(validation[0]):
        other = ax.twinx()
        other.plot(*validation, color="C1", marker=".", label="held out")
        best = int(np.argmin(validation[1]))
        other.plot(validation[0][best], validation[1][best], "o", color="C1", mfc="white")
        other.set_ylabel("held-out CRPS", color="C1")
        ax.set_ylabel("loss", color="C0")
    return ax


def snr_along_training(sweeps: dict[int, SNRSweep], group: str, ax=None):
    """Signal-to-noise ratios of a group of parameters along training, one line an estimator and K.

    :param sweeps: By the number of steps, :func:`~pyro_dgp.infer.snr_sweep` of the same estimators
        and K.
    :param str group: The group of parameters.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = _axes(ax)
    lines: dict[tuple[str, int], list] = {}
    for step, sweep in sorted(sweeps.items()):
        for p in sweep.select(group=group):
            lines.setdefault((p.estimator, p.K), []).append((step, p.snr, p.snr_error))
    if not lines:
        raise ValueError(f"No sweep has a group '{group}'.")
    for (estimator, K), points in lines.items():
        step, snr, error = zip(*points, strict=True)
        ax.errorbar(step, snr, error, marker="o", capsize=2, label=f"{estimator}, K = {K}")
    ax.set(xlabel="step", ylabel="SNR", yscale="log", title=f"Signal-to-noise ratio, {group}")
    ax.legend(frameon=False)
    return ax


def pyplot():
    """Matplotlib's ``pyplot``.

    :raises ImportError: If it is missing; says how to install it.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Figures need Matplotlib: pip install 'pyro_dgp[plot]'.") from error
    return plt


def _axes(ax):
    return pyplot().subplots(layout="constrained")[1] if ax is None else ax


def _along(X, feature: int, row, num_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of one input from end to end, and rows with them."""
    X = np.asarray(X, dtype=float)
    if X.ndim != 2 or not 0 <= feature < X.shape[1]:
        raise ValueError(
            f"feature must be a column of X, 0 to {X.shape[-1] - 1}, but it is {feature}."
        )
    grid = np.linspace(X[:, feature].min(), X[:, feature].max(), num_points)
    rows = np.tile(
        np.median(X, 0) if row is None else np.asarray(row, dtype=float), (num_points, 1)
    )
    rows[:, feature] = grid
    return grid, rows


def _densities(model, rows: np.ndarray, tail: float, num_points: int):
    """Targets, and densities of each row there, [num_points, N]."""
    predictive = model.predictive(like(model, rows))
    ends = predictive.quantile(torch.tensor([tail, 1 - tail]))
    low, high = ends[0].min().item(), ends[1].max().item()
    margin = 0.05 * (high - low)
    y = torch.linspace(low - margin, high + margin, num_points, dtype=torch.float64)
    return y.numpy(), predictive.log_prob(y.unsqueeze(-1)).exp().numpy()


def like(model, rows: np.ndarray):
    """Rows as a data frame if the model was fitted to one, so that it knows the names."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return rows
    import pandas as pd

    return pd.DataFrame(rows, columns=names)


def _name(model, feature: int) -> str:
    names = getattr(model, "feature_names_in_", None)
    # A dollar would begin a formula.
    return f"x{feature}" if names is None else str(names[feature]).replace("$", r"\$")
