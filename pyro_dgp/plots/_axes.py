"""Common parts of the pictures."""

from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

from pyro_dgp._checks import check_integer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from pyro_dgp.sklearn.regressor import Predictive

__all__ = [
    "ClassModel",
    "DensityModel",
    "along",
    "axes_of",
    "label",
    "like",
    "name_of",
    "plain",
    "pyplot",
]

# Length of a label, in characters.
_LONGEST = 40


class DensityModel(Protocol):
    """A fitted model of one target that predicts densities."""

    def predictive(
        self, X: "np.ndarray | pd.DataFrame", z: ArrayLike | None = None
    ) -> "Predictive":
        """The predictive distribution, in units of y."""
        ...


class ClassModel(Protocol):
    """A fitted classifier."""

    classes_: np.ndarray

    def predict_proba(self, X: "np.ndarray | pd.DataFrame") -> np.ndarray:
        """Probabilities of classes, [N, C]."""
        ...


def pyplot() -> ModuleType:
    """Matplotlib's ``pyplot``.

    :raises ImportError: If it is missing; says how to install it.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Figures need Matplotlib: pip install 'pyro_dgp[plot]'.") from error
    return plt


def axes_of(ax: "Axes | None") -> "Axes":
    """The axes, or those of a new figure."""
    return pyplot().subplots(layout="constrained")[1] if ax is None else ax


def along(
    X: ArrayLike, feature: int, row: ArrayLike | None, num_points: int
) -> tuple[np.ndarray, np.ndarray]:
    """A grid over the range of one input, and rows with these values."""
    X = np.asarray(X, dtype=float)
    if X.ndim != 2 or not len(X):
        raise ValueError(f"X must be inputs [N, D], X[:, None] if D is 1; it has shape {X.shape}.")
    if check_integer("feature", feature, 0) >= X.shape[1]:
        raise ValueError(
            f"feature must be a column of X, 0 to {X.shape[1] - 1}, but it is {feature}."
        )
    others = np.median(X, 0) if row is None else np.asarray(row, dtype=float)
    if others.shape != X.shape[1:]:
        raise ValueError(
            f"row must have a value for each of the {X.shape[1]} columns of X, but it has shape "
            f"{others.shape}."
        )
    grid = np.linspace(X[:, feature].min(), X[:, feature].max(), num_points)
    rows = np.tile(others, (num_points, 1))
    rows[:, feature] = grid
    return grid, rows


def like(model: object, rows: np.ndarray) -> "np.ndarray | pd.DataFrame":
    """Rows as a data frame with names if the model was fitted to one."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return rows
    import pandas as pd

    return pd.DataFrame(rows, columns=names)


def name_of(model: object, feature: int) -> str:
    """The name of a column of the inputs, as a label."""
    names = getattr(model, "feature_names_in_", None)
    return f"x{feature}" if names is None else label(str(names[feature]))


def label(name: str) -> str:
    """A name as a label: :func:`plain`, and shortened to the length of one."""
    return plain(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")


def plain(text: str) -> str:
    """A text in which Matplotlib finds no formula and no hidden label."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")
