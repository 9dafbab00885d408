"""Importance of inputs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyro_dgp.plots._axes import axes_of, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["importances"]


def importances(
    found: Mapping[str, tuple[float, float]],
    loss: str = "loss",
    most: int = 20,
    ax: "Axes | None" = None,
) -> "Axes":
    """Growth of a loss on held-out rows when the values of an input are shuffled.

    :param found: Relative growth of the loss, and its standard error, by input.
    :param str loss: Name of the loss.
    :param int most: Number of inputs shown, the most important ones.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = axes_of(ax)
    shown = sorted(found.items(), key=lambda item: -item[1][0])[:most]
    names = [label(name) for name, _ in shown]
    growth, error = ([100 * values[i] for _, values in shown] for i in (0, 1))
    places = range(len(shown))
    ax.barh(places, growth, xerr=error, color="C0", alpha=0.8, ecolor="0.3", capsize=2)
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.axvline(0, color="0.5", lw=1)
    ax.set(xlabel=f"{loss} grows by, %", title="Inputs that matter")
    return ax
