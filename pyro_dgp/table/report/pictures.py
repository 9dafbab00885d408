"""Pictures of the predictions of a model of a table."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pyro_dgp import plots
from pyro_dgp.experiments.metrics import pit_bounds, randomised_pit
from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor
from pyro_dgp.table.columns import Columns
from pyro_dgp.table.densities import beside
from pyro_dgp.table.packages import pd
from pyro_dgp.table.report.importance import permutation_importance
from pyro_dgp.table.report.one_target import OneTarget
from pyro_dgp.table.shared import TableModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture", "importance_of", "pictures", "spread_rows"]

# Number of texts of a column for which densities are drawn.
_MOST_GROUPS = 6
# Length of the description of fixed columns, in characters.
_LONGEST_TITLE = 320
# Number of rows for calibration.
_MOST_ROWS = 20_000

Draw = Callable[["Axes"], object]


def _some(number: int) -> np.ndarray:
    """Indices of some rows, evenly spread, as tables are often sorted."""
    return np.linspace(0, number - 1, min(number, _MOST_ROWS)).round().astype(int)


@dataclass(frozen=True)
class Picture:
    """A figure with a name and a caption.

    :param str name: Name of the file without a suffix.
    :param figure: The Matplotlib figure.
    :param str caption: What the figure shows.
    """

    name: str
    figure: "Figure"
    caption: str


def pictures(
    own: TableModel, frame: pd.DataFrame, along: Sequence[str], target: str, rows: int = 3,
    importance: dict | None = None,
) -> Iterator[Picture]:  # fmt: skip
    """Calibration, importance, predictions along inputs and of some rows, training.

    :param TableModel own: The model.
    :param pandas.DataFrame frame: Rows with targets.
    :param along: Names of input columns along which predictions are drawn.
    :param str target: Name of the target.
    :param int rows: Number of rows whose densities are drawn.
    :param importance: Importances from :func:`importance_of`; None for no picture of them.
    """
    if isinstance(own.model, LatentDGPClassifier):
        views = _Classes(own.model, own.columns, frame, target)
    else:
        views = _Densities(own.model, own.columns, frame, target)
    yield Picture("calibration", _figure(*views.calibration()), views.calibrated)
    if importance:
        yield Picture(
            "importance",
            _figure(lambda ax: plots.importances(importance, own.task.LOSS, ax=ax)),
            f"By how much the {own.task.LOSS} of held-out rows grows when the values of a column "
            "are shuffled.",
        )
    typical = own.columns.typical(frame)
    for i, name in enumerate(along):
        held = ", ".join(_described(typical.drop(columns=name)))
        held = textwrap.shorten(held, _LONGEST_TITLE, placeholder=" and so on")
        title = plots.plain(textwrap.fill(f"Held at: {held}", 110)) if held else None
        if name in own.columns.numbers:
            inputs, row = own.columns.inputs(frame), own.columns.inputs(typical).to_numpy()[0]
            draw = views.along(inputs, list(inputs.columns).index(name), row)
        else:
            values, labels = _values_of(own.columns, frame, name)
            some = typical.loc[typical.index.repeat(len(values))].reset_index(drop=True)
            some[name] = values
            labels = [plots.label(text) for text in labels]
            draw = views.groups(own.columns.inputs(some), labels, name)
        number = f"_{i + 1}" if i else ""
        caption = f"Predictions along {name}, the other columns held at typical values."
        yield Picture(f"along_input{number}", _figure(*draw, title=title), caption)
    rows = min(rows, len(frame))
    spread = ", whose targets lie from low to high" if rows > 1 else ""
    caption = f"Predictions of {rows} row{'s' * (rows > 1)}{spread}."
    yield Picture(views.kind, _figure(views.some(rows)), caption)
    history = own.model.history_
    yield Picture(
        "training", _figure(lambda ax: plots.training_curve(history, ax=ax)),
        "The loss along training.",
    )  # fmt: skip


def importance_of(own: TableModel, frame: pd.DataFrame, progress: bool = False) -> dict:
    """Importance of each input column, by
    :func:`~pyro_dgp.table.report.importance.permutation_importance`."""
    return permutation_importance(own.model, own.columns, own.task.losses, frame, progress=progress)


class _Densities:
    """Pictures of one numeric target."""

    kind = "densities"
    calibrated = (
        "Calibration: the distribution of P(target <= y) over the rows, flat if the densities are "
        "calibrated, and the share of the targets below each quantile. Within the grey bands what "
        "is seen may be chance."
    )

    def __init__(
        self, model: LatentDGPRegressor, columns: Columns, frame: pd.DataFrame, target: str
    ) -> None:
        several = len(columns.targets) > 1
        self.model = OneTarget(model, columns.targets.index(target)) if several else model
        self.X, self.target = columns.inputs(frame), plots.label(target)
        self.y = frame[target].to_numpy(dtype=float)

    def calibration(self) -> list[Draw]:
        some = _some(len(self.X))
        parts = beside(self.model.predictives(self.X.iloc[some]), self.y[some])
        bounds = [torch.stack(pit_bounds(p, y)) for p, y in parts]
        below, above = torch.cat(bounds, 1)
        pit = randomised_pit(below, above).numpy()
        return [
            lambda ax: plots.pit_histogram(pit, ax=ax),
            lambda ax: plots.calibration_curve(pit, ax=ax),
        ]

    def along(self, X: pd.DataFrame, feature: int, row: np.ndarray) -> list[Draw]:
        curves: list[Callable[..., Axes]] = [plots.density_along_input, plots.fan_chart]
        if self.model.latent_dim == 1:
            curves.append(plots.latent_traversal)

        def named(curve: Callable[..., "Axes"]) -> Draw:
            def draw(ax: "Axes") -> None:
                curve(self.model, X, feature, row, ax=ax)
                ax.set_ylabel(ax.get_ylabel().replace("y", self.target, 1))

            return draw

        return [named(curve) for curve in curves]

    def groups(self, X: pd.DataFrame, labels: list[str], name: str) -> list[Draw]:
        def draw(ax: "Axes") -> None:
            plots.marginal_densities(self.model, X, labels=labels, ax=ax)
            ax.set(xlabel=self.target, title=f"Densities by {plots.label(name)}")

        return [draw]

    def some(self, rows: int) -> Draw:
        some = spread_rows(self.y, rows)
        labels = [f"row {i}" for i in some]
        return lambda ax: plots.marginal_densities(
            self.model, self.X.iloc[some], self.y[some], labels=labels, ax=ax
        ).set_xlabel(self.target)


class _Classes:
    """Pictures of a target with classes."""

    kind = "probabilities"
    calibrated = (
        "Calibration: how often a class was the right one, by the probability it was given, over "
        "all rows and classes; on the diagonal if probabilities may be taken at their word. Within "
        "the grey bars what is seen may be chance."
    )

    def __init__(
        self, model: LatentDGPClassifier, columns: Columns, frame: pd.DataFrame, target: str
    ) -> None:
        self.model, self.target = model, plots.label(target)
        self.X = columns.inputs(frame)
        self.classes = model.classes_
        self.labels = [plots.label(str(c)) for c in self.classes]
        self.y = columns.target_values(frame)

    def calibration(self) -> list[Draw]:
        some = _some(len(self.X))
        shares = self.model.predict_proba(self.X.iloc[some])
        happened = np.asarray(self.y[some], dtype=object)[:, None] == self.classes.astype(object)
        if len(self.classes) == 2:  # the other class gives the same information
            shares, happened = shares[:, 1], happened[:, 1]
        return [lambda ax: plots.reliability_curve(shares, happened, ax=ax)]

    def along(self, X: pd.DataFrame, feature: int, row: np.ndarray) -> list[Draw]:
        return [
            lambda ax: plots.probabilities_along_input(
                self.model, X, feature, row, self.labels, ax=ax
            )
        ]

    def groups(self, X: pd.DataFrame, labels: list[str], name: str) -> list[Draw]:
        return [self._bars(X, labels, f"Probabilities by {plots.label(name)}")]

    def some(self, rows: int) -> Draw:
        some = spread_rows(self.y.astype(str), rows)
        labels = [f"row {i}: {plots.label(str(self.y[i]))}" for i in some]
        return self._bars(self.X.iloc[some], labels, f"Probabilities of {self.target}")

    def _bars(self, X: pd.DataFrame, labels: list[str], title: str) -> Draw:
        shares = self.model.predict_proba(X)

        def draw(ax: "Axes") -> None:
            left = np.zeros(len(X))
            for i, name in enumerate(self.labels):
                ax.barh(range(len(X)), shares[:, i], left=left, color=f"C{i % 10}", label=name,
                        alpha=0.8)  # fmt: skip
                left = left + shares[:, i]
            ax.set_yticks(range(len(X)), labels)
            ax.invert_yaxis()
            ax.set(xlim=(0, 1), xlabel="probability", title=title)
            ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

        return draw


def spread_rows(y: np.ndarray, number: int) -> np.ndarray:
    """Indices of rows whose targets are spread evenly over all targets, from low to high."""
    middles = (np.arange(number) + 0.5) / number * len(y)
    return np.argsort(y, kind="stable")[middles.astype(int)]


def _figure(*draw: Draw, title: str | None = None) -> "Figure":
    figure, axes = plots.pyplot().subplots(
        1, len(draw), figsize=(4.5 * len(draw) + (len(draw) == 1), 4.2 if title else 4),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for ax, function in zip(axes[0], draw, strict=True):
        function(ax)
    if title is not None:
        figure.suptitle(title, fontsize="small")
    return figure


def _values_of(columns: Columns, frame: pd.DataFrame, name: str) -> tuple[list, list[str]]:
    """A few values of a column of texts or dates, and their labels."""
    if name in columns.categories:
        values = columns.categories[name]["kept"][:_MOST_GROUPS] or [np.nan]
        return values, [str(v) if v == v else "missing" for v in values]
    values = frame[name].dropna().quantile(np.linspace(0, 1, 5), interpolation="nearest").unique()
    if not len(values):
        return [pd.NaT], ["missing"]
    return list(values), [f"{v:%Y-%m-%d}" for v in values]


def _described(row: pd.DataFrame) -> Iterator[str]:
    for name, value in row.iloc[0].items():
        if value is pd.NaT or value != value:
            value = "missing"
        elif hasattr(value, "strftime"):
            value = f"{value:%Y-%m-%d}"
        yield f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
