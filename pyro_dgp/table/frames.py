"""Parts of data frames with definite types, which pandas' own annotations leave open."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from pyro_dgp.table.packages import pd

__all__ = ["column", "columns", "hashes", "named_columns", "numeric", "rows", "without_zone"]


def column(frame: pd.DataFrame, name: str) -> pd.Series:
    """One column."""
    return frame[name]  # pyright: ignore[reportReturnType]


def columns(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Some columns, in the order of the names."""
    return frame[list(names)]  # pyright: ignore[reportReturnType]


def named_columns(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """All columns by name; in this package, names are texts."""
    yield from frame.items()  # pyright: ignore[reportReturnType]


def rows(frame: pd.DataFrame, which: pd.Series | np.ndarray) -> pd.DataFrame:
    """The rows that are marked True, numbered anew."""
    return frame[which].reset_index(drop=True)  # pyright: ignore[reportReturnType]


def numeric(values: pd.Series, errors: Literal["raise", "coerce"] = "raise") -> pd.Series:
    """Numbers; a text that is none is an error, or with "coerce" NaN."""
    return pd.to_numeric(values, errors=errors)  # pyright: ignore[reportReturnType]


def without_zone(dates: pd.Series) -> pd.Series:
    """Dates of one dtype, by the clock of their time zone."""
    plain = dates.dt.tz_localize(None) if dates.dt.tz is not None else dates
    return plain.astype("datetime64[us]")


def hashes(frame: pd.DataFrame) -> pd.Series:
    """One number per row, the same for equal rows."""
    return pd.util.hash_pandas_object(frame, index=False)  # pyright: ignore[reportAttributeAccessIssue]
