"""Regression trees as plain arrays, which can be saved to a file that runs no code.

Growing trees needs scikit-learn: ``pip install 'pyro_dgp[sklearn]'``.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_dgp._checks import check_integer

try:
    from sklearn.tree import ExtraTreeRegressor
    from sklearn.utils import check_random_state
except ImportError as error:
    raise ImportError(
        "Forest needs scikit-learn 1.6 or newer: pip install 'pyro_dgp[sklearn]'."
    ) from error

__all__ = ["Forest", "rounded_inputs"]

_LARGEST = np.finfo(np.float32).max
# Rows times trees that are evaluated together: many for NumPy, few for the processor's cache.
_BLOCK = 2**14
# The parts of a state, and the arrays' number of dimensions.
_DTYPES = {
    "num_inputs": "int64", "roots": "int32", "feature": "int32", "threshold": "float32",
    "children": "int32", "value": "float64",
}  # fmt: skip
_DIMS = {"roots": 1, "feature": 1, "threshold": 1, "children": 2, "value": 2}


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose mean is the prediction.

    :meth:`fitted` grows extremely randomised trees, each from a bootstrap sample of the rows: like
    scikit-learn's ``ExtraTreesRegressor(bootstrap=True)``. :meth:`of_boosting` converts the trees
    of gradient boosting. Inputs are rounded to float32, as in scikit-learn's trees, so that float32
    thresholds split them in the same way.

    All I inner nodes of the T trees are numbered from 0 up, parents before children, and all L
    leaves from -1 down: leaf j is ``~j``. An inner node takes 16 bytes and a leaf 8 P.

    Sources: Geurts, Ernst and Wehenkel (2006) for the trees; Breiman (1996), "Bagging predictors"
    and "Out-of-bag estimation".

    :param int num_inputs: Number D of inputs.
    :param numpy.ndarray roots: First node of each tree, [T], int32.
    :param numpy.ndarray feature: Input that each inner node compares, [I], int32.
    :param numpy.ndarray threshold: Largest value of that input that goes to the first child, [I],
        float32.
    :param numpy.ndarray children: The two children of each inner node, [I, 2], int32.
    :param numpy.ndarray value: Predictions of the leaves, [L, P], float64.
    :raises ValueError: If the arrays do not form T trees.
    """

    num_inputs: int
    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    children: np.ndarray
    value: np.ndarray

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise ValueError(f"This is no forest, or a damaged one ({problem}).")

    @classmethod
    def fitted(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        *,
        num_trees: int,
        min_samples_leaf: int = 1,
        max_samples: int | None = None,
        sample_weight: ArrayLike | None = None,
        seed: int,
        n_jobs: int = 1,
    ) -> tuple["Forest", tuple[np.ndarray, np.ndarray]]:
        """Grows a forest, and predicts its training rows out of bag.

        The target of a row does not enter its moments. A row in the bags of all trees, which is
        rare unless trees or rows are few, has the moments of the targets of all other rows.

        :param X: Inputs, [N, D].
        :param y: Targets, [N] or [N, P], of about unit variance: nodes whose variance is below
            2e-16 are not split, and of several targets those with more variance have more
            influence.
        :param int num_trees: Number T of trees.
        :param int min_samples_leaf: Least number of different rows in a leaf.
        :param int max_samples: Number of rows drawn per tree, with replacement, at most N; None for
            N.
        :param sample_weight: Weights of the rows within the trees, [N]; bags are drawn evenly from
            the rows whose weight is positive.
        :param int seed: Seed; the same seed gives the same forest.
        :param int n_jobs: Number of threads; it does not change the forest.
        :returns: The forest, and the mean and the standard deviation over the trees for which the
            row is out of bag, both [N, P]; compare :meth:`moments`.
        :raises ValueError: If fewer than two rows have a positive weight, shapes disagree, numbers
            are not finite, or a parameter is out of range.
        """
        num_trees = check_integer("num_trees", num_trees, 1)
        min_samples_leaf = check_integer("min_samples_leaf", min_samples_leaf, 1)
        seed, n_jobs = check_integer("seed", seed, 0), check_integer("n_jobs", n_jobs, 1)
        X, y = rounded_inputs(X), _checked_targets(y)
        if len(X) != len(y):
            raise ValueError(f"X has {len(X)} rows, but y {len(y)}.")
        weight = _checked_weights(sample_weight, len(X))
        some = np.flatnonzero(weight)
        if len(some) < 2:
            raise ValueError(f"At least two rows must count, but {len(some)} do.")
        size = len(some)
        if max_samples is not None:
            size = min(size, check_integer("max_samples", max_samples, 1))

        def grow(tree_seed: int) -> tuple[dict, np.ndarray, np.ndarray]:
            # Drawn here: newer versions of scikit-learn's forest draw by the weights, so that rows
            # with a large weight would be in nearly all bags.
            drawn = some[check_random_state(tree_seed).randint(0, len(some), size)]
            times = np.bincount(drawn, minlength=len(X))
            bag, rest = np.flatnonzero(times), np.flatnonzero(times == 0)
            tree = ExtraTreeRegressor(min_samples_leaf=min_samples_leaf, random_state=tree_seed)
            tree.fit(X[bag], y[bag], sample_weight=times[bag] * weight[bag], check_input=False)
            values = tree.predict(X[rest], check_input=False)
            return _plain(tree.tree_), rest, values.reshape(y[rest].shape)

        # The seeds and the bags are those of scikit-learn's forest without weights.
        seeds = check_random_state(seed).randint(np.iinfo(np.int32).max, size=num_trees)
        trees, outside = [], _Moments(y.shape)
        with ThreadPoolExecutor(n_jobs) as pool:
            # Without a thread if one is enough: threads keep freed memory, a gigabyte for many
            # rows.
            run = map if n_jobs == 1 else pool.map
            # As many at a time as there are threads, as results wait for their turn in the order of
            # the seeds.
            for some_seeds in np.array_split(seeds, -(-num_trees // n_jobs)):
                for tree, rows, values in run(grow, some_seeds):
                    trees.append(tree)
                    outside.add(values, rows)
        mean, sd = outside.mean, outside.sd()
        never = np.flatnonzero(outside.count == 0)
        if len(never):
            place = np.searchsorted(some, never)  # only rows with a positive weight are in bags
            others = _moments_of_others(y[some], weight[some])
            mean[never], sd[never] = (moment[place] for moment in others)
        return cls(num_inputs=X.shape[1], **_joined(trees)), (mean, sd)

    @classmethod
    def of_boosting(cls, models: Sequence) -> "Forest":
        """The mean of boosted models as a forest, whose trees are averaged and not summed.

        The models must have been fitted to inputs rounded to float32.

        :param models: Fitted ``HistGradientBoostingRegressor`` with the squared error as loss and
            the same inputs, none of them categorical or missing.
        """
        trees = [tree for model in models for (tree,) in model._predictors]
        start = np.mean([model._baseline_prediction for model in models])
        plain = [_plain_boosted(tree.nodes) for tree in trees] or [_leaf(0.0)]
        for tree in plain:
            tree["value"] = start + tree["value"] * (len(plain) / len(models))
        return cls(num_inputs=models[0].n_features_in_, **_joined(plain))

    @property
    def num_trees(self) -> int:
        """Number T of trees."""
        return len(self.roots)

    @property
    def num_outputs(self) -> int:
        """Number P of targets."""
        return self.value.shape[1]

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(getattr(self, name).nbytes for name in _DIMS)

    def moments(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation over all trees.

        Those of a row do not depend, not even by rounding, on the other rows.

        :param X: Inputs, [N, D].
        :returns: Both [N, P].
        """
        X = self._checked(X)
        over_trees = _Moments((len(X), self.num_outputs))
        for _, leaves in self._leaves(X):
            for leaf in leaves:
                over_trees.add(self.value[leaf])
        return over_trees.mean, over_trees.sd()

    def predictions(self, X: ArrayLike) -> np.ndarray:
        """The prediction of each tree.

        :param X: Inputs, [N, D].
        :returns: [T, N, P].
        """
        X = self._checked(X)
        found = np.empty((self.num_trees, len(X), self.num_outputs))
        for trees, leaves in self._leaves(X):
            found[trees] = self.value[leaves]
        return found

    def state(self) -> dict[str, Tensor]:
        """Tensors for :meth:`from_state`, which share the forest's memory."""
        return {
            name: torch.as_tensor(np.asarray(getattr(self, name), dtype, order="C"))
            for name, dtype in _DTYPES.items()
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "Forest":
        """
        :param state: The result of :meth:`state`; it is copied.
        :raises ValueError: If it is no such state, or damaged; evaluating the forest is safe.
        """
        if not isinstance(state, dict) or state.keys() != _DTYPES.keys():
            raise ValueError(f"The state of a forest must be a dict of {', '.join(_DTYPES)}.")
        for name, part in state.items():
            if not isinstance(part, Tensor) or part.dtype != getattr(torch, _DTYPES[name]):
                raise ValueError(f"The state of a forest must hold {name} as {_DTYPES[name]}.")
            # An expanded tensor may be small in a file and huge as an array.
            if part.is_meta or part.layout != torch.strided or not part.is_contiguous():
                raise ValueError(f"The state of a forest must hold all of {name}.")
        arrays = {name: part.detach().cpu().numpy().copy() for name, part in state.items()}
        number = arrays.pop("num_inputs")
        if number.ndim:
            raise ValueError("The state of a forest must hold one num_inputs.")
        return cls(num_inputs=int(number), **arrays)

    def _problem(self) -> str | None:
        """What is wrong with the arrays; None if nothing is."""
        for name, dims in _DIMS.items():
            array = getattr(self, name)
            if array.dtype != _DTYPES[name] or array.ndim != dims:
                return f"{name} is {array.dtype} in {array.ndim} dimensions"
        T, inner, (leaves, P) = len(self.roots), len(self.feature), self.value.shape
        if T < 1 or P < 1 or leaves != inner + T:
            return f"{leaves} leaves of {inner} nodes in {T} trees, {P} targets"
        if self.threshold.shape != (inner,) or self.children.shape != (inner, 2):
            return "feature, threshold and children disagree in their number of nodes"
        if not (np.isfinite(self.threshold).all() and np.isfinite(self.value).all()):
            return "a number is not finite"
        if self.num_inputs < 1:
            return f"{self.num_inputs} inputs"
        if inner and not (self.feature.min() >= 0 and self.feature.max() < self.num_inputs):
            return f"a node looks at another than the {self.num_inputs} inputs"
        places = np.concatenate([self.roots, self.children.ravel()])
        if places.min() < -leaves or places.max() >= inner:
            return "a child does not exist"
        # There are as many places as nodes: if every node has a place, none has two.
        named = np.zeros(leaves + inner, dtype=bool)
        named[places.astype(np.int64) + leaves] = True
        if not named.all():
            return "a node has two parents"
        # Numbers increase along every path, so that it ends.
        numbers = np.arange(inner)[:, None]
        if ((self.children >= 0) & (self.children <= numbers)).any():
            return "a child comes before its parent"
        return None

    def _checked(self, X: ArrayLike) -> np.ndarray:
        X = rounded_inputs(X)
        if X.shape[1] != self.num_inputs:
            raise ValueError(f"X has {X.shape[1]} columns; the forest knows {self.num_inputs}.")
        return X

    def _leaves(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Slices of the trees, and the leaves of all rows in them, [trees, N]."""
        N, D = X.shape
        cells, children = X.ravel(), self.children.ravel()
        step = max(1, _BLOCK // max(1, N))
        for first in range(0, self.num_trees, step):
            roots = self.roots[first : first + step]
            leaves = np.repeat(roots, N)
            walking = np.flatnonzero(leaves >= 0)
            node, row_start = leaves[walking], walking % max(1, N) * D
            while len(walking):
                x = cells.take(row_start + self.feature.take(node))
                node = children.take(2 * node.astype(np.int64) + (x > self.threshold.take(node)))
                leaves[walking] = node  # the last assignment is the leaf
                inner = np.flatnonzero(node >= 0)
                walking, node, row_start = (v.take(inner) for v in (walking, node, row_start))
            yield slice(first, first + len(roots)), ~leaves.reshape(len(roots), N)


class _Moments:
    """Running means and variances per row.

    Source: Welford (1962). Equal numbers have a deviation of exactly 0.

    :param shape: Shape of the numbers, [N, P].
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.count = np.zeros(shape[0], dtype=np.int64)
        self.mean, self._squares = np.zeros(shape), np.zeros(shape)

    def add(self, values: np.ndarray, rows: slice | np.ndarray = slice(None)) -> None:
        """
        :param numpy.ndarray values: Next numbers of M rows, [M, P].
        :param rows: Indices of these rows, all different.
        """
        self.count[rows] += 1
        mean = self.mean[rows]
        away = values - mean
        mean = mean + away / self.count[rows][:, None]
        self.mean[rows] = mean
        self._squares[rows] += away * (values - mean)

    def sd(self) -> np.ndarray:
        return np.sqrt(self._squares / np.maximum(self.count, 1)[:, None])


def _moments_of_others(y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row the weighted mean and standard deviation of the others, both [N, P].

    They are combined from the rows before and after it: subtracting a row from sums over all rows
    would leave rounding errors that depend on it.
    """
    w0, m0, s0 = _moments_before(y, weight)
    w1, m1, s1 = (part[::-1] for part in _moments_before(y[::-1], weight[::-1]))
    share = w1 / (w0 + w1)
    squares = s0 + s1 + (m1 - m0) ** 2 * w0 * share
    return m0 + (m1 - m0) * share, np.sqrt(squares / (w0 + w1))


def _moments_before(y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of weights, [N, 1], means and sums of squares over all earlier rows, [N, P]."""
    weight, nothing = weight[:, None], np.zeros((1, y.shape[1]))
    total, away = np.cumsum(weight, 0), y - y[0]
    mean = np.cumsum(weight * away, 0) / total
    earlier = np.concatenate([nothing, mean[:-1]])
    squares = np.cumsum(weight * (away - earlier) * (away - mean), 0)

    def before(sums: np.ndarray) -> np.ndarray:
        return np.concatenate([nothing[:, : sums.shape[1]], sums[:-1]])

    return before(total), before(y[0] + mean), before(squares)


def _plain(tree) -> dict[str, np.ndarray]:
    """The arrays of one tree of scikit-learn, see :class:`Forest`."""
    children = np.stack([tree.children_left, tree.children_right], 1)
    return _numbered(
        tree.children_left >= 0, tree.feature, tree.threshold, children, tree.value[..., 0]
    )


def _plain_boosted(nodes: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of one tree of histogram gradient boosting."""
    children = np.stack([nodes["left"], nodes["right"]], 1)
    inner = nodes["is_leaf"] == 0
    return _numbered(
        inner, nodes["feature_idx"], nodes["num_threshold"], children, nodes["value"][:, None]
    )


def _leaf(value: float) -> dict[str, np.ndarray]:
    """A tree that consists of one leaf."""
    nothing = np.zeros(1)
    return _numbered(
        np.zeros(1, dtype=bool), nothing, nothing, np.zeros((1, 2)), np.full((1, 1), value)
    )


def _numbered(
    inner: np.ndarray,
    feature: np.ndarray,
    threshold: np.ndarray,
    children: np.ndarray,
    value: np.ndarray,
) -> dict[str, np.ndarray]:
    """The arrays of a tree from those of all its nodes, of which some are inner ones."""
    number = np.where(inner, np.cumsum(inner) - 1, -np.cumsum(~inner)).astype(np.int32)
    exact = threshold[inner]
    # Rounded down, so that the same float32 numbers are at most the threshold.
    threshold = exact.astype(np.float32)
    threshold = np.where(threshold > exact, np.nextafter(threshold, -_LARGEST), threshold)
    return {
        "roots": number[:1].copy(),  # a view would keep the whole array
        "feature": feature[inner].astype(np.int32),
        "threshold": threshold,
        "children": number[children[inner]],
        "value": value[~inner],
    }


def _joined(trees: list[dict]) -> dict[str, np.ndarray]:
    """The arrays of a forest from those of its trees, with nodes numbered anew."""
    inner = leaves = 0
    for tree in trees:
        for name in ("roots", "children"):
            tree[name] += np.where(tree[name] >= 0, inner, -leaves).astype(np.int32)
        inner, leaves = inner + len(tree["feature"]), leaves + len(tree["value"])
    if max(inner, leaves) > np.iinfo(np.int32).max:
        raise ValueError(f"{leaves} leaves are too many: lower num_trees or max_samples.")
    return {name: np.concatenate([tree.pop(name) for tree in trees]) for name in tuple(trees[0])}


def rounded_inputs(X: ArrayLike) -> np.ndarray:
    """Inputs as the trees compare them, in float32, [N, D].

    :param X: Inputs, [N, D].
    :raises ValueError: If they are not finite or not a matrix.
    """
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"X must have rows and columns, but its shape is {X.shape}.")
    X = X if X.dtype == np.float32 else X.astype(np.float64)
    if not np.isfinite(X).all():
        raise ValueError("X must be finite.")
    # Trees only compare, so numbers beyond the range of float32 may be clipped.
    return np.ascontiguousarray(np.clip(X, -_LARGEST, _LARGEST), dtype=np.float32)


def _checked_targets(y: ArrayLike) -> np.ndarray:
    y = np.asarray(y, dtype=np.float64)
    if y.ndim not in (1, 2) or 0 in y.shape[1:]:
        raise ValueError(f"y must be [N] or [N, P], but its shape is {y.shape}.")
    if not np.isfinite(y).all():
        raise ValueError("y must be finite.")
    return np.ascontiguousarray(y.reshape(len(y), -1) if len(y) else y.reshape(0, 1))


def _checked_weights(weight: ArrayLike | None, N: int) -> np.ndarray:
    """[N], at most 1: trees do not depend on their scale."""
    if weight is None:
        return np.ones(N)
    weight = np.asarray(weight, dtype=np.float64)
    if weight.shape != (N,):
        raise ValueError(f"sample_weight must be [{N}], but its shape is {weight.shape}.")
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError("sample_weight must be finite and not negative.")
    return weight / max(weight.max(initial=0), np.finfo(np.float64).tiny)
