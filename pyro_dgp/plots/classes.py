"""Probabilities of a classifier."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from pyro_dgp.plots._axes import ClassModel, along, axes_of, label, like, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["probabilities_along_input"]


def probabilities_along_input(
    model: ClassModel,
    X: ArrayLike,
    feature: int,
    row: ArrayLike | None = None,
    labels: Sequence[str] | None = None,
    num_points: int = 100,
    ax: "Axes | None" = None,
) -> "Axes":
    """Probabilities of the classes along one input, stacked, with the other inputs fixed.

    :param model: A fitted :class:`~pyro_dgp.sklearn.LatentDGPClassifier`.
    :param X: Inputs that span the axis, [N, D].
    :param int feature: Index of the column of X that varies.
    :param row: Values of the other inputs, [D]; None for the medians of X.
    :param labels: Labels of the classes, in Matplotlib's notation; None for ``model.classes_``.
    :param int num_points: Number of points along the axis.
    :param ax: Matplotlib axes, or None.
    :returns: The axes.
    """
    ax = axes_of(ax)
    grid, rows = along(X, feature, row, num_points)
    labels = [label(str(c)) for c in model.classes_] if labels is None else labels
    shares = model.predict_proba(like(model, rows))
    colors = [f"C{i % 10}" for i in range(len(labels))]
    ax.stackplot(grid, shares.T, labels=labels, colors=colors, alpha=0.8)
    ax.set(
        xlabel=name_of(model, feature), ylabel="probability", title="Probabilities", ylim=(0, 1),
        xlim=(grid[0], grid[-1]),
    )  # fmt: skip
    ax.legend(loc="upper left")
    return ax
