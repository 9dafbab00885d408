"""The paper's demo data and the UCI sets, with the published splits and normalisation."""

from dataclasses import dataclass

import numpy as np

from pyro_dgp.experiments import uci

__all__ = ["Split", "demo_data", "demo_function", "load", "names", "normalize", "split_indices"]


@dataclass(frozen=True)
class Split:
    """Training and test data on the normalised scale.

    :param str name: Name of the data set.
    :param numpy.ndarray X_train: Training inputs, [N, D].
    :param numpy.ndarray y_train: Training targets, [N].
    :param numpy.ndarray X_test: Test inputs, [N_test, D].
    :param numpy.ndarray y_test: Test targets, [N_test].
    """

    name: str
    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def normalize(values: np.ndarray, by: np.ndarray | None = None) -> np.ndarray:
    """``(v - mean) / (std + 1e-6)`` by column, with the population standard deviation.

    :param numpy.ndarray values: Values to be normalised, [N] or [N, D].
    :param numpy.ndarray by: Values that define mean and deviation; None for ``values``.
    """
    by = values if by is None else by
    return (values - by.mean(0)) / (by.std(0) + 1e-6)


# The demo data


def demo_function(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Targets of the demo data: one of two skewed branches, at random.

    f1 = sin(4x)/3 + 0.2 e^eps with probability 0.6, else f2 = -9x^2/30 + 1.5 + 0.2 e^eps, with
    eps ~ N(0, 1). The paper's text has +9x^2/30; its code and its Figure 7 have the minus.

    :param numpy.ndarray x: Inputs of any shape.
    :param numpy.random.Generator rng: Source of the noise.
    """
    noise = 0.2 * np.exp(rng.standard_normal(x.shape))
    first = np.sin(4 * x) / 3
    second = -((3 * x) ** 2) / 30 + 1.5
    return np.where(rng.random(x.shape) < 0.6, first, second) + noise


def demo_data(seed: int = 0, published: bool = False) -> Split:
    """The demo data: 1998 training and 198 test points on [-3, 3].

    Every unit interval of the input axis starts with a gap of length 1/11 with test points only.
    Inputs and targets are normalised by the mean and deviation of the training data.

    :param int seed: Seed of inputs and targets.
    :param bool published: Whether to normalise the test data by their own mean and deviation, as
        the authors' code does; this shifts them by a third of a deviation against the training
        data.
    """
    rng = np.random.default_rng(seed)
    num_train, num_test, blocks = 2000, 200, 6
    gap = num_test / (num_train + num_test)
    starts = -3.0 + np.arange(blocks)
    x_test = np.concatenate([rng.uniform(s, s + gap, num_test // blocks) for s in starts])
    x_train = np.concatenate([rng.uniform(s + gap, s + 1, num_train // blocks) for s in starts])
    y_train, y_test = demo_function(x_train, rng), demo_function(x_test, rng)
    return Split(
        name="demo_published" if published else "demo",
        X_train=normalize(x_train)[:, None],
        y_train=normalize(y_train),
        X_test=normalize(x_test, x_test if published else x_train)[:, None],
        y_test=normalize(y_test, y_test if published else y_train),
    )


# The UCI sets


_DEMOS = ("demo", "demo_published")


def names() -> list[str]:
    """Names of the data sets of :func:`load`."""
    return [*_DEMOS, *uci.manifest()]


def load(name: str, split: int = 0) -> Split:
    """A data set with one of the published train-test splits.

    UCI sets are normalised over **all** rows before the split, and inputs that are constant over
    all rows are dropped, as for the published numbers; the demo data use ``split`` as their seed.
    Most sets come with the package; the file ``NAME.csv.gz`` is first searched for in
    ``$PYRO_DGP_DATA`` and in the cache folder, and its contents are checked
    (:mod:`~pyro_dgp.experiments.uci`).

    :param str name: One of :func:`names`.
    :param int split: Number of the split; the paper has 20 per set.
    :raises ValueError: If the name is unknown, the split out of range, or the file a wrong one.
    :raises FileNotFoundError: If there is no file; says how to get it.
    """
    if name not in names():
        raise ValueError(f"Unknown data set '{name}'; there are {', '.join(names())}.")
    if not 0 <= split < 2**32:  # NumPy's seeds
        raise ValueError(f"split must not be negative, nor 2^32 or more, but it is {split}.")
    if name in _DEMOS:
        return demo_data(split, published=name == "demo_published")
    table = uci.read(name)
    X, y = normalize(table[:, :-1]), normalize(table[:, -1])
    X = X[:, np.ptp(table[:, :-1], axis=0) > 0]
    train, test = split_indices(len(table), split)
    return Split(name, X[train], y[train], X[test], y[test])


def split_indices(num_rows: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training rows (90%) and test rows of a published split, in their order.

    :param int num_rows: Number of rows of the data set.
    :param int split: Number of the split.
    """
    # The published splits are those of NumPy's legacy generator.
    order = np.arange(num_rows)
    np.random.RandomState(split).shuffle(order)
    num_train = int(0.9 * num_rows)
    return order[:num_train], order[num_train:]
