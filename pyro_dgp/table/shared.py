"""Common parts of the commands on tables: reading, notes, models and their tasks."""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyro_dgp.table.packages import pd  # isort: split

from pyro_dgp._files import read_tensors
from pyro_dgp.table import classes, densities
from pyro_dgp.table.columns import Columns
from pyro_dgp.table.frames import column as column_of
from pyro_dgp.table.frames import columns as columns_of
from pyro_dgp.table.frames import rows as rows_of
from pyro_dgp.table.held_out import from_plain
from pyro_dgp.table.reading.cells import Conventions
from pyro_dgp.table.reading.files import read_table
from pyro_dgp.table.reading.raw import Table
from pyro_dgp.table.task import Model, Task

__all__ = [
    "TableModel", "loaded", "note", "rows_to_score", "rows_with_targets", "scored_rows", "table_of",
    "task_of",
]  # fmt: skip


@dataclass(frozen=True)
class TableModel:
    """A model of a table.

    :param model: A fitted regressor or classifier.
    :param Columns columns: The columns of the table.
    :param dict notes: Notes of ``pyro-dgp fit``: ``facts``, texts by topic; ``held_out``, rows as
        of :mod:`~pyro_dgp.table.held_out`; ``scores`` of the report.
    """

    model: Model
    columns: Columns
    notes: dict

    @property
    def task(self) -> Task:
        """What is predicted, and how it is scored."""
        return task_of(self.columns)

    @property
    def targets(self) -> list[str]:
        """Names of the targets."""
        return self.columns.targets


def task_of(columns: Columns) -> Task:
    """The task: :mod:`~pyro_dgp.table.densities` or :mod:`~pyro_dgp.table.classes`."""
    return densities if columns.classes is None else classes


def table_of(args: argparse.Namespace, path: str) -> tuple[Table, Conventions]:
    """The table as it is in the file, and the conventions given by arguments."""
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
    """Prints notes to the standard error."""
    for one in notes:
        print(f"pyro-dgp: {one}", file=sys.stderr)


def loaded(path: str, device: str) -> TableModel:
    """A model of a table from a file."""
    kind = read_tensors(Path(path), "model of pyro_dgp").get("class")
    estimator = (classes if kind == classes.ESTIMATOR.__name__ else densities).ESTIMATOR
    model = estimator.load(path, device=device)
    notes = dict(model.extra_)
    if "columns" not in notes:
        raise ValueError(
            f"{path} was not made by `pyro-dgp fit`: it does not say what columns are."
        )
    try:
        own = TableModel(model, Columns(**notes.pop("columns")), notes)
    except TypeError as error:
        raise ValueError(
            f"{path} was made by another version of `pyro-dgp fit`: fit it anew."
        ) from error
    parts = (notes.get(name, {}) for name in ("facts", "held_out", "scores"))
    if own.task.ESTIMATOR is not estimator or not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{path} is damaged. Fit it anew.")
    return own


def rows_with_targets(frame: pd.DataFrame, targets: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows in which no target is missing, and notes."""
    known = [name for name in targets if name in frame.columns]
    missing = columns_of(frame, known).isna()
    incomplete = missing.any(axis=1)
    if not incomplete.any():
        return frame, []
    if incomplete.all():
        empty = [name for name in known if column_of(missing, name).all()]
        if empty:
            raise ValueError(f"The target '{empty[0]}' is missing in all rows.")
        raise ValueError(f"In all rows one of the targets {', '.join(known)} is missing.")
    counts = ", ".join(f"'{n}'" for n in known if column_of(missing, n).any())
    number = int(incomplete.sum())
    notes = [f"{number} of {len(frame)} rows without the target {counts} are left out."]
    return rows_of(frame, ~incomplete), notes


def rows_to_score(columns: Columns, table: Table, conventions: Conventions) -> pd.DataFrame:
    """The rows with targets, and with classes that the model knows."""
    frame, notes = columns.typed(table, conventions)
    columns.target_values(frame)
    note([*notes, *columns.remarks(frame)])
    frame, left_out = rows_with_targets(frame, columns.targets)
    note(left_out)
    if columns.classes is not None:
        known = column_of(frame, columns.targets[0]).isin(columns.classes)
        if not known.any():
            raise ValueError(f"No row has one of the classes of the target '{columns.targets[0]}'.")
        if not known.all():
            number = f"{(~known).sum()} of {len(known)} rows"
            note([f"{number} with classes that the model does not know are left out."])
        frame = rows_of(frame, known)
    return frame


def scored_rows(args: argparse.Namespace, own: TableModel) -> tuple[pd.DataFrame, str]:
    """The rows of the given table, or those kept in the file of the model, and a description."""
    if args.table is not None:
        name = "the standard input" if args.table == "-" else Path(args.table).name
        frame = rows_to_score(own.columns, *table_of(args, args.table))
        return frame, f"row{'s' * (len(frame) != 1)} of {name}"
    if not own.notes.get("held_out"):
        raise ValueError(f"{args.model} keeps no rows that were held out: name a table.")
    try:
        frame = from_plain(own.notes["held_out"])
        own.columns.inputs(frame)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{args.model} is damaged: {error}. Fit it anew.") from error
    all_of_them = own.notes.get("scores", {}).get("rows", len(frame))
    if all_of_them > len(frame):
        note([f"The model keeps {len(frame)} of the {all_of_them} rows that were held out."])
    return frame, "held-out rows"
