"""Held-out rows as plain data in the file of a model."""

import numpy as np

from pyro_dgp.table.packages import pd

__all__ = ["as_plain", "from_plain"]

# More rows would make the file larger and pictures hardly more precise.
_MOST_ROWS = 2000


def as_plain(frame: pd.DataFrame) -> dict:
    """Columns of numbers, dates and texts as lists, None where missing; 2000 rows at most.

    :param pandas.DataFrame frame: Columns as from :func:`~pyro_dgp.table.cells.typed`.
    """
    found = {}
    some = np.linspace(0, len(frame) - 1, min(len(frame), _MOST_ROWS)).round().astype(int)
    for name, column in frame.iloc[some].items() if len(frame) else ():
        if pd.api.types.is_datetime64_any_dtype(column):
            kind, column = "date", column.dt.strftime("%Y-%m-%dT%H:%M:%S")
        else:
            kind = "number" if pd.api.types.is_float_dtype(column) else "text"
        found[name] = [kind, column.astype(object).where(column.notna(), None).tolist()]
    return found


def from_plain(columns: dict) -> pd.DataFrame:
    """The rows from the result of :func:`as_plain`.

    :param dict columns: Kind and values of each column, by name.

    :raises ValueError: If columns have different numbers of rows.
    """
    if len({len(values) for _, values in columns.values()}) > 1:
        raise ValueError("its columns have different numbers of rows")

    def column(kind: str, values: list) -> pd.Series:
        if kind == "date":
            return pd.to_datetime(pd.Series(values, dtype=object)).astype("datetime64[us]")
        texts = pd.Series(values, dtype=object)
        return texts.astype("float64") if kind == "number" else texts.where(texts.notna(), np.nan)

    return pd.DataFrame({name: column(*values) for name, values in columns.items()})
