"""From a file to what trains and what is held out."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import skew

# The tables first: what they need brings all the rest.
from pyro_dgp.table.packages import pd  # isort: split

from pyro_dgp.table.cells import Conventions, typed
from pyro_dgp.table.classes import label
from pyro_dgp.table.columns import Columns, names_of_rows
from pyro_dgp.table.shared import note, rows_to_score, rows_with_targets, table_of

__all__ = ["Prepared", "prepared"]

# Rows held out may have equals in training by chance, as small numbers do, but not so many.
_MANY_COPIES = 0.1
# Of a target that a logarithm would become: its skewness, and the rows that it takes to tell.
_SKEWED, _ROWS_FOR_SKEWNESS = 2.0, 30


@dataclass(frozen=True)
class Prepared:
    """A table that is ready for a fit.

    :param Columns columns: What its columns mean.
    :param X: Inputs of training rows, [N, D].
    :param y: Their targets, [N] or [N, P], or classes.
    :param weights: How much they count, [N], or None.
    :param held_out: Other rows: inputs as they are in the table, and targets.
    :param dict facts: What there is to say of all this, by what it is of.
    """

    columns: Columns
    X: pd.DataFrame
    y: np.ndarray
    weights: np.ndarray | None
    held_out: pd.DataFrame
    facts: dict[str, str]


def prepared(args: argparse.Namespace) -> Prepared:
    """Reads the tables of ``pyro-dgp fit``, and tells what is noticed.

    :raises ValueError: If a column is not what it must be.
    """
    frame, names, conventions = _training_table(args)
    classes = _is_classification(args, frame)
    train, test = _split(args, frame, classes)
    columns = Columns.of(frame.iloc[train], args.target, names, conventions, classes)
    held_out = frame.iloc[test][[*columns.used, *columns.targets]].reset_index(drop=True)
    if args.test is not None:
        held_out = rows_to_score(columns, *table_of(args, args.test))
    rows = frame.iloc[train].reset_index(drop=True)
    X, y = columns.inputs(rows), columns.target_values(rows)
    weights = None if args.weights is None else _weights(rows[args.weights])
    if args.transform and (y <= 0).any():
        raise ValueError(
            f"--transform log is for positive targets, but {int((y <= 0).sum())} of {y.size} are "
            f"not (the smallest is {y.min():g})."
        )
    if columns.constant:
        note([f"Left out, as they do not vary: {', '.join(columns.constant)}."])
    note([*_hints(args, columns, y), *_copies(columns, rows, held_out)])
    facts = _facts(args, columns, names, len(X), len(held_out))
    return Prepared(columns, X, y, weights, held_out, facts)


def _training_table(args: argparse.Namespace) -> tuple[pd.DataFrame, list[str], Conventions]:
    """Rows that have targets, columns that only name rows, and how numbers are written."""
    table, conventions = table_of(args, args.table)
    weights = [] if args.weights is None else [args.weights]
    for name in (*args.drop, *weights):
        if name not in table.frame:
            raise ValueError(
                f"There is no column '{name}'. The columns are {', '.join(table.frame)}."
            )
        if name in args.target:
            raise ValueError(f"'{name}' is the target, and cannot be something else, too.")
    table.frame = table.frame.drop(columns=args.drop)
    frame, conventions, notes = typed(
        table, conventions, numeric=[*args.numeric, *weights], categorical=args.categorical
    )
    chosen = {*args.target, *args.numeric, *args.categorical, *weights}
    names = {n: why for n, why in names_of_rows(frame).items() if n not in chosen}
    frame, left_out = rows_with_targets(frame, args.target)
    told = [
        f"Column '{n}' is left out: {why} (--numeric, --categorical)." for n, why in names.items()
    ]
    note([*notes, *left_out, *told])
    return frame, [*names, *weights], conventions


def _is_classification(args: argparse.Namespace, frame: pd.DataFrame) -> bool:
    """Whether the target is one of texts, or of two numbers only; says so."""
    if len(args.target) > 1 or args.target[0] not in frame:
        return False
    name = args.target[0]
    column = frame[name]
    two = pd.api.types.is_float_dtype(column) and column.nunique() == 2
    if column.dtype != object and not (two and name not in args.numeric):
        return False
    some = ", ".join(label(v) for v in sorted(column.dropna().unique())[:5])
    more = ", ..." if column.nunique() > 5 else ""
    numbers = f" (--numeric '{name}' for densities of a number)" if two else ""
    note([f"Classification: '{name}' has the {column.nunique()} classes {some}{more}{numbers}."])
    if args.transform:
        raise ValueError(f"--transform is for targets that are numbers, but '{name}' has classes.")
    return True


def _split(
    args: argparse.Namespace, frame: pd.DataFrame, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Training rows and rows held out, sorted; of each class one trains at least."""
    order = np.random.default_rng(args.seed).permutation(len(frame))
    share = 0.0 if args.test is not None else args.test_fraction
    test, train = np.split(order, [round(share * len(frame))])
    if classes:
        targets = frame[args.target[0]].to_numpy()
        alone = ~np.isin(targets[test].astype(str), targets[train].astype(str))
        train, test = np.concatenate([train, test[alone]]), test[~alone]
    return np.sort(train), np.sort(test)


def _weights(column) -> np.ndarray:
    weights = column.to_numpy()
    if not (weights >= 0).all():
        raise ValueError(f"--weights {column.name}: a weight is negative or missing.")
    return weights


def _hints(args: argparse.Namespace, columns: Columns, y: np.ndarray) -> list[str]:
    """On targets with a long tail."""
    if columns.classes or y.ndim > 1 or args.transform or args.likelihood or y.min() <= 0:
        return []
    if len(y) < _ROWS_FOR_SKEWNESS or skew(y) < _SKEWED or abs(skew(np.log(y))) > _SKEWED / 2:
        return []
    return [
        f"'{columns.targets[0]}' is positive and has a long tail: --transform log models its "
        "logarithm, and no interval reaches below 0."
    ]


def _copies(columns: Columns, train: pd.DataFrame, held_out: pd.DataFrame) -> list[str]:
    """On rows held out that training sees, too, as in tables with copies."""
    names = [*columns.used, *columns.targets]
    seen = pd.util.hash_pandas_object(train[names], index=False)
    same = pd.util.hash_pandas_object(held_out[names], index=False).isin(seen)
    if not same.mean() > _MANY_COPIES:
        return []
    return [
        f"{same.sum()} of {len(same)} rows held out have an equal among the training rows: scores "
        "of them flatter. Leave out copies, or give rows of another time by --test."
    ]


def _facts(args: argparse.Namespace, columns: Columns, names, rows: int, held_out: int) -> dict:
    """What there is to say of a table before training, by what it is of."""
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
