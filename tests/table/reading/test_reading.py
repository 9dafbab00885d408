"""Files as people have them: dialects are recognised, or named with a way out."""

import gzip
import io
import zipfile

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.table.reading.files import read_table

ROWS = [["size", "city", "price"], ["1.5", "Oslo", "10"], ["2", "Rome", "20"], ["4", "Rome", "3"]]
FRAME = pd.DataFrame(ROWS[1:], columns=ROWS[0], dtype=object)


def text(separator=",", rows=ROWS):
    return "".join(separator.join(row) + "\n" for row in rows)


def write(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def assert_read(path, frame=FRAME, **options):
    table = read_table(path, **options)
    assert list(table.frame) == list(frame)
    assert table.frame.to_numpy().tolist() == frame.to_numpy().tolist()
    return table


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", "; ", ",  "])
def test_separators(tmp_path, separator):
    table = assert_read(write(tmp_path, text(separator)))
    assert len(table.notes) == (not separator.startswith(","))
    assert_read(write(tmp_path, text(separator)), separator=separator[0])


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252"]
)
def test_encodings(tmp_path, encoding):
    rows = [["größe", "y"], ["1", "é"], ["2", "ü"]]
    frame = pd.DataFrame(rows[1:], columns=rows[0])
    table = assert_read(write(tmp_path, text(";", rows).encode(encoding)), frame)
    assert ("Latin-1" in " ".join(table.notes)) == (encoding in ("latin-1", "cp1252"))
    without_mark = write(tmp_path, text(";", rows).encode("utf-16-le"))
    assert_read(without_mark, frame, encoding="utf-16-le")
    with pytest.raises(ValueError, match="is no text file"):
        read_table(without_mark)
    with pytest.raises(ValueError, match="cannot be read with --encoding nonsense"):
        read_table(without_mark, encoding="nonsense")


def test_line_ends_quotes_and_separators_behind(tmp_path):
    assert_read(write(tmp_path, text().replace("\n", "\r\n")))
    assert_read(write(tmp_path, text().replace("\n", "\r")))
    assert_read(write(tmp_path, text().rstrip("\n") + "\n\n\n"))
    assert_read(write(tmp_path, text().replace("\n", ",\n")))
    # The names alone lack it.
    head, *body = text(";").splitlines()
    assert_read(write(tmp_path, "\n".join([head, *(line + ";" for line in body)])))
    quoted = [["a", "y"], ['"1,234"', "2"], ['"say ""so"""', "3"], ['"two\nlines"', "4"]]
    frame = pd.DataFrame(
        [["1,234", "2"], ['say "so"', "3"], ["two\nlines", "4"]], columns=["a", "y"]
    )
    assert_read(write(tmp_path, text(",", quoted)), frame)


def test_lines_above_and_units_below(tmp_path):
    above = "# a comment, of 2021\nPrices of houses\n\n"
    table = assert_read(write(tmp_path, above + text(";")))
    assert "3 lines above the names left out." in table.notes
    assert table.lines.tolist() == [5, 6, 7]
    assert_read(write(tmp_path, above + text(";")), skip_rows=3)
    units = [ROWS[0], ["m²", "", "EUR"], *ROWS[1:]]
    table = assert_read(write(tmp_path, text(",", units)))
    assert table.lines.tolist() == [3, 4, 5]
    assert any("left out, as units" in note for note in table.notes)
    # A missing value, or a mistake in one column, is not a unit.
    for first in (["NA", "Bonn", "?"], ["abc", "Bonn", "7"]):
        rows = [ROWS[0], first, *ROWS[1:]]
        assert_read(write(tmp_path, text(",", rows)), pd.DataFrame(rows[1:], columns=rows[0]))


def test_row_numbers_are_left_out(tmp_path):
    rows = [["", *ROWS[0]], *([str(7 - i), *row] for i, row in enumerate(ROWS[1:]))]
    table = assert_read(write(tmp_path, text(",", rows)))
    assert "The first column, of row numbers without a name, is left out." in table.notes
    rows[1][0] = "red"
    with pytest.raises(ValueError, match="column 1 has no name"):
        read_table(write(tmp_path, text(",", rows)))


@pytest.mark.parametrize("kind", ["csv", "excel"])
def test_two_columns_of_row_numbers_need_names(tmp_path, kind):
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5], "b": ["x", "y", "z"]})
    frame.index = pd.MultiIndex.from_arrays([[0, 0, 1], [0, 1, 0]])
    path = tmp_path / {"csv": "t.csv", "excel": "t.xlsx"}[kind]
    getattr(frame, f"to_{kind}")(path)
    with pytest.raises(ValueError, match="column 2 has no name: give it one, or leave out lines"):
        read_table(path)


@pytest.mark.parametrize("size", [40, 300])
def test_semicolons_between_decimal_commas(tmp_path, size):
    names = ["Price, EUR", "Area, m2", "y"]
    rows = [names, *([f"{i % 7},5", f"{i},25", "3,0"] for i in range(size))]
    table = read_table(write(tmp_path, text(";", rows)))
    assert list(table.frame) == names
    assert len(table.frame) == size
    spaces = [["a", "b"], *([f"{i},5", f"{i},25"] for i in range(size))]
    assert len(read_table(write(tmp_path, text(" ", spaces))).frame) == size


def test_what_excel_leaves_in_csv_files(tmp_path):
    for mark in (",", ";"):
        assert_read(write(tmp_path, f"sep={mark}\n" + text(mark)))
    assert_read(write(tmp_path, "Report,,\n,,\n" + text()))
    assert_read(write(tmp_path, text() + ",,\n,,\n\x1a"))
    assert_read(write(tmp_path, "\ufeff" + text()), encoding="utf-8")
    rows = [["a\u2028b", "y"], ["1", "2"]]
    assert_read(write(tmp_path, text(",", rows)), pd.DataFrame(rows[1:], columns=rows[0]))


def test_names_in_several_lines_and_with_a_hash(tmp_path):
    rows = [['"Price\n(EUR)"', "b"], ["1", "2"], ["3", "4"]]
    frame = pd.DataFrame(rows[1:], columns=["Price\n(EUR)", "b"])
    assert_read(write(tmp_path, text(",", rows)), frame)
    swapped = [row[::-1] for row in rows]
    assert_read(write(tmp_path, text(",", swapped)), frame[["b", "Price\n(EUR)"]])
    rows = [["#rooms", "y"], ["1", "2"]]
    assert_read(write(tmp_path, text(",", rows)), pd.DataFrame(rows[1:], columns=rows[0]))


@pytest.mark.parametrize("broken", [[10], [10, 20]])
def test_quotes_that_swallow_rows(tmp_path, broken):
    lines = [f"{i},{i},{chr(34) * (i in broken)}abc" for i in range(40)]
    path = write(tmp_path, "\n".join(["a,y,note", *lines, ""]))
    with pytest.raises(ValueError, match=r"up to line .*Is a quote not closed"):
        read_table(path)


def test_a_row_of_a_known_category_is_not_of_units(tmp_path):
    rows = [["c", "a", "y"], ["red", "x", "x"], ["blue", "1", "2"], ["red", "3", "4"]]
    assert_read(write(tmp_path, text(",", rows)), pd.DataFrame(rows[1:], columns=rows[0]))


def test_workbooks_by_the_rules_of_text(tmp_path):
    rows = [["Report", None, None], [None] * 3, ["", "size", "kind"]]
    rows += [[0, 1.5, "NA"], [1, None, "b"]]
    pd.DataFrame(rows).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    table = read_table(tmp_path / "t.xlsx")
    assert list(table.frame) == ["size", "kind"]
    assert table.frame["kind"].tolist() == ["NA", "b"]
    assert table.lines.tolist() == [4, 5]
    pd.DataFrame([["a", "a"], [1, 2]]).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    with pytest.raises(ValueError, match="several columns called 'a'"):
        read_table(tmp_path / "t.xlsx")


def test_compressed_files_and_standard_input(tmp_path, monkeypatch):
    for ending in (".gz", ".bz2", ".xz"):
        FRAME.to_csv(tmp_path / f"t.csv{ending}", index=False)
        assert_read(tmp_path / f"t.csv{ending}")
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.csv", text())
    assert_read(tmp_path / "t.zip")
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("__MACOSX/._t.csv", "attributes")
    assert_read(tmp_path / "t.zip")
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("u.csv", text())
    with pytest.raises(ValueError, match="holds 2 files"):
        read_table(tmp_path / "t.zip")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text().encode())))
    assert_read("-")


def test_workbooks(tmp_path):
    frame = pd.DataFrame({"size": [1.5, 2.0], "city": ["Oslo", None]})
    with pd.ExcelWriter(tmp_path / "t.xlsx") as writer:
        frame.to_excel(writer, sheet_name="first", index=False)
        FRAME.to_excel(writer, sheet_name="second", index=False)
    table = read_table(tmp_path / "t.xlsx")
    assert table.frame["size"].tolist() == [1.5, 2.0]
    assert "Of the sheets first, second, 'first' is read" in table.notes[0]
    assert list(read_table(tmp_path / "t.xlsx", sheet="second").frame) == list(FRAME)
    with pytest.raises(ValueError, match="has no sheet 'third', but first, second"):
        read_table(tmp_path / "t.xlsx", sheet="third")


def test_parquet_keeps_types(tmp_path):
    frame = pd.DataFrame({"a": np.array([1, 2], "int16"), "b": ["x", "y"]})
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").frame["a"].dtype == "int16"
    frame.astype("category").to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert (table.frame.dtypes == "category").all()
    assert table.frame["a"].tolist() == [1, 2]


# Without the time of day: parameters must be the same in all processes of the tests.
CUT_SHORT = gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("t.csv", "", "t.csv is empty"),
        ("t.csv", "\n \n", "t.csv is empty"),
        ("t.csv", "a,b\n", "has no rows"),
        ("t.csv", "a\n1\n2\n", "has one column only"),
        ("t.csv", "a,a\n1,2\n", "several columns called 'a'"),
        ("t.csv", "a,,y\n1,2,3\n", "column 2 has no name"),
        ("t.csv", "a,y\n1,2\n4,5,6\n7,8\n", "more fields in line 3 than the 2 names"),
        ("t.csv", "a,y,b\n1,2,3\n4,5\n7,8,9\n", "fewer fields in line 3 than the 3 names"),
        ("t.csv", "1,2\n3,4\n5,6\n", "seems to have no names of columns: its first line is 1, 2"),
        ("t.csv", b"\x00\x01\x02", "is no text file"),
        ("t.csv.gz", "a,b\n1,2\n", "is no .gz file, or a damaged one"),
        ("t.zip", b"PK", "is no .zip file, or a damaged one"),
        (
            "t.csv.gz",
            CUT_SHORT,
            "is no .gz file, or a damaged one",
        ),
        ("t.parquet", "a,b\n1,2\n", "is no Parquet file, or a damaged one"),
        ("t.xlsx", "a,b\n1,2\n", "is no Excel file, or a damaged one"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, match):
    with pytest.raises(ValueError, match=match):
        read_table(write(tmp_path, content, name))


def test_folders_and_absent_files(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "absent.csv")


def test_records_of_empty_cells_are_rows(tmp_path):
    """Predictions of a table are in its order; below it, spreadsheets leave empty records."""
    rows = [["a", "b"], ["1", "2"], ["", ""], ["3", "4"]]
    frame = pd.DataFrame(rows[1:], columns=rows[0])
    table = assert_read(write(tmp_path, text(",", [*rows, ["", ""], ["", ""]])), frame)
    assert table.lines.tolist() == [2, 3, 4]
    short = "Title,,\n,,\na,b,c\n,,\n1,2,3\n,\n4,5,6\n,\n"
    for options in ({}, {"skip_rows": 1}):
        found = read_table(write(tmp_path, short), **options)
        assert found.frame.to_numpy().tolist() == [["1", "2", "3"], ["", "", ""], ["4", "5", "6"]]
        assert found.lines.tolist() == [5, 6, 7]
    numbered = [["", "a", "b"], ["0", "1", "2"], ["", "", ""], ["1", "3", "4"]]
    assert_read(write(tmp_path, text(",", numbered)), frame)
    blank = text(",", rows[:2]) + "\n\n" + text(",", rows[3:])
    assert_read(write(tmp_path, blank), frame.iloc[[0, 2]].reset_index(drop=True))


def test_empty_rows_of_a_workbook_are_rows(tmp_path):
    """As in texts: predictions of a table are in its order."""
    rows = [["a", "b"], [None, None], [1, 2.5], [None, None], [None, None], [3, 4.5]]
    pd.DataFrame(rows).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    table = read_table(tmp_path / "t.xlsx")
    np.testing.assert_array_equal(table.frame["a"], [1, np.nan, np.nan, 3])
    assert table.lines.tolist() == [3, 4, 5, 6]
    numbered = [["", "a", "b"], [0, 1.5, 2], [None, None, None], [1, 3.5, 4]]
    pd.DataFrame(numbered).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    table = read_table(tmp_path / "t.xlsx")
    np.testing.assert_array_equal(table.frame["a"], [1.5, np.nan, 3.5])
    assert list(table.frame) == ["a", "b"]


@pytest.mark.parametrize("column", [[1.5, 2.0, 3.5], ["u", "v", "w"], [1.5, None, 3.5]])
def test_row_numbers_beside_one_column(tmp_path, column):
    frame = pd.DataFrame({"a": column})
    frame.to_csv(tmp_path / "t.csv")
    frame.to_excel(tmp_path / "t.xlsx")
    for path in (tmp_path / "t.csv", tmp_path / "t.xlsx"):
        table = read_table(path)
        assert list(table.frame) == ["a"]
        assert table.lines.tolist() == [2, 3, 4]
        assert table.notes == ["The first column, of row numbers without a name, is left out."]


def test_a_title_above_the_second_of_two_columns(tmp_path):
    rows = [["", "Sizes"], ["kind", "size"], ["a", "1"], ["b", "2"]]
    frame = pd.DataFrame(rows[2:], columns=rows[1])
    assert_read(write(tmp_path, text(",", rows)), frame, separator=",")
    pd.DataFrame(rows).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    assert read_table(tmp_path / "t.xlsx").frame.to_numpy().tolist() == frame.to_numpy().tolist()


def test_cells_of_spaces_in_a_workbook_are_empty(tmp_path):
    rows = [[" ", "Sizes", " "], ["a", "b", " "], [1, 2.5, "  "], [" ", 3.5, "\u00a0"], [" "] * 3]
    pd.DataFrame(rows).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    table = read_table(tmp_path / "t.xlsx")
    assert list(table.frame) == ["a", "b"]
    np.testing.assert_array_equal(table.frame["a"].astype(float), [1, np.nan])
    assert table.lines.tolist() == [3, 4]


def test_the_index_of_a_parquet_file(tmp_path):
    """Levels without a name number rows, perhaps twice; those with names are columns."""
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4]}, index=[0, 0, 1, 1])
    frame.to_parquet(tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet").frame
    pd.testing.assert_frame_equal(found, frame.reset_index(drop=True))
    named = frame.set_index(pd.Index(["w", "x", "y", "z"], name="id"))
    named.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").frame["id"].tolist() == ["w", "x", "y", "z"]
    frame.set_index(pd.Index([1, 2, 3, 4], name="a")).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="several columns called 'a'"):
        read_table(tmp_path / "t.parquet")
