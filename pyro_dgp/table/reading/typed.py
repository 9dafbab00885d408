"""Files that define the types of their cells: workbooks and Parquet."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pyro_dgp.table.labels import EXACT
from pyro_dgp.table.packages import pd
from pyro_dgp.table.reading.raw import (
    NUM_LOOKED_AT,
    Table,
    least_width,
    leave_out_nameless,
    num_named,
    usual_width,
)

__all__ = ["of_parquet", "of_workbook"]

_Read = TypeVar("_Read")


def of_parquet(path: Path, content: bytes) -> Table:
    """The table of a Parquet file of that name, with these contents."""
    frame = _parsed(path, "Parquet", _parquet_frame, content)
    return Table(frame, str(path), np.arange(len(frame)) + 1)


def _parquet_frame(content: io.BytesIO) -> pd.DataFrame:
    import pyarrow
    from pyarrow.parquet import read_table

    table = read_table(content)
    # As floats, which are the default where some are missing, long codes would lose their last
    # digits.
    exact = {pyarrow.int64(): pd.Int64Dtype(), pyarrow.uint64(): pd.UInt64Dtype()}
    frame = _without_index(table.to_pandas(types_mapper=exact.get))
    # Only texts are read as categories; of codes, the file says that they were.
    known = (table.schema.pandas_metadata or {}).get("columns", [])
    codes = {column["name"] for column in known if column["pandas_type"] == "categorical"}
    return frame.astype({name: "category" for name in frame.columns if str(name) in codes})


def _without_index(frame: pd.DataFrame) -> pd.DataFrame:
    """The levels of a saved index that have names become columns; the others are row numbers."""
    named = [name for name in frame.index.names if name is not None]
    others = [i for i, name in enumerate(frame.index.names) if name is None]
    if named and others:
        frame = frame.droplevel(others)
    return frame.reset_index(drop=not named, allow_duplicates=True)


def _parsed(
    path: Path, kind: str, read: Callable[..., _Read], content: bytes, **options: Any
) -> _Read:
    packages = {"Parquet": "pyarrow: pip install 'pyro_dgp[table]'"}
    remedy = packages.get(kind, "openpyxl: pip install 'pyro_dgp[excel]'")
    try:
        return read(io.BytesIO(content), **options)
    except ImportError as error:
        raise ImportError(f"{kind} files need {remedy}.") from error
    except Exception as error:  # each parser has its own
        raise ValueError(f"{path} is no {kind} file, or a damaged one.") from error


def of_workbook(path: Path, content: bytes, sheet: str | None, skip_rows: int | None) -> Table:
    """The table of a sheet of a workbook of that name, with these contents."""
    sheets: dict[str, pd.DataFrame] = _parsed(
        path, "Excel", pd.read_excel, content, sheet_name=None, header=None, dtype=object,
        keep_default_na=False, na_values=[""],
    )  # fmt: skip
    if sheet is not None and sheet not in sheets:
        raise ValueError(f"{path} has no sheet '{sheet}', but {', '.join(sheets)}.")
    chosen = sheet or next(iter(sheets))
    cells = _as_filled(sheets[chosen])
    filled = cells.notna().sum(axis=1).to_numpy()
    above = _rows_above(cells, filled) if skip_rows is None else skip_rows
    if above >= len(cells):
        raise ValueError(f"{path} has no names of columns in the sheet '{chosen}'.")
    names = _texts(cells.iloc[above])
    some = np.flatnonzero((filled > 0) & (np.arange(len(cells)) > above))
    # As in texts, an empty row is one if there are others above and below.
    rows = np.arange(some[0], some[-1] + 1) if len(some) else some
    frame = cells.iloc[rows].reset_index(drop=True)
    frame.columns = names
    table = Table(frame.infer_objects(), str(path), rows + 1)
    if sheet is None and len(sheets) > 1:
        table.notes.append(f"Of the sheets {', '.join(sheets)}, '{chosen}' is read (--sheet).")
    if skip_rows is None and above:
        table.notes.append(f"{above} line{'s' * (above > 1)} above the names left out.")
    leave_out_nameless(table)
    return table


def _as_filled(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells that hold nothing but spaces are empty, as in texts; long numbers are floats."""
    values = cells.to_numpy(object, copy=True)
    is_blank = np.vectorize(lambda cell: isinstance(cell, str) and not cell.strip(), [bool])
    values[is_blank(values)] = np.nan
    # Workbooks have 15 to 17 digits, but pandas gives integers.
    is_long = np.vectorize(lambda cell: isinstance(cell, int) and abs(cell) >= EXACT, [bool])
    some = is_long(values)
    values[some] = values[some].astype(float)
    return pd.DataFrame(values, dtype=object)


def _rows_above(cells: pd.DataFrame, filled: np.ndarray) -> int:
    """Number of rows above the first of the usual width."""
    least = least_width(usual_width(filled.tolist()))
    rows = [_texts(row) for row in cells[:NUM_LOOKED_AT].to_numpy()]
    below = [*rows[1:], None]
    return next((i for i, r in enumerate(rows) if num_named(r, below[i]) >= least), 0)


def _texts(cells: Iterable) -> list[str]:
    return ["" if pd.isna(cell) else str(cell).strip() for cell in cells]
