"""The common interface of :mod:`~pyro_dgp.table.densities` and :mod:`~pyro_dgp.table.classes`."""

import argparse
from typing import Any, Protocol

import numpy as np

from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor
from pyro_dgp.table.packages import pd
from pyro_dgp.table.scores import ScoreTable

__all__ = ["Model", "Task"]

#: A fitted model of a table.
Model = LatentDGPRegressor | LatentDGPClassifier


class Task(Protocol):
    """What is predicted of a target, and how it is scored."""

    @property
    def ESTIMATOR(self) -> type[LatentDGPRegressor] | type[LatentDGPClassifier]:
        """The class of the models."""
        ...

    @property
    def LOSS(self) -> str:
        """Name of the :meth:`losses`."""
        ...

    def report(
        self, model: Any, data: tuple, held_out: tuple, names: list[str], seed: int, progress: bool
    ) -> dict:
        """Scores of a model and of simpler ones on held-out rows."""
        ...

    def scores(self, model: Any, X: Any, y: Any, names: list[str], progress: bool) -> dict:
        """Scores of a model."""
        ...

    def tables(self, found: dict, of: str = "held-out rows") -> list[ScoreTable]:
        """Scores as tables."""
        ...

    def losses(self, model: Any, X: Any, y: Any) -> np.ndarray:
        """Losses per row, [N]; smaller is better."""
        ...

    def predictions(
        self, model: Any, targets: list[str], X: Any, y: Any, args: argparse.Namespace
    ) -> pd.DataFrame:
        """The columns that ``pyro-dgp predict`` writes."""
        ...
