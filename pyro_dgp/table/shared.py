"""What the commands on tables have in common: reading, notes, reports."""

import argparse
import sys
from collections.abc import Iterable

import numpy as np

from pyro_dgp.table.packages import pd  # isort: split

from pyro_dgp.sklearn import LatentDGPRegressor
from pyro_dgp.table.cells import Conventions
from pyro_dgp.table.columns import Columns
from pyro_dgp.table.reading import Table, read_table

__all__ = ["loaded", "note", "print_report", "rows_to_score", "rows_with_targets", "table_of"]


def table_of(args: argparse.Namespace, path: str) -> tuple[Table, Conventions]:
    """The table as it is written, and how its numbers and dates are, as far as arguments say."""
    separator = {"tab": "\t", "\\t": "\t", "space": " "}.get(args.separator, args.separator)
    if separator is not None and len(separator) != 1:
        raise ValueError(f"--separator must be one character, or tab: {args.separator!r}.")
    if args.skip_rows is not None and args.skip_rows < 0:
        raise ValueError(f"--skip-rows must not be negative: {args.skip_rows}.")
    table = read_table(
        path, separator=separator, encoding=args.encoding, skip_rows=args.skip_rows,
        sheet=args.sheet,
    )  # fmt: skip
    note(table.notes)
    return table, Conventions(args.decimal, args.dates, args.missing)


def note(notes: Iterable) -> None:
    """Tells what has been noticed, on the standard error."""
    for one in notes:
        print(f"pyro-dgp: {one}", file=sys.stderr)


def loaded(path: str, device: str) -> tuple[LatentDGPRegressor, Columns]:
    """A model and what it knows of columns."""
    model = LatentDGPRegressor.load(path, device=device)
    if "columns" not in model.extra_:
        raise ValueError(
            f"{path} was not made by `pyro-dgp fit`: it does not say what columns are."
        )
    try:
        return model, Columns(**model.extra_["columns"])
    except TypeError as error:
        raise ValueError(
            f"{path} was made by another version of `pyro-dgp fit`: fit it anew."
        ) from error


def rows_with_targets(frame: pd.DataFrame, targets: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows in which no target is missing, and notes."""
    known = [name for name in targets if name in frame.columns]
    missing = frame[known].isna()
    if not missing.any(axis=None):
        return frame, []
    if missing.any(axis=1).all():
        raise ValueError(f"The target '{known[0]}' is missing in all rows.")
    counts = ", ".join(f"'{n}'" for n in known if missing[n].any())
    number = int(missing.any(axis=1).sum())
    notes = [f"{number} of {len(frame)} rows without the target {counts} are left out."]
    return frame[~missing.any(axis=1)].reset_index(drop=True), notes


def rows_to_score(
    columns: Columns, table: Table, conventions: Conventions
) -> tuple[pd.DataFrame, np.ndarray]:
    """Inputs and targets, of the rows that have them."""
    frame, notes = columns.typed(table, conventions)
    columns.target_values(frame)
    note([*notes, *columns.remarks(frame)])
    frame, left_out = rows_with_targets(frame, columns.targets)
    note(left_out)
    return columns.inputs(frame), columns.target_values(frame)


def print_report(scores: dict[str, dict], num_rows: int) -> None:
    """Of :func:`~pyro_dgp.table.report.report`."""
    print(f"On {num_rows} held-out rows          log-lik.      CRPS      RMSE   coverage of")
    print(" " * 56 + "50%   90%   95%")
    for name, s in scores.items():
        density = "       -" if s["log_likelihood"] is None else f"{s['log_likelihood']:8.4g}"
        shares = "".join(f"{share:6.0%}" for share in s["coverage"].values())
        print(f"{name:<28}{density}{s['crps']:10.4g}{s['rmse']:10.4g}{shares}")
