"""Regression trees as plain arrays, which a file can hold without code.

Growing them needs scikit-learn: ``pip install 'pyro_dgp[sklearn]'``.
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
# Rows times trees that walk down together: many for NumPy, few for the processor's cache.
_BLOCK = 2**14
# The parts of a state, and the arrays' number of dimensions.
_DTYPES = {
    "num_inputs": "int64", "roots": "int32", "feature": "int32", "threshold": "float32",
    "children": "int32", "value": "float64",
}  # fmt: skip
_DIMS = {"roots": 1, "feature": 1, "threshold": 1, "children": 2, "value": 2}


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose mean predicts.

    :meth:`fitted` grows extremely randomised trees, each from a bootstrap sample of the rows: those
    of scikit-learn's ``ExtraTreesRegressor(bootstrap=True)``. :meth:`of_boosting` holds what
    gradient boosting has learned. Inputs are rounded to float32, as scikit-learn's trees do, so
    that float32 thresholds part them in the same way.

    All I inner nodes of the T trees are numbered from 0 up, parents before children, and all L
    leaves from -1 down: leaf j is ``~j``. An inner node takes 16 bytes and a leaf 8 P.

    Sources: Geurts, Ernst and Wehenkel (2006) for the trees; Breiman (1996), "Bagging predictors"
    and "Out-of-bag estimation".

    :param int num_inputs: D.
    :param numpy.ndarray roots: The trees' first nodes, [T], int32.
    :param numpy.ndarray feature: Which input an inner node looks at, [I], int32.
    :param numpy.ndarray threshold: Rows up to it go to the first child, [I], float32.
    :param numpy.ndarray children: [I, 2], int32.
    :param numpy.ndarray value: What the leaves predict, [L, P], float64.
    :raises ValueError: If these are not T trees.
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
        """Grows a forest, and has each row predicted by the trees that have not seen it.

        A row's own target does not enter its moments. A row in the bags of all trees, rare unless
        trees or rows are few, gets the moments of the other rows' targets.

        :param X: Inputs, [N, D].
        :param y: Targets, [N] or [N, P], of about unit variance: nodes whose variance is below
            2e-16 are not split, and of several targets the one that varies most counts most.
        :param int num_trees: T.
        :param int min_samples_leaf: Least number of different rows in a leaf.
        :param int max_samples: Rows that are drawn for a tree, with replacement, at most N; None
            for N.
        :param sample_weight: How much a row counts within the trees, [N]; bags are drawn evenly
            from the rows whose weight is positive.
        :param int seed: For the same forest every time.
        :param int n_jobs: Threads; they do not change the forest.
        :returns: The forest, and the mean and the standard deviation over the trees that have not
            seen the row, both [N, P]; compare :meth:`moments`.
        :raises ValueError: If fewer than two rows count, shapes disagree, numbers are not finite,
            or a parameter is out of range.
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
            # which weigh much would be outside hardly any bag.
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
            # What a thread has freed stays its own, a gigabyte for many rows.
            run = map if n_jobs == 1 else pool.map
            # As many at a time as there are threads: values wait for their turn, which is that of
            # the seeds.
            for some_seeds in np.array_split(seeds, -(-num_trees // n_jobs)):
                for tree, rows, values in run(grow, some_seeds):
                    trees.append(tree)
                    outside.add(values, rows)
        mean, sd = outside.mean, outside.sd()
        never = np.flatnonzero(outside.count == 0)
        if len(never):
            place = np.searchsorted(some, never)  # only rows that count are in bags
            others = _moments_of_others(y[some], weight[some])
            mean[never], sd[never] = (moment[place] for moment in others)
        return cls(num_inputs=X.shape[1], **_joined(trees)), (mean, sd)

    @classmethod
    def of_boosting(cls, models: Sequence) -> "Forest":
        """The mean of boosted models, whose trees add up, as a forest, whose trees are averaged.

        Inputs rounded to float32 must have been what the models were fitted to.

        :param models: Fitted ``HistGradientBoostingRegressor`` with the squared error as loss, of
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
        return len(self.roots)

    @property
    def num_outputs(self) -> int:
        return self.value.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _DIMS)

    def moments(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation over all trees.

        A row's do not depend, not even by rounding, on which other rows come with it.

        :param X: [N, D].
        :returns: Both [N, P].
        """
        X = self._checked(X)
        over_trees = _Moments((len(X), self.num_outputs))
        for _, leaves in self._leaves(X):
            for leaf in leaves:
                over_trees.add(self.value[leaf])
        return over_trees.mean, over_trees.sd()

    def predictions(self, X: ArrayLike) -> np.ndarray:
        """What each tree predicts.

        :param X: [N, D].
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
        :param state: Of :meth:`state`; it is copied.
        :raises ValueError: If it is none, or damaged; whatever passes can be walked down safely.
        """
        if not isinstance(state, dict) or state.keys() != _DTYPES.keys():
            raise ValueError(f"The state of a forest must be a dict of {', '.join(_DTYPES)}.")
        for name, part in state.items():
            if not isinstance(part, Tensor) or part.dtype != getattr(torch, _DTYPES[name]):
                raise ValueError(f"The state of a forest must hold {name} as {_DTYPES[name]}.")
            # A tensor that repeats itself may be small in a file and huge as an array.
            if part.is_meta or part.layout != torch.strided or not part.is_contiguous():
                raise ValueError(f"The state of a forest must hold all of {name}.")
        arrays = {name: part.detach().cpu().numpy().copy() for name, part in state.items()}
        number = arrays.pop("num_inputs")
        if number.ndim:
            raise ValueError("The state of a forest must hold one num_inputs.")
        return cls(num_inputs=int(number), **arrays)

    def _problem(self) -> str | None:
        """What is wrong with the arrays."""
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
        # There are as many places as nodes: if none is left over, none is in two places.
        named = np.zeros(leaves + inner, dtype=bool)
        named[places.astype(np.int64) + leaves] = True
        if not named.all():
            return "a node has two parents"
        # Numbers grow along a way, so that it ends.
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
        """Some trees, and the leaves of all rows in them, [trees, N]."""
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
                leaves[walking] = node  # the last one stays
                inner = np.flatnonzero(node >= 0)
                walking, node, row_start = (v.take(inner) for v in (walking, node, row_start))
            yield slice(first, first + len(roots)), ~leaves.reshape(len(roots), N)


class _Moments:
    """Means and variances of numbers that come one after the other, row by row.

    Source: Welford (1962). The same number over and over has a deviation of exactly 0.

    :param shape: [N, P].
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.count = np.zeros(shape[0], dtype=np.int64)
        self.mean, self._squares = np.zeros(shape), np.zeros(shape)

    def add(self, values: np.ndarray, rows: slice | np.ndarray = slice(None)) -> None:
        """
        :param numpy.ndarray values: [M, P].
        :param rows: Where they belong; M different ones.
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

    From the rows before it and those after it: to take a row off the sums over all of them would
    leave a trace of it.
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
    """The arrays of one tree of histograms."""
    children = np.stack([nodes["left"], nodes["right"]], 1)
    inner = nodes["is_leaf"] == 0
    return _numbered(
        inner, nodes["feature_idx"], nodes["num_threshold"], children, nodes["value"][:, None]
    )


def _leaf(value: float) -> dict[str, np.ndarray]:
    """A tree that is a leaf."""
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
    # Downwards: then just as many float32 numbers are up to it.
    threshold = exact.astype(np.float32)
    threshold = np.where(threshold > exact, np.nextafter(threshold, -_LARGEST), threshold)
    return {
        "roots": number[:1].copy(),  # a view would keep all of it
        "feature": feature[inner].astype(np.int32),
        "threshold": threshold,
        "children": number[children[inner]],
        "value": value[~inner],
    }


def _joined(trees: list[dict]) -> dict[str, np.ndarray]:
    """One forest from trees, whose nodes are numbered anew."""
    inner = leaves = 0
    for tree in trees:
        for name in ("roots", "children"):
            tree[name] += np.where(tree[name] >= 0, inner, -leaves).astype(np.int32)
        inner, leaves = inner + len(tree["feature"]), leaves + len(tree["value"])
    if max(inner, leaves) > np.iinfo(np.int32).max:
        raise ValueError(f"{leaves} leaves are too many: lower num_trees or max_samples.")
    return {name: np.concatenate([tree.pop(name) for tree in trees]) for name in tuple(trees[0])}


def rounded_inputs(X: ArrayLike) -> np.ndarray:
    """As trees see them: float32, [N, D].

    :raises ValueError: If they are not finite or no matrix.
    """
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"X must have rows and columns, but its shape is {X.shape}.")
    X = X if X.dtype == np.float32 else X.astype(np.float64)
    if not np.isfinite(X).all():
        raise ValueError("X must be finite.")
    # Trees only compare: whatever float32 cannot hold is as good as its largest number.
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
