"""Reading of files: tables of texts, or of the types that the file defines."""

import bz2
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from pathlib import Path

from pyro_dgp.table.reading.raw import Table
from pyro_dgp.table.reading.texts import of_text
from pyro_dgp.table.reading.typed import of_parquet, of_workbook

__all__ = ["read_table"]

_COMPRESSED = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}


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
        table = of_text("standard input", sys.stdin.buffer.read(), separator, encoding, skip_rows)
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
        return of_parquet(path, content)
    if kind in (".xlsx", ".xlsm", ".xls", ".ods"):
        return of_workbook(path, content, sheet, skip_rows)
    if kind == ".zip":
        content = _unzipped(path, content)
    elif kind in _COMPRESSED:
        try:
            content = _COMPRESSED[kind](content)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} is no {kind} file, or a damaged one.") from error
    return of_text(str(path), content, separator, encoding, skip_rows)


def _unzipped(path: Path, content: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # Beside each file, macOS puts one of its attributes in a folder of its own.
            names = [n for n in archive.namelist() if not n.endswith("/")]
            names = [n for n in names if not n.startswith("__MACOSX/")]
            if len(names) == 1:
                return archive.read(names[0])
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} is no .zip file, or a damaged one.") from error
    raise ValueError(f"{path} holds {len(names)} files: unpack it, and name one.")
