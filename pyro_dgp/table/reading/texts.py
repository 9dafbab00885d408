"""Texts with separated fields: their encoding, separator and records."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from pyro_dgp.table.packages import pd
from pyro_dgp.table.reading.raw import (
    NUM_LOOKED_AT,
    Table,
    is_plain_number,
    least_width,
    leave_out_nameless,
    leave_out_units,
    num_named,
    usual_width,
)

__all__ = ["of_text"]

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
csv.field_size_limit(2**30)


def of_text(
    name: str,
    content: bytes,
    separator: str | None,
    encoding: str | None,
    skip_rows: int | None,
) -> Table:
    """A table of a text file's contents.

    :param str name: Name of the file.
    :param bytes content: Its contents.
    :param separator: See :func:`~pyro_dgp.table.reading.files.read_table`, as for the
        other options.
    """
    text, encoding_note = _decoded(name, content, encoding)
    if not text.strip():
        raise ValueError(f"{name} is empty.")
    lines = io.StringIO(text.rstrip("\x1a"), newline=None).readlines()
    told = re.fullmatch(r"sep=(.)\n?", lines[0])  # as Excel writes for itself
    if told:
        separator, lines[0] = separator or told[1], "\n"
    found = separator or _recognised_separator(name, lines[:NUM_LOOKED_AT])
    above = _lines_above(lines[:NUM_LOOKED_AT], found) if skip_rows is None else skip_rows
    if above >= len(lines):
        raise ValueError(f"{name} has no line after the {above} that are left out.")
    frame, lines = _fields(name, lines, found, above)
    table = Table(frame, name, lines, found, encoding_note)
    if separator is None and found != ",":
        table.notes.append(f"Fields are separated by {_NAMES[found]}.")
    if skip_rows is None and above > bool(told):
        table.notes.append(f"{above} line{'s' * (above > 1)} above the names left out.")
    leave_out_nameless(table)
    leave_out_units(table)
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
    usual = usual_width([len(row) for _, row in records])
    below = [*(row for _, row in records[1:]), None]
    for start, (_, row), next_row in zip(starts, records, below, strict=False):
        named = num_named(row, next_row)
        comment = row[0].startswith("#") and (named < usual or row[0].startswith("# "))
        if named >= least_width(usual) and not comment:
            return _next_line(lines, start)
    return 0


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
        if all(is_plain_number(n) for n in names):
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
