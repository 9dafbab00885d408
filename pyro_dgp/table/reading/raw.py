"""A table as it is in a file, and what there is above its rows: names of columns, units."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pyro_dgp.table.frames import numeric
from pyro_dgp.table.packages import pd

__all__ = [
    "MISSING",
    "NUM_LOOKED_AT",
    "Table",
    "is_plain_number",
    "least_width",
    "leave_out_nameless",
    "leave_out_units",
    "num_named",
    "usual_width",
]

#: Texts for missing values, in upper or lower case.
MISSING = frozenset(
    (
        "na", "n/a", "#n/a", "n.a.", "nan", "n/d", "n.d.", "null", "none", "missing",
        "?", ".", "-", "--", "–", "—",
    )
)  # fmt: skip

# Number of lines from which the format is recognised.
NUM_LOOKED_AT = 500


@dataclass
class Table:
    """A table as it is in a file.

    :param pandas.DataFrame frame: The columns; texts if from a text file, "" for empty cells.
    :param str name: Name of the file, for error messages.
    :param numpy.ndarray lines: Line number of each row in the file, from 1, [N].
    :param str separator: Separator of the fields of a text file.
    :param list notes: Sentences on what was recognised or left out.
    """

    frame: pd.DataFrame
    name: str
    lines: np.ndarray
    separator: str | None = None
    notes: list[str] = field(default_factory=list)


def num_named(row: list[str], below: list[str] | None) -> int:
    """Number of names in a row. Row numbers in the first columns, as pandas has them, need none."""
    named = sum(bool(cell) for cell in row)
    unnamed = len(row) - named
    numbered = named and below is not None and all(map(is_plain_number, below[:unnamed]))
    return len(row) if numbered and not any(row[:unnamed]) else named


def usual_width(widths: Sequence[int]) -> int:
    counts = Counter(int(w) for w in widths if w > 1)
    return counts.most_common(1)[0][0] if counts else 1


def least_width(usual: int) -> int:
    """Least number of column names; that of a last, empty column may be missing."""
    return max(usual - 1, min(usual, 2))


def is_plain_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _looks_like_a_number(text: str) -> bool:
    return any(c.isdigit() for c in text) and not any(c.isalpha() for c in text)


def leave_out_nameless(table: Table) -> None:
    """Drops columns without a name: leading row numbers, and empty ones after a last separator."""
    frame = table.frame
    for i, name in reversed(list(enumerate(frame.columns))):
        if name:
            continue
        column = frame.iloc[:, i]
        column = column[column.notna() & (column != "")]
        numbers = numeric(column, errors="coerce")
        if len(column) and (i or not (numbers.is_unique and (numbers % 1 == 0).all())):
            raise ValueError(
                f"{table.name}: column {i + 1} has no name: give it one, or leave out lines above "
                "the names by --skip-rows."
            )
        if len(column):
            table.notes.append("The first column, of row numbers without a name, is left out.")
        frame = frame.iloc[:, [j for j in range(frame.shape[1]) if j != i]]
    table.frame = frame


def leave_out_units(table: Table) -> None:
    """Drops a first row of units or explanations above columns of numbers."""
    frame = table.frame
    if len(frame) < 3:
        return
    first, rest = frame.iloc[0], frame.iloc[1:]
    some = rest.iloc[:NUM_LOOKED_AT]
    above = []
    for i, cell in enumerate(first):
        column = some.iloc[:, i]
        column = column[(column != "") & ~column.str.lower().isin(MISSING)]
        if len(column) > 1 and column.map(_looks_like_a_number).all():
            if _looks_like_a_number(cell):
                return
            above.append("" if cell.lower() in MISSING else cell)
        elif cell and (rest.iloc[:, i] == cell).any():  # a category as in other rows
            return
    # A single column may have an error in its first row.
    if len(above) > 1 and any(above):
        table.frame = rest.reset_index(drop=True)
        table.lines = table.lines[1:]
        table.notes.append(f"The row {' | '.join(first)} below the names is left out, as units.")
