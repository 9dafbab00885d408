"""Permutation importance of the columns of a table."""

import copy
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from tqdm.auto import tqdm

from pyro_dgp.sklearn.base import LatentDGPEstimator
from pyro_dgp.table.columns import Columns
from pyro_dgp.table.packages import pd

__all__ = ["permutation_importance"]

# Number of predictions in all, and least and largest number of rows per column.
_PREDICTIONS, _LEAST_ROWS, _MOST_ROWS = 10_000, 100, 1000
# Components of a prediction; differences of means over rows need no more.
_NUM_SAMPLES = 100

_Model = TypeVar("_Model", bound=LatentDGPEstimator)


def permutation_importance(
    model: _Model,
    columns: Columns,
    losses: Callable[[_Model, pd.DataFrame, np.ndarray], np.ndarray],
    frame: pd.DataFrame,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, tuple[float, float]]:
    """Relative growth of the mean loss when the values of a column are shuffled.

    All inputs made of a column (categories, parts of dates, missing values) are shuffled together.

    Source: Breiman (2001), "Random forests"; Fisher, Rudin and Dominici (2019).

    :param model: A fitted regressor or classifier.
    :param Columns columns: The columns of its table.
    :param losses: A function of a model, inputs [N, D] and targets that gives losses, [N].
    :param pandas.DataFrame frame: Rows with targets that were not trained on.
    :param int seed: Seed of the shuffling.
    :param bool progress: Whether to show a progress bar.
    :returns: The growth and its standard error over rows, by input column.
    """
    rows = np.clip(_PREDICTIONS // len(columns.used), _LEAST_ROWS, _MOST_ROWS)
    if len(frame) > rows:  # not the first ones: tables are often sorted
        frame = frame.sample(rows, random_state=seed)
    frame = frame.reset_index(drop=True)
    y, rng = columns.target_values(frame), np.random.default_rng(seed)
    quick = copy.copy(model)
    quick.num_samples = min(model.num_samples, _NUM_SAMPLES)
    before, found = losses(quick, columns.inputs(frame), y), {}
    for name in tqdm(columns.used, desc="inputs", disable=None if progress else True):
        shuffled = frame.copy()
        shuffled[name] = frame[name].to_numpy()[rng.permutation(len(frame))]
        growth = losses(quick, columns.inputs(shuffled), y) - before
        error = growth.std(ddof=1) / len(growth) ** 0.5 if len(growth) > 1 else np.nan
        scale = max(abs(before.mean()), np.finfo(float).tiny)
        found[name] = float(growth.mean() / scale), float(error / scale)
    return found
