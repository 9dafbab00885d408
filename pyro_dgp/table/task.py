"""What :mod:`~pyro_dgp.table.densities` and :mod:`~pyro_dgp.table.classes` have in common."""

import argparse
from typing import Any, Protocol

import numpy as np

from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor
from pyro_dgp.table.packages import pd
from pyro_dgp.table.scores import ScoreTable

__all__ = ["Task"]


class Task(Protocol):
    """What is predicted of a target, and how that is scored.

    :param ESTIMATOR: The class of its models.
    :param LOSS: What :meth:`losses` are called.
    """

    @property
    def ESTIMATOR(self) -> type[LatentDGPRegressor] | type[LatentDGPClassifier]: ...

    @property
    def LOSS(self) -> str: ...

    def report(
        self, model: Any, data: tuple, held_out: tuple, names: list[str], seed: int, progress: bool
    ) -> dict:
        """Scores on held-out rows, of a model and of simpler ones."""
        ...

    def scores(self, model: Any, X: Any, y: Any, names: list[str], progress: bool) -> dict:
        """Scores of a model."""
        ...

    def tables(self, found: dict, of: str = "held-out rows") -> list[ScoreTable]:
        """Scores, to be shown."""
        ...

    def losses(self, model: Any, X: Any, y: Any) -> np.ndarray:
        """Of rows, [N]; smaller is better."""
        ...

    def predictions(
        self, model: Any, targets: list[str], X: Any, y: Any, args: argparse.Namespace
    ) -> pd.DataFrame:
        """What ``pyro-dgp predict`` writes."""
        ...
