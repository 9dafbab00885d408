"""From a file with a table to training rows and held-out rows."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import skew

# First, as its import error says how to install everything needed.
from pyro_dgp.table.packages import pd  # isort: split

from pyro_dgp.table.columns import Columns, names_of_rows
from pyro_dgp.table.frames import column, hashes
from pyro_dgp.table.frames import columns as columns_of
from pyro_dgp.table.frames import rows as rows_of
from pyro_dgp.table.labels import without
from pyro_dgp.table.reading.cells import Conventions, typed
from pyro_dgp.table.shared import note, rows_to_score, rows_with_targets, table_of

__all__ = ["Prepared", "prepared"]

# Likelihoods of classes.
_OF_CLASSES = ("bernoulli", "categorical", "ordinal")
# Share of held-out rows with an equal training row that is more than chance, as of small numbers.
_MANY_COPIES = 0.1
# Skewness from which a logarithm is suggested, and the least number of rows for that.
_SKEWED, _ROWS_FOR_SKEWNESS = 2.0, 30


@dataclass(frozen=True)
class Prepared:
    """A table prepared for a fit.

    :param Columns columns: The columns of the table.
    :param pandas.DataFrame X: Inputs of the training rows, [N, D].
    :param numpy.ndarray y: Targets of the training rows, [N] or [N, P], or classes.
    :param weights: Weights of the training rows, [N], or None.
    :param pandas.DataFrame held_out: Held-out rows: input columns of the table, and targets.
    :param dict facts: Descriptions of the table for the report, by topic.
    """

    columns: Columns
    X: pd.DataFrame
    y: np.ndarray
    weights: np.ndarray | None
    held_out: pd.DataFrame
    facts: dict[str, str]


def prepared(args: argparse.Namespace) -> Prepared:
    """Reads the tables of ``pyro-dgp fit``, and prints notes.

    :param args: Arguments of ``pyro-dgp fit``.
    :raises ValueError: If a column is not as required.
    """
    frame, names, conventions, classes = _training_table(args)
    train, test = _split(args, frame, classes)
    columns = Columns.of(frame.iloc[train], args.target, names, conventions, classes)
    if classes:
        note([_classification(args, columns)])
    held_out = frame.iloc[test][[*columns.used, *columns.targets]].reset_index(drop=True)
    if args.test is not None:
        held_out = rows_to_score(columns, *table_of(args, args.test))
    rows = frame.iloc[train].reset_index(drop=True)
    X, y = columns.inputs(rows), columns.target_values(rows)
    if args.likelihood == "ordinal":
        _check_order(columns, y)
    if args.transform:
        _check_positive(y, columns.target_values(held_out) if len(held_out) else y[:0])
    if columns.constant:
        left = [(n, column(rows, n)) for n in columns.constant]
        rare = [n for n, c in left if c.dtype == object and c.nunique() > 1]
        same = [n for n in columns.constant if n not in rare]
        note([f"Left out, as they do not vary: {', '.join(same)}."] if same else [])
        note([f"Left out, as their texts are too rare: {', '.join(rare)}."] if rare else [])
    note([*_hints(args, columns, y), *_copies(columns, rows, held_out)])
    weights = None if args.weights is None else rows[args.weights].to_numpy()
    facts = _facts(args, columns, names, len(X), len(held_out))
    return Prepared(columns, X, y, weights, held_out, facts)


def _training_table(args: argparse.Namespace) -> tuple[pd.DataFrame, list[str], Conventions, bool]:
    """Rows with targets and positive weights, names of columns that only identify rows, the
    conventions of the table, and whether the target has classes."""
    if len(set(args.target)) < len(args.target):
        raise ValueError(f"--target {' '.join(args.target)}: a column is named twice.")
    table, given = table_of(args, args.table)
    weights = [] if args.weights is None else [args.weights]
    for name in (*args.drop, *weights):
        if name not in table.frame:
            raise ValueError(
                f"There is no column '{name}'. The columns are {', '.join(table.frame)}."
            )
        if name in args.target:
            raise ValueError(f"'{name}' is the target, and cannot be something else, too.")
    table.frame = table.frame.drop(columns=args.drop)
    numeric = [*args.numeric, *weights]
    frame, conventions, notes = typed(table, given, numeric=numeric, categorical=args.categorical)
    classes = _is_classification(args, frame)
    if classes:  # in the spelling of the table
        target = args.target[0]
        part = replace(table, frame=table.frame[[target]])
        texts, _, _ = typed(part, given, usual=conventions, categorical=[target])
        spelled = without(column(texts, target), given.missing)
        if frame[target].dtype != object:  # numbers, of which some are missing
            spelled = spelled.where(frame[target].notna())
        frame[target] = spelled
    chosen = {*args.target, *numeric, *args.categorical}
    names = {n: why for n, why in names_of_rows(frame).items() if n not in chosen}
    frame, left_out = rows_with_targets(frame, args.target)
    told = [
        f"Column '{n}' is left out: {why} (--numeric, --categorical)." for n, why in names.items()
    ]
    note([*notes, *left_out, *told])
    if weights:
        frame = _that_count(frame, weights[0])
    return frame, [*names, *weights], conventions, classes


def _is_classification(args: argparse.Namespace, frame: pd.DataFrame) -> bool:
    """Whether the target has texts or two different numbers, or a likelihood of classes."""
    if len(args.target) > 1 or args.target[0] not in frame:
        return False
    target = column(frame, args.target[0])
    if target.dtype == object or args.likelihood in _OF_CLASSES:
        return True
    two = pd.api.types.is_float_dtype(target) and target.nunique() == 2
    of_numbers = args.target[0] in args.numeric or args.transform or args.likelihood
    return bool(two and not of_numbers)


def _classification(args: argparse.Namespace, columns: Columns) -> str:
    name, classes = columns.targets[0], columns.classes or []
    if args.transform:
        raise ValueError(f"--transform is for targets that are numbers, but '{name}' has classes.")
    some = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
    numbers = f" (--numeric '{name}' for densities of a number)" if len(classes) == 2 else ""
    return f"Classification: '{name}' has the {len(classes)} classes {some}{numbers}."


def _split(
    args: argparse.Namespace, frame: pd.DataFrame, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of training rows and held-out rows, sorted; each class has a training row."""
    order = np.random.default_rng(args.seed).permutation(len(frame))
    share = 0.0 if args.test is not None else args.test_fraction
    test, train = np.split(order, [round(share * len(frame))])
    if not len(train):
        raise ValueError(
            f"--test-fraction {share:g}: no row would be left for training, of {len(frame)}."
        )
    if classes:
        targets = frame[args.target[0]].to_numpy()
        alone = ~np.isin(targets[test].astype(str), targets[train].astype(str))
        train, test = np.concatenate([train, test[alone]]), test[~alone]
    return np.sort(train), np.sort(test)


def _that_count(frame: pd.DataFrame, weights: str) -> pd.DataFrame:
    """The rows with a positive weight."""
    values = column(frame, weights)
    if not (values >= 0).all():
        raise ValueError(f"--weights {weights}: a weight is negative or missing.")
    some = values > 0
    if not some.any():
        raise ValueError(f"--weights {weights}: all weights are 0.")
    if not some.all():
        note([f"{(~some).sum()} of {len(frame)} rows have the weight 0, and are left out."])
    return rows_of(frame, some)


def _check_order(columns: Columns, y: np.ndarray) -> None:
    """Classes are in the order of whole numbers or of the alphabet, also in a model's file."""
    order = np.unique(y).astype(str).tolist()
    if order != [c for c in columns.classes or [] if c in order]:
        raise ValueError(
            f"--likelihood ordinal: the classes would have the order {', '.join(order)}, that of "
            "the alphabet. Number them: 1, 2, 3, ..."
        )


def _check_positive(train: np.ndarray, held_out: np.ndarray) -> None:
    y = np.concatenate([train, held_out])
    if (y <= 0).any():
        raise ValueError(
            f"--transform log is for positive targets, but {int((y <= 0).sum())} of {y.size} are "
            f"not (the smallest is {y.min():g})."
        )


def _hints(args: argparse.Namespace, columns: Columns, y: np.ndarray) -> list[str]:
    """Hints about targets with a long tail."""
    if columns.classes or y.ndim > 1 or args.transform or args.likelihood or y.min() <= 0:
        return []
    if len(y) < _ROWS_FOR_SKEWNESS or np.ptp(y) < 1e-9 * y.max() or skew(y) < _SKEWED:
        return []
    if abs(skew(np.log(y))) > _SKEWED / 2:
        return []
    return [
        f"'{columns.targets[0]}' is positive and has a long tail: --transform log models its "
        "logarithm, and no interval reaches below 0."
    ]


def _copies(columns: Columns, train: pd.DataFrame, held_out: pd.DataFrame) -> list[str]:
    """A note on held-out rows that are equal to training rows, as in tables with copies."""
    names = [*columns.used, *columns.targets]
    same = hashes(columns_of(held_out, names)).isin(hashes(columns_of(train, names)))
    if not same.mean() > _MANY_COPIES:
        return []
    return [
        f"{same.sum()} of {len(same)} rows held out have an equal among the training rows: scores "
        "of them flatter. Leave out copies, or give rows of another time by --test."
    ]


def _facts(
    args: argparse.Namespace, columns: Columns, names: list[str], rows: int, held_out: int
) -> dict:
    """Descriptions of a table for the report, by topic."""
    kinds = {"numbers": columns.numbers, "dates": columns.dates, "texts": columns.categories}
    counts = ", ".join(f"{len(own)} of {kind}" for kind, own in kinds.items() if own)
    inputs = columns.num_inputs
    facts = {
        "table": Path(args.table).name if args.table != "-" else "standard input",
        "rows": f"{rows + (0 if args.test else held_out)} rows, {held_out} held out",
        "inputs": f"{inputs} inputs from the columns: {counts}",
        "columns": ", ".join(columns.used),
    }
    left_out = [*columns.constant, *names, *args.drop]
    return facts | ({"left out": ", ".join(left_out)} if left_out else {})
