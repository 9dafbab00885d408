"""From a file to a table of texts, or of what the file says that its columns are."""

import bz2
import csv
import gzip
import io
import lzma
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyro_dgp.table.packages import pd

__all__ = ["MISSING", "Table", "read_table"]

#: What means that a number is missing, in any case.
MISSING = frozenset(
    ["na", "n/a", "#n/a", "nan", "null", "none", "missing", "?", ".", "-", "--", "–", "—"]
)

_SEPARATORS = (",", ";", "\t", "|")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_COMPRESSED = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
# Lines that a dialect is recognised by.
_NUM_LOOKED_AT = 500


@dataclass
class Table:
    """A table as it stands in a file.

    :param pandas.DataFrame frame: Of a text file, columns of texts, "" where a cell is empty.
    :param str name: Of the file, for messages.
    :param numpy.ndarray lines: Number of each row's line in the file, from 1, [N].
    :param str separator: Between the fields of a text file.
    :param list notes: What has been recognised or left out, as sentences.
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

    What is not given is recognised: separators (comma, semicolon, tab, bar, spaces), encodings
    (UTF-8, UTF-16 with its mark, Windows' Latin-1), lines above the names of the columns.

    :param path: File to read; "-" for text from the standard input.
    :param str separator: One character between fields; " " for any number of spaces.
    :param str encoding: Of a text file, as Python names it.
    :param int skip_rows: Lines above the one with the names.
    :param str sheet: Of an Excel file; the first one by default.
    :raises ValueError: If it is no table, an empty one, or it is not clear how it is to be read.
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


def _of_file(path: Path, separator, encoding, skip_rows, sheet) -> Table:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file with a table.")
    content, kind = path.read_bytes(), path.suffix.lower()
    if kind in (".parquet", ".pq"):
        frame = _parsed(path, "Parquet", pd.read_parquet, content)
        return Table(frame, str(path), np.arange(len(frame)) + 1)
    if kind in (".xlsx", ".xlsm", ".xls", ".ods"):
        return _of_workbook(path, content, sheet, skip_rows)
    if kind == ".zip":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [n for n in archive.namelist() if not n.endswith("/")]
            if len(names) != 1:
                raise ValueError(f"{path} holds {len(names)} files: unpack it, and name one.")
            content = archive.read(names[0])
    elif kind in _COMPRESSED:
        try:
            content = _COMPRESSED[kind](content)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise ValueError(f"{path} is no {kind} file, or a damaged one.") from error
    return _of_text(str(path), content, separator, encoding, skip_rows)


def _parsed(path: Path, kind: str, read, content: bytes, **options):
    packages = {"Parquet": "pyarrow: pip install 'pyro_dgp[table]'"}
    remedy = packages.get(kind, "openpyxl: pip install 'pyro_dgp[excel]'")
    try:
        return read(io.BytesIO(content), **options)
    except ImportError as error:
        raise ImportError(f"{kind} files need {remedy}.") from error
    except Exception as error:  # each parser has its own
        raise ValueError(f"{path} is no {kind} file, or a damaged one.") from error


def _of_workbook(path: Path, content: bytes, sheet: str | None, skip_rows: int | None) -> Table:
    sheets = _parsed(
        path, "Excel", pd.read_excel, content, sheet_name=None, skiprows=skip_rows or 0
    )
    if sheet is not None and sheet not in sheets:
        raise ValueError(f"{path} has no sheet '{sheet}', but {', '.join(sheets)}.")
    chosen = sheet or next(iter(sheets))
    frame = sheets[chosen]
    table = Table(frame, str(path), np.arange(len(frame)) + 2 + (skip_rows or 0))
    if sheet is None and len(sheets) > 1:
        table.notes.append(f"Of the sheets {', '.join(sheets)}, '{chosen}' is read (--sheet).")
    table.frame = table.frame.dropna(how="all", axis=1)
    return table


# Text.


def _of_text(name: str, content: bytes, separator, encoding, skip_rows) -> Table:
    text, encoding_note = _decoded(name, content, encoding)
    if not text.strip():
        raise ValueError(f"{name} is empty.")
    head = text.splitlines()[:_NUM_LOOKED_AT]
    found = separator or _recognised_separator(name, head)
    above = _lines_above(head, found) if skip_rows is None else skip_rows
    if above >= len(text.splitlines()):
        raise ValueError(f"{name} has no line after the {above} that are left out.")
    frame, lines = _fields(name, text, found, above)
    table = Table(frame, name, lines, found, encoding_note)
    if separator is None and found != ",":
        table.notes.append(f"Fields are separated by {_NAMES[found]}.")
    if skip_rows is None and above:
        table.notes.append(f"{above} line{'s' * (above > 1)} above the names left out.")
    _leave_out_nameless(table)
    _leave_out_units(table)
    return table


def _decoded(name: str, content: bytes, encoding: str | None) -> tuple[str, list[str]]:
    if encoding is not None:
        try:
            return content.decode(encoding), []
        except (LookupError, UnicodeError) as error:
            raise ValueError(f"{name} cannot be read with --encoding {encoding}.") from error
    for mark, kind in _MARKS.items():
        if content.startswith(mark):
            try:
                return content.decode(kind), []
            except UnicodeError as error:
                raise ValueError(
                    f"{name} begins as {kind} text, but is none: name its --encoding."
                ) from error
    if b"\x00" in content[:4096]:
        raise ValueError(
            f"{name} is no text file. Tables are read from text files, and from Parquet and Excel "
            "files by the endings .parquet and .xlsx."
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
    """Fields of each line that is not blank."""
    if separator == " ":
        return [len(line.split()) for line in lines if line.strip()]
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return [len(row) for row in rows if row]


def _recognised_separator(name: str, lines: list[str]) -> str:
    """That by which most lines have the same number of fields, two at least."""
    best, found = (0.0, 0), None
    for separator in (*_SEPARATORS, " "):
        try:
            counts = Counter(_counts(lines, separator))
        except csv.Error:
            continue
        if not counts:
            continue
        size, number = counts.most_common(1)[0]
        score = (round(number / counts.total(), 2), size)
        # Spaces stand in texts, too: only where nothing else separates.
        if size > 1 and score > best and not (separator == " " and found):
            best, found = score, separator
    if found is None:
        raise ValueError(f"{name} has one column only, as it seems; if not, name its --separator.")
    return found


def _lines_above(lines: list[str], separator: str) -> int:
    """Blank lines, titles and comments: what stands above the first line of the usual length."""
    counts = [c for c in _counts(lines, separator) if c > 1]
    usual = Counter(counts).most_common(1)[0][0] if counts else 1
    for number, line in enumerate(lines):
        own = _counts([line], separator)
        # The names may lack that of a last, empty column.
        if own and own[0] >= max(usual - 1, 2) and not line.startswith("#"):
            return number
    return 0


def _records(lines: list[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Fields of texts, and the number of their (last) line; blank lines are left out."""
    if separator == " ":
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line.split()
        return
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    for row in reader:
        if row and (len(row) > 1 or row[0].strip()):
            yield reader.line_num, [cell.strip() for cell in row]


def _fields(name: str, text: str, separator: str, above: int) -> tuple[pd.DataFrame, np.ndarray]:
    """All fields as texts, and the number of the line of each row."""
    records = _records(text.splitlines(keepends=True)[above:], separator)
    try:
        _, names = next(records)
        while names and not names[-1]:  # behind a last separator
            names.pop()
        if all(_is_plain_number(n) for n in names):
            raise ValueError(
                f"{name} seems to have no names of columns: its first line is "
                f"{', '.join(names[:4])}. Add a line with names."
            )
        rows, numbers = [], []
        for number, row in records:
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
        by = _NAMES.get(separator, separator)
        raise ValueError(
            f"{name} cannot be read as fields separated by {by}: {error}. Is another --separator "
            "meant?"
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
    """Columns without a name: of row numbers in front, and of nothing behind a last separator."""
    frame = table.frame
    for i, name in reversed(list(enumerate(frame.columns))):
        if name:
            continue
        if i and (frame.iloc[:, i] != "").any():
            raise ValueError(f"{table.name}: column {i + 1} has no name.")
        frame = frame.iloc[:, [j for j in range(frame.shape[1]) if j != i]]
    table.frame = frame


def _leave_out_units(table: Table) -> None:
    """A first row of units or explanations above columns of numbers."""
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
    # One column alone may have a mistake in its first row.
    if len(above) > 1 and any(above):
        table.frame = rest.reset_index(drop=True)
        table.lines = table.lines[1:]
        table.notes.append(f"The row {' | '.join(first)} below the names is left out, as units.")
