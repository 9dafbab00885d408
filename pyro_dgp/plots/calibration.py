"""Pictures of calibration."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pyro_dgp.plots._axes import axes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["calibration_curve", "pit_histogram", "reliability_curve"]

_LEAST_IN_A_BIN = 10


def _shares(name: str, values: ArrayLike) -> np.ndarray:
    """Numbers from 0 to 1, but for rounding errors, which are cut off."""
    shares = np.ravel(values).astype(float)
    if not len(shares) or not (np.abs(shares - 0.5) < 0.5 + 1e-6).all():
        raise ValueError(f"{name} must be numbers from 0 to 1, none of them NaN, and at least one.")
    return shares.clip(0, 1)


def pit_histogram(pit: ArrayLike, num_bins: int = 10, ax: "Axes | None" = None) -> "Axes":
    """Histogram of P(target <= y), flat if predictions are calibrated.

    The band contains a bar of a calibrated model with probability 0.95.

    :param pit: Values in (0, 1), [N]: ``model.cdf(X, y)``.
    :param int num_bins: Number of bars.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    :raises ValueError: If there are no values, or one is not in [0, 1].
    """
    from scipy.stats import binom

    pit = _shares("pit", pit)
    ax = axes_of(ax)
    low, high = binom.interval(0.95, len(pit), 1 / num_bins)
    scale = num_bins / len(pit)
    ax.axhspan(low * scale, high * scale, color="0.9", lw=0)
    ax.axhline(1.0, color="0.5", lw=1)
    edges = np.linspace(0, 1, num_bins + 1).tolist()
    ax.hist(pit, edges, density=True, color="C0", alpha=0.7, ec="white")
    ax.set(xlim=(0, 1), xlabel="P(target ≤ y)", ylabel="density", title="PIT histogram")
    return ax


def calibration_curve(pit: ArrayLike, ax: "Axes | None" = None) -> "Axes":
    """Share of the targets below each quantile, on the diagonal if predictions are calibrated.

    The band contains the whole curve of a calibrated model with probability 0.95, by the
    Dvoretzky-Kiefer-Wolfowitz inequality.

    :param pit: Values in (0, 1), [N]: ``model.cdf(X, y)``.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    :raises ValueError: If there are no values, or one is not in [0, 1].
    """
    pit = np.sort(_shares("pit", pit))
    ax = axes_of(ax)
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


def reliability_curve(
    probability: ArrayLike, happened: ArrayLike, num_bins: int = 10, ax: "Axes | None" = None
) -> "Axes":
    """Observed frequencies against predicted probabilities, on the diagonal if calibrated.

    Bins have equal numbers of predictions. Bars are central 95% intervals for a calibrated model.

    :param probability: Predicted probabilities, [N].
    :param happened: Whether the event happened, [N].
    :param int num_bins: Number of bins; fewer if there are less than ten predictions per bin.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    :raises ValueError: If there are no predictions, one is not in [0, 1], or their number is
        another than that of events.
    """
    from scipy.stats import binom

    probability, happened = _shares("probability", probability), _shares("happened", happened)
    if len(probability) != len(happened):
        raise ValueError(
            f"probability and happened must have the same size, but they have {len(probability)} "
            f"and {len(happened)} values."
        )
    ax = axes_of(ax)
    order = np.argsort(probability, kind="stable")
    bins = np.array_split(order, min(num_bins, max(1, len(order) // _LEAST_IN_A_BIN)))
    mean, share = (np.array([v[b].mean() for b in bins]) for v in (probability, happened))
    sizes = np.array([len(b) for b in bins])
    low, high = binom.interval(0.95, sizes, mean)
    ax.plot([0, 1], [0, 1], color="0.5", lw=1)
    ax.vlines(mean, low / sizes, high / sizes, color="0.85", lw=6)
    ax.plot(mean, share, "o", color="C0")
    ax.set(
        xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="predicted probability",
        ylabel="how often it happened", title="Calibration", aspect="equal",
    )  # fmt: skip
    return ax
