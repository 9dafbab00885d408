"""Pictures of training."""

from typing import TYPE_CHECKING

import numpy as np

from pyro_dgp.infer.snr.sweeps import SNRSweep
from pyro_dgp.infer.training.loop import TrainingHistory
from pyro_dgp.plots._axes import axes_of, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["snr_along_training", "training_curve"]


def training_curve(
    history: TrainingHistory,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    window: int | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """The loss along training, as means over windows of steps, and held-out scores.

    :param history: A :class:`~pyro_dgp.infer.TrainingHistory`.
    :param validation: Steps and held-out scores, such as ``(model.validation_steps_,
        model.validation_crps_)``, or None.
    :param int window: Number of steps per mean; None for a 50th of all.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    :raises ValueError: If there are no steps.
    """
    losses = np.asarray(history.losses, dtype=float)
    if not len(losses):
        raise ValueError("history has no steps.")
    ax = axes_of(ax)
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
        if np.isfinite(validation[1]).any():
            best = int(np.nanargmin(validation[1]))
            other.plot(validation[0][best], validation[1][best], "o", color="C1", mfc="white")
        other.set_ylabel("held-out score", color="C1")
        ax.set_ylabel("loss", color="C0")
    return ax


def snr_along_training(sweeps: dict[int, SNRSweep], group: str, ax: "Axes | None" = None) -> "Axes":
    """Signal-to-noise ratios of a group of parameters along training.

    There is a line for each estimator and K, and for each value of whatever else differs between
    points of one step, such as the size of the minibatch.

    :param sweeps: Results of :func:`~pyro_dgp.infer.snr_sweep` for the same estimators and K, by
        the number of steps.
    :param str group: The group of parameters.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = axes_of(ax)
    by_step = {step: sweeps[step].select(group=group) for step in sorted(sweeps)}
    others = [
        name
        for name in ("num_particles", "batch_size", "num_draws", "seed")
        if any(len({getattr(p, name) for p in points}) > 1 for points in by_step.values())
    ]
    lines: dict[str, list] = {}
    for step, points in by_step.items():
        for p in points:
            what = [f"{p.estimator}, K = {p.K}", *(f"{n} = {getattr(p, n)}" for n in others)]
            lines.setdefault(", ".join(what), []).append((step, p.snr, p.snr_error))
    if not lines:
        raise ValueError(f"No sweep has a group '{group}'.")
    for name, points in lines.items():
        step, snr, error = zip(*points, strict=True)
        ax.errorbar(step, snr, error, marker="o", capsize=2, label=plain(name))
    ax.set(xlabel="step", ylabel="SNR", yscale="log")
    ax.set_title(plain(f"Signal-to-noise ratio, {group}"))
    ax.legend(frameon=False)
    return ax
