"""Reading of files: tables of texts, or of the types that the file defines."""

import bz2
import csv
import gzip
import io
import lzma
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pyro_dgp.table.frames import numeric
from pyro_dgp.table.packages import pd

__all__ = ["MISSING", "Table", "read_table"]

_Read = TypeVar("_Read")

#: Texts for missing values, in upper or lower case.
MISSING = frozenset(
    (
        "na", "n/a", "#n/a", "n.a.", "nan", "n/d", "n.d.", "null", "none", "missing",
        "?", ".", "-", "--", "–", "—",
    )
)  # fmt: skip

# In order of preference, as commas also occur in numbers and names.
_SEPARATORS = ("\t", ";", "|", ",")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_COMPRESSED = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
csv.field_size_limit(2**30)
# Number of lines from which the format is recognised.
_NUM_LOOKED_AT = 500


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


def read_table(
    path: str | Path,
    *,
    separator: str | None = None,
    encoding: str | None = None,
    skip_rows: int | None = None,
    sheet: str | None = None,
) -> Table:
    """Reads a text file with separated fields (also compressed), a Parquet or an Excel file.

    The following are recognised unless given: separators (comma, semicolon, tab, bar, spaces),
    encodings (UTF-8, UTF-16 with its mark, Windows' Latin-1), lines above the column names.

    :param path: File to read; "-" for text from the standard input.
    :param str separator: Character between fields; " " for any number of spaces.
    :param str encoding: Encoding of a text file, as Python names it.
    :param int skip_rows: Number of lines above the column names.
    :param str sheet: Sheet of an Excel file; None for the first one.
    :raises ValueError: If it is no table, an empty one, or cannot be read unambiguously.
    :raises OSError: If it cannot be read.
    :raises ImportError: If Parquet or Excel needs a package that is missing.
    """
    if str(path) == "-":
        table = _of_text("standard input", sys.stdin.buffer.read(), separator, encoding, skip_rows)
    else:
        table = _of_file(Path(path), separator, encoding, skip_rows, sheet)
    frame = table.frame
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"{table.name} has several columns called '{twice[0]}'.")
    if not len(frame):
        raise ValueError(f"{table.name} has no rows.")
    return table


def _of_file(
    path: Path,
    separator: str | None,
    encoding: str | None,
    skip_rows: int | None,
    sheet: str | None,
) -> Table:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file with a table.")
    content, kind = path.read_bytes(), path.suffix.lower()
    if kind in (".parquet", ".pq"):
        frame = _parsed(path, "Parquet", _of_parquet, content)
        return Table(frame, str(path), np.arange(len(frame)) + 1)
    if kind in (".xlsx", ".xlsm", ".xls", ".ods"):
        return _of_workbook(path, content, sheet, skip_rows)
    if kind == ".zip":
        content = _unzipped(path, content)
    elif kind in _COMPRESSED:
        try:
            content = _COMPRESSED[kind](content)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} is no {kind} file, or a damaged one.") from error
    return _of_text(str(path), content, separator, encoding, skip_rows)


def _of_parquet(content: io.BytesIO) -> pd.DataFrame:
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


def _unzipped(path: Path, content: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [n for n in archive.namelist() if not n.endswith("/")]
            if len(names) == 1:
                return archive.read(names[0])
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} is no .zip file, or a damaged one.") from error
    raise ValueError(f"{path} holds {len(names)} files: unpack it, and name one.")


def _of_workbook(path: Path, content: bytes, sheet: str | None, skip_rows: int | None) -> Table:
    sheets = _parsed(
        path, "Excel", pd.read_excel, content, sheet_name=None, header=None, dtype=object,
        keep_default_na=False, na_values=[""],
    )  # fmt: skip
    if sheet is not None and sheet not in sheets:
        raise ValueError(f"{path} has no sheet '{sheet}', but {', '.join(sheets)}.")
    chosen = sheet or next(iter(sheets))
    cells = _without_blanks(sheets[chosen])
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
    _leave_out_nameless(table)
    return table


def _without_blanks(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells that hold nothing but spaces are empty, as in texts."""
    values = cells.to_numpy(object, copy=True)
    is_blank = np.vectorize(lambda cell: isinstance(cell, str) and not cell.strip(), [bool])
    values[is_blank(values)] = np.nan
    return pd.DataFrame(values, dtype=object)


def _rows_above(cells: pd.DataFrame, filled: np.ndarray) -> int:
    """Number of rows above the first of the usual width."""
    least = _least_width(_usual_width(filled.tolist()))
    rows = [_texts(row) for row in cells[:_NUM_LOOKED_AT].to_numpy()]
    below = [*rows[1:], None]
    return next((i for i, r in enumerate(rows) if _num_named(r, below[i]) >= least), 0)


def _texts(cells: Iterable) -> list[str]:
    return ["" if pd.isna(cell) else str(cell).strip() for cell in cells]


# Text.


def _of_text(
    name: str,
    content: bytes,
    separator: str | None,
    encoding: str | None,
    skip_rows: int | None,
) -> Table:
    text, encoding_note = _decoded(name, content, encoding)
    if not text.strip():
        raise ValueError(f"{name} is empty.")
    lines = io.StringIO(text.rstrip("\x1a"), newline=None).readlines()
    told = re.fullmatch(r"sep=(.)\n?", lines[0])  # as Excel writes for itself
    if told:
        separator, lines[0] = separator or told[1], "\n"
    found = separator or _recognised_separator(name, lines[:_NUM_LOOKED_AT])
    above = _lines_above(lines[:_NUM_LOOKED_AT], found) if skip_rows is None else skip_rows
    if above >= len(lines):
        raise ValueError(f"{name} has no line after the {above} that are left out.")
    frame, lines = _fields(name, lines, found, above)
    table = Table(frame, name, lines, found, encoding_note)
    if separator is None and found != ",":
        table.notes.append(f"Fields are separated by {_NAMES[found]}.")
    if skip_rows is None and above > bool(told):
        table.notes.append(f"{above} line{'s' * (above > 1)} above the names left out.")
    _leave_out_nameless(table)
    _leave_out_units(table)
    return table


def _decoded(name: str, content: bytes, encoding: str | None) -> tuple[str, list[str]]:
    if encoding is not None:
        try:
            return content.decode(encoding).removeprefix("\ufeff"), []
        except (LookupError, UnicodeError) as error:
            raise ValueError(f"{name} cannot be read with --encoding {encoding}.") from error
    for mark, kind in _MARKS.items():
        if content.startswith(mark):
            try:
                return content.decode(kind).removeprefix("\ufeff"), []
            except UnicodeError as error:
                raise ValueError(
                    f"{name} begins as {kind} text, but is none: name its --encoding."
                ) from error
    if b"\x00" in content[:4096]:
        raise ValueError(
            f"{name} is no text file, or one whose --encoding is to be named. Parquet and Excel "
            "files are known by their endings, .parquet and .xlsx."
        )
    try:
        return content.decode("utf-8"), []
    except UnicodeDecodeError:
        try:
            text = content.decode("cp1252")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        return text, ["The text is not UTF-8; it is read as Latin-1 (--encoding)."]


def _counts(lines: list[str], separator: str) -> list[int]:
    """Number of fields of each record that is not blank."""
    return [len(row) for _, row in _records(lines, separator, strict=False)]


def _recognised_separator(name: str, lines: list[str]) -> str:
    """The separator for which most records have the same number of fields, at least two."""
    best, found = 0.0, None
    for separator in (*_SEPARATORS, " "):
        counts = Counter(_counts(lines, separator))
        if not counts:
            continue
        size, number = counts.most_common(1)[0]
        share = number / counts.total()
        # Spaces also occur in texts, so they are separators only if nothing else fits all records.
        if size > 1 and share > best and (separator != " " or not found or share == 1):
            best, found = share, separator
    if found is None:
        raise ValueError(
            f"{name} has one column only, as it seems: name its --separator, such as ',' (also if "
            "there is one column)."
        )
    return found


def _lines_above(lines: list[str], separator: str) -> int:
    """Number of blank lines, titles and comments above the first record of the usual length."""
    records = list(_records(lines, separator, strict=False))
    starts = [0, *(number for number, _ in records)]
    usual = _usual_width([len(row) for _, row in records])
    below = [*(row for _, row in records[1:]), None]
    for start, (_, row), next_row in zip(starts, records, below, strict=False):
        named = _num_named(row, next_row)
        comment = row[0].startswith("#") and (named < usual or row[0].startswith("# "))
        if named >= _least_width(usual) and not comment:
            return _next_line(lines, start)
    return 0


def _num_named(row: list[str], below: list[str] | None) -> int:
    """Number of names in a row. Row numbers in the first column, as pandas has them, need none."""
    named = sum(bool(cell) for cell in row)
    unnamed = not row[0] and 0 < named == len(row) - 1
    return named + (unnamed and below is not None and _is_plain_number(below[0]))


def _usual_width(widths: Sequence[int]) -> int:
    counts = Counter(int(w) for w in widths if w > 1)
    return counts.most_common(1)[0][0] if counts else 1


def _least_width(usual: int) -> int:
    """Least number of column names; that of a last, empty column may be missing."""
    return max(usual - 1, min(usual, 2))


def _next_line(lines: list[str], start: int) -> int:
    """The first line from there that is not blank."""
    while start < len(lines) and not lines[start].strip():
        start += 1
    return start


def _records(
    lines: list[str], separator: str, strict: bool = True, empty: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Fields of records, and the number of their (last) line; without blank lines.

    :param bool strict: Whether unbalanced or misplaced quotes are errors.
    :param bool empty: Whether to give records of empty fields, too.
    """
    if separator == " ":
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line.split()
        return
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict)
    try:
        for row in reader:
            row = [cell.strip() for cell in row]
            if any(row) or (empty and len(row) > 1):
                yield reader.line_num, row
    except csv.Error as error:
        if strict:
            raise csv.Error(str(error), reader.line_num) from error


def _fields(
    name: str, lines: list[str], separator: str, above: int
) -> tuple[pd.DataFrame, np.ndarray]:
    """All fields as texts, and the number of the line of each row."""
    records = _records(lines[above:], separator, empty=True)
    try:
        names: list[str] = []
        while not any(names):
            _, names = next(records)
        while names and not names[-1]:  # after a last separator
            names.pop()
        if all(_is_plain_number(n) for n in names):
            raise ValueError(
                f"{name} seems to have no names of columns: its first line is "
                f"{', '.join(names[:4])}. Add a line with names."
            )
        rows, numbers, pending = [], [], []
        for number, row in records:
            if not any(row):  # a row if there are others above and below
                pending += [above + number] * bool(rows)
                continue
            rows += [[""] * len(names)] * len(pending)
            numbers += pending
            pending = []
            if len(row) != len(names) and (len(row) < len(names) or any(row[len(names) :])):
                more = "more" if len(row) > len(names) else "fewer"
                raise ValueError(
                    f"{name} has {more} fields in line {above + number} than the {len(names)} "
                    "names. Correct it, or name another --separator, or --skip-rows."
                )
            rows.append(row[: len(names)])
            numbers.append(above + number)
    except StopIteration:
        raise ValueError(f"{name} has no names of columns.") from None
    except csv.Error as error:
        by, (reason, line) = _NAMES.get(separator, separator), error.args
        raise ValueError(
            f"{name} cannot be read as fields separated by {by} up to line {above + line}: "
            f"{reason}. Is a quote not closed, or another --separator meant?"
        ) from error
    return pd.DataFrame(rows, columns=names, dtype=object), np.array(numbers)


def _is_plain_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _looks_like_a_number(text: str) -> bool:
    return any(c.isdigit() for c in text) and not any(c.isalpha() for c in text)


def _leave_out_nameless(table: Table) -> None:
    """Drops columns without a name: leading row numbers, and empty ones after a last separator."""
    frame = table.frame
    for i, name in reversed(list(enumerate(frame.columns))):
        if name:
            continue
        column = frame.iloc[:, i]
        column = column[column.notna() & (column != "")]
        numbers = numeric(column, errors="coerce")
        if len(column) and (i or not (numbers.is_unique and (numbers % 1 == 0).all())):
            raise ValueError(f"{table.name}: column {i + 1} has no name.")
        if len(column):
            table.notes.append("The first column, of row numbers without a name, is left out.")
        frame = frame.iloc[:, [j for j in range(frame.shape[1]) if j != i]]
    table.frame = frame


def _leave_out_units(table: Table) -> None:
    """Drops a first row of units or explanations above columns of numbers."""
    frame = table.frame
    if len(frame) < 3:
        return
    first, rest = frame.iloc[0], frame.iloc[1:]
    some = rest.iloc[:_NUM_LOOKED_AT]
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
