"""Texts become numbers, dates and categories; in any dialect the same, or one clear error."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_dgp.table.reading.cells import Conventions, typed
from pyro_dgp.table.reading.files import read_table
from pyro_dgp.table.reading.raw import Table
from tests.refusals import refusals


def table(separator=";", **columns):
    size = len(next(iter(columns.values())))
    frame = pd.DataFrame({n: np.array(v, dtype=object) for n, v in columns.items()})
    return Table(frame, "t.csv", np.arange(size) + 2, separator)


def read(values, conventions=None, separator=";", **options):
    frame, _, notes = typed(table(separator, x=values), conventions or Conventions(), **options)
    return frame["x"], notes


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1", "-2", "+3"], [1, -2, 3]),
        (["1.5", "2", ".5", "2."], [1.5, 2, 0.5, 2]),
        (["1e3", "2.5E-2"], [1000, 0.025]),
        (["1,5", "2"], [1.5, 2]),
        (["1.234,5", "1.000,0"], [1234.5, 1000]),
        (["1,234.5", "1,000.0"], [1234.5, 1000]),
        (["1,234,567", "2"], [1234567, 2]),
        (["1 234,5", "1\u00a0000,0"], [1234.5, 1000]),
        (["1'234.5", "1’000.0"], [1234.5, 1000]),
        (["0,123", "0,5"], [0.123, 0.5]),
        (["$1.50", "-$2", "$-3", "5"], [1.5, -2, -3, 5]),
        (["1,50 €", "2,00 €"], [1.5, 2]),
        (["EUR 1.50", "EUR 2"], [1.5, 2]),
        (["5%", "7.5 %"], [5, 7.5]),
        (["(5)", "6"], [-5, 6]),
        (["\u22125", "6"], [-5, 6]),
        (["NA", "1", "", "?", "n/a", "-", "None"], [None, 1, None, None, None, None, None]),
        (["true", "False"], [1, 0]),
    ],
)
def test_numbers(texts, numbers):
    found, _ = read(texts)
    assert found.dtype == "float64"
    np.testing.assert_array_equal(found.to_numpy(), np.array(numbers, dtype=float))


@pytest.mark.parametrize(
    "texts",
    [
        ["Oslo", "Rome", "", "NA"],
        ["1", "2", "3+"],  # few codes
        ["5%", "5"],  # of which the second may mean anything
        ["$5", "€6"],
        ["1.2.3", "4.5.6"],
        ["12,34,5", "1"],
        ["(5", "6)"],
        ["inf", "1"],
        ["1_000", "2"],
        ["0x10", "2"],
    ],
)
def test_texts_stay_as_they_are(texts):
    """NA is a text like any other there; only an empty cell is missing."""
    found, _ = read(texts)
    assert found.fillna("").tolist() == texts


def test_what_was_recognised_is_told():
    _, notes = read(["1,50 €", "2,00 €"])
    assert notes == [
        "Numbers have decimal commas.",
        "The sign € of the numbers in x is left out.",
    ]


def test_thousands_or_decimals():
    """One column tells for all; where none does, the user is asked; a comma-separated file is
    English."""
    doubtful = ["1,234", "5,678"]
    frame, conventions, _ = typed(table(x=doubtful, y=["0,5", "1,5"]), Conventions())
    assert frame["x"].tolist() == [1.234, 5.678]
    assert conventions.decimal == ","
    frame, _, _ = typed(table(x=doubtful, y=["0.5", "1.5"]), Conventions())
    assert frame["x"].tolist() == [1234, 5678]
    assert read(doubtful, Conventions(decimal=","))[0].tolist() == [1.234, 5.678]
    assert read(doubtful, separator=",")[0].tolist() == [1234, 5678]
    assert read(doubtful, usual=Conventions(decimal=","))[0].tolist() == [1.234, 5.678]
    quoted = read(doubtful, separator=",", usual=Conventions(decimal=","))[0]
    assert quoted.tolist() == [1.234, 5.678]


def test_a_mistake_does_not_make_a_column_of_texts():
    values = [f"{i}.5" for i in range(50)]
    values[7], values[9] = "12O", "abc"
    assert read(values, categorical=["x"])[0].tolist() == values
    found, _ = read(values, Conventions(missing=["12O", "abc"]))
    assert np.flatnonzero(found.isna()).tolist() == [7, 9]
    found, _ = read(values, lenient=["x"])
    assert np.flatnonzero(found.isna()).tolist() == [7, 9]


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["2021-03-04", "2020-12-31"], "2021-03-04"),
        (["2021/3/4", ""], "2021-03-04"),
        (["2021-03-04T05:06:07Z"], "2021-03-04 05:06:07"),
        (["2021-03-04 05:06", "2021-03-04 05:07"], "2021-03-04 05:06"),
        (["4.3.2021"], "2021-03-04"),
        (["04/03/2021", "31/12/2020"], "2021-03-04"),
        (["03/04/2021", "12/31/2020"], "2021-03-04"),
        (["4 Mar 2021", "31 December 2020"], "2021-03-04"),
        (["4-MAR-21", "31-DEC-20"], "2021-03-04"),
        (["04mar2021", "31dec2020"], "2021-03-04"),
        (["4. March 2021 05:06", "1. Sept 2021 05:06"], "2021-03-04 05:06"),
        (["Mar 4, 2021", "March 5th, 2021"], "2021-03-04"),
        (["2021-03-04 12:06 am", "2021-03-04 12:06 am"], "2021-03-04 00:06"),
        (["3/4/2021 5:06:07 PM", "12/31/2021 12:00:00 PM"], "2021-03-04 17:06:07"),
    ],
)
def test_dates(texts, first):
    found, _ = read(texts)
    assert found.dtype == "datetime64[us]"
    assert found[0] == pd.Timestamp(first)
    assert found.isna().tolist() == [not t for t in texts]


def test_years_of_two_digits_are_of_this_century_or_the_last():
    found, _ = read(["31-Dec-68", "1-Jan-69"])
    assert found.dt.year.tolist() == [2068, 1969]


@pytest.mark.parametrize("text", ["4 Mat 2021", "12MAY19", "Mar-21", "04/03/21", "31 Feb 2021"])
def test_what_is_no_date_stays_a_text(text):
    """Of 04/03/21, no part need be the year."""
    assert read([text, f"{text} "])[0].dtype == object


def test_days_or_months_first():
    assert read(["3/4/2021"], Conventions(dates="dmy"))[0][0] == pd.Timestamp("2021-04-03")
    assert read(["3/4/2021"], usual=Conventions(dates="mdy"))[0][0] == pd.Timestamp("2021-03-04")
    # One column tells for another.
    frame, _, _ = typed(table(a=["31/12/2020"], b=["3/4/2021"]), Conventions())
    assert frame["b"][0] == pd.Timestamp("2021-04-03")


def test_dates_against_what_was_said():
    assert read(["12.10.2021"], Conventions(dates="mdy"))[0][0] == pd.Timestamp("2021-12-10")


def test_only_what_was_recognised_may_be_of_texts_instead():
    """Not what the training rows had: there the remedy would not help."""
    frame = pd.DataFrame({"x": ["1", "2", "x"], "day": ["2020-01-01", "2020-01-02", "2020-13-01"]})
    for name, kind in (("x", "numeric"), ("day", "dates")):
        table = Table(frame[[name]], "t.csv", np.arange(3) + 2)
        with pytest.raises(ValueError, match=r"say that they mean missing \(--missing '\S+'\)\.$"):
            typed(table, Conventions(), **{kind: [name]})


def test_half_numbers():
    _, notes = read(["10", "20", "l0"] * 5)
    assert notes[0].startswith("Column 'x' is taken for texts, because of 'l0' beside numbers")


def test_what_training_rows_say_holds_later():
    usual = Conventions(missing=["-999"], signs={"x": "%"})
    found, notes = read(["-999", "-999.0", "5"], usual=usual)
    assert found.isna().tolist() == [True, True, False]
    assert notes == [
        "The numbers of 'x' had the sign % in the training rows, and have no such sign here: are "
        "they in the same unit?"
    ]
    assert read(["5%", "6%"], usual=usual)[1] == ["The sign % of the numbers in x is left out."]
    # Nothing has told of decimals, so nothing stands for later.
    _, conventions, _ = typed(table(",", x=["1", "2"]), Conventions())
    assert conventions.decimal is None


def test_columns_that_are_empty():
    empty = ["", "", ""]
    assert read(empty, numeric=["x"])[0].dtype == "float64"
    assert read(["NA", "", ""], numeric=["x"])[0].isna().all()
    assert read(empty, dates=["x"])[0].dtype == "datetime64[us]"
    assert read(empty, categorical=["x"])[0].isna().all()
    assert read(empty)[0].isna().all()
    nothing = Table(pd.DataFrame({"x": [None, None]}), "t.xlsx", np.arange(2))
    for kind, dtype in (("numeric", "float64"), ("dates", "datetime64[us]")):
        assert typed(nothing, Conventions(), **{kind: ["x"]})[0]["x"].dtype == dtype


def test_numbers_in_cells_of_spreadsheets_are_what_they_are():
    frame = pd.DataFrame({"x": [1.125, 2.375, "?", 7], "y": ["0,5", "1,5", "2", "3"]})
    found, _, _ = typed(Table(frame, "t.xlsx", np.arange(4)), Conventions())
    assert found["x"].fillna(0).tolist() == [1.125, 2.375, 0, 7]
    assert found["y"].tolist() == [0.5, 1.5, 2, 3]
    found, _, _ = typed(Table(frame, "t.xlsx", np.arange(4)), Conventions(missing=["7"]))
    assert found["x"].isna().tolist() == [False, False, True, True]
    mixed = pd.DataFrame({"x": ["Oslo", 7, 1.5, None]})
    found, _, _ = typed(Table(mixed, "t.xlsx", np.arange(4)), Conventions())
    assert found["x"].fillna("").tolist() == ["Oslo", "7", "1.5", ""]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("dtype", [object, "Int64", "category"])
def test_long_codes_stay_different_beside_missing_ones(tmp_path, ending, dtype):
    codes = ["12345678901234567", "12345678901234568", None]
    frame = pd.DataFrame({"x": pd.array([c and int(c) for c in codes], "Int64"), "y": [1, 2, 3]})
    if dtype == "category":
        frame["x"] = pd.Categorical([int(c) if c else None for c in codes])
    else:
        frame["x"] = frame["x"].astype(dtype).where(frame["x"].notna(), None)
    path = tmp_path / f"t.{ending}"
    getattr(frame, f"to_{ending}")(path, index=False)
    found, _, _ = typed(read_table(path), Conventions(), categorical=["x"])
    assert found["x"].tolist()[:2] == codes[:2]
    assert found["x"].isna().tolist() == [False, False, True]


def test_codes_that_are_floats():
    exact = pd.DataFrame({"x": [1234567890123456.0, 1234567890123457.0, 1.0, 0.5, np.nan]})
    found, _, _ = typed(Table(exact, "t.xlsx", np.arange(5)), Conventions(), categorical=["x"])
    assert found["x"].tolist()[:4] == ["1234567890123456", "1234567890123457", "1", "0.5"]
    lost = Table(exact * 10, "t.xlsx", np.arange(5))
    with pytest.raises(ValueError, match="'x' has codes of 16 digits or more, such as 1234567890"):
        typed(lost, Conventions(), categorical=["x"])
    assert typed(lost, Conventions())[0]["x"].max() == 12345678901234570.0


def test_long_codes_of_a_spreadsheet(tmp_path):
    """A workbook does not keep all of their digits."""
    codes = [123456789012345678, 123456789012345679]
    pd.DataFrame({"x": codes, "y": [1, 2]}).to_excel(tmp_path / "t.xlsx", index=False)
    with pytest.raises(ValueError, match="'x' has codes of 16 digits or more"):
        typed(read_table(tmp_path / "t.xlsx"), Conventions(), categorical=["x"])
    numbers, _, _ = typed(read_table(tmp_path / "t.xlsx"), Conventions())
    assert numbers["x"].tolist() == pytest.approx(codes)
    pd.DataFrame({"x": [2**53 - 1, -7], "y": [1, 2]}).to_excel(tmp_path / "t.xlsx", index=False)
    found, _, _ = typed(read_table(tmp_path / "t.xlsx"), Conventions(), categorical=["x"])
    assert found["x"].tolist() == ["9007199254740991", "-7"]


def test_types_of_parquet_and_spreadsheets():
    columns = {
        "int8": pd.array([1, 2], "int8"),
        "uint64": pd.array([1, 2], "uint64"),
        "float16": np.array([1, 2], "float16"),
        "Int64": pd.array([1, None], "Int64"),
        "boolean": pd.array([True, None], "boolean"),
        "bool": [True, False],
        "decimal": [decimal.Decimal("1.5"), None],
        "duration": pd.to_timedelta(["1s", "2s"]),
        "mixed": [1, None],
    }
    frame = pd.DataFrame({**columns, "day": [datetime.date(2021, 3, 4), None]})
    frame["zoned"] = pd.to_datetime(["2021-03-04T00:00Z", None])
    frame["kind"] = pd.Categorical(["a", None])
    found, _, _ = typed(Table(frame, "t.parquet", np.arange(2) + 1), Conventions())
    assert (found[[*columns]].dtypes == "float64").all()
    assert found["boolean"].iloc[0] == 1
    assert found["decimal"].iloc[0] == 1.5
    assert found["duration"].tolist() == [1, 2]
    assert (found[["day", "zoned"]].dtypes == "datetime64[us]").all()
    assert found["kind"].fillna("").tolist() == ["a", ""]
    frame["list"] = [[1], [2]]
    with pytest.raises(ValueError, match="'list' holds values of the kind list"):
        typed(Table(frame, "t.parquet", np.arange(2) + 1), Conventions())


def test_declared_categories_are_texts_unless_named_otherwise():
    kinds = {"whole": [3, None], "texts": ["3", None], "truth": [True, None], "parts": [0.5, None]}
    frame = pd.DataFrame({name: pd.Categorical(values) for name, values in kinds.items()})
    table = Table(frame, "t.parquet", np.arange(2) + 1)
    found, _, _ = typed(table, Conventions())
    assert found.iloc[0].tolist() == ["3", "3", "True", "0.5"]
    assert found.iloc[1].isna().all()
    found, _, _ = typed(table, Conventions(), numeric=[*kinds])
    assert (found.dtypes == "float64").all()
    assert found.iloc[0].tolist() == [3, 3, 1, 0.5]
    found, _, _ = typed(table, Conventions(), lenient=["whole"])
    assert found["whole"].iloc[0] == 3
    frame["day"] = pd.Categorical(pd.to_datetime(["2021-03-04", None]))
    found, _, _ = typed(table, Conventions(), dates=["day"])
    assert found["day"].iloc[0] == pd.Timestamp("2021-03-04")
    found, _, _ = typed(table, Conventions())
    assert found["day"].iloc[0] == pd.Timestamp("2021-03-04")
    found, _, _ = typed(table, Conventions(), categorical=["day"])
    assert found["day"].iloc[0] == "2021-03-04 00:00:00"


NUMBERS = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=3, max_size=12).filter(
    lambda values: any(v != round(v, 2) or abs(v) < 100 for v in values)
)


def written(x, mark, thousands):
    digits = f"{abs(x):,.3f}" if thousands else f"{abs(x):.3f}"
    digits = digits.translate({ord(","): thousands, ord("."): mark})
    return ("-" if x < 0 else "") + digits


@settings(max_examples=150, deadline=None)
@given(
    numbers=NUMBERS,
    separator=st.sampled_from([",", ";", "\t", "|"]),
    mark=st.sampled_from([".", ","]),
    thousands=st.sampled_from(["", "'", " ", "\u00a0", "other"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    end=st.sampled_from(["\n", "\r\n"]),
    behind=st.booleans(),
    above=st.sampled_from(["", "# written by hand\n", "Title\n\n"]),
)
def test_a_table_in_any_dialect_is_the_plain_one(
    tmp_path_factory, numbers, separator, mark, thousands, encoding, end, behind, above
):
    thousands = {"other": "." if mark == "," else ","}.get(thousands, thousands)
    cities = ["Oslo", "Zürich", "São Paulo"]
    rows = [["größe", "city"]]
    for i, x in enumerate(numbers):
        cell = written(x, mark, thousands)
        rows.append([f'"{cell}"' if separator in cell else cell, cities[i % 3]])
    lines = [separator.join(row) + separator * behind for row in rows]
    text = end.join([*above.splitlines(), *lines, ""])
    path = tmp_path_factory.mktemp("dialects") / "t.csv"
    path.write_bytes(text.encode(encoding))
    options = Conventions()
    if all(x == round(x) or abs(x) >= 1 for x in numbers):  # three digits may be thousands
        options = Conventions(decimal=mark)
    found, conventions, _ = typed(read_table(path), options)
    assert conventions.decimal == mark
    assert found["größe"].tolist() == numbers
    assert found["city"].tolist() == [cities[i % 3] for i in range(len(numbers))]


# What is asked, or refused


def reading(values, conventions=None, **options):
    return lambda: read(values, conventions, **options)


def typing(**columns):
    return lambda: typed(table(**columns), Conventions())


HALVES = [f"{i}.5" for i in range(50)]
AMERICAN = [f"{i},{100 + i}" for i in range(1, 40)]
TEXTS = "in 2 of 50 rows: line 9 '12O', line 11 'abc'"
OTHER_DATES = "dates such as 13/04/2021, in which the day does not stand where --dates mdy has it"


@refusals(
    {
        "thousands or decimals": (
            reading(["1,234", "5,678"]), ValueError, r"'x' has numbers such as 1,234.*--decimal"
        ),
        "decimal points and commas": (
            typing(x=["0.5", "1"], y=["0,5", "1"]),
            ValueError, "Of the columns 'x' and 'y', one has decimal points",
        ),
        "another sign for decimals": (
            lambda: Conventions(decimal="x"), ValueError, r"--decimal must be . or ,"
        ),
        "thousands or decimals, where training rows have not told": (
            lambda: read(["1,237", "2,374"], usual=typed(table(",", x=["1"]), Conventions())[1]),
            ValueError, "--decimal",
        ),
        "points between commas, where training rows had decimal commas": (
            reading(["1.234", "2.345"], separator=",", usual=Conventions(decimal=",")),
            ValueError, r"'x' has numbers such as 1.234.*--decimal",
        ),
        "one cell against all others": (
            reading([*AMERICAN, "12,34"], separator=","),
            ValueError, "in 1 of 40 rows: line 41 '12,34'",
        ),
        "one decimal among thousands": (
            reading([*(v.replace(",", ".") for v in AMERICAN), "1.23"]),
            ValueError, "not clear whether thousands or decimals",
        ),
        "two texts among numbers": (
            reading([*HALVES[:7], "12O", HALVES[8], "abc", *HALVES[10:]]),
            ValueError, TEXTS + ".*--missing '12O' 'abc'.*--categorical 'x'",
        ),
        "a text in a column of numbers": (
            reading(["1", "a"], numeric=["x"]),
            ValueError, "'x' holds numbers, but not in 1 of 2 rows",
        ),
        "texts that stand for missing numbers": (
            reading([f"{i}.5" if i % 4 else "unknown" for i in range(40)]),
            ValueError, "'x' holds numbers, but not in 10 of 40 rows",
        ),
        "numbers of a column that is not there": (
            reading(["1"], numeric=["z"]), ValueError, r"no column 'z'. The columns are x"
        ),
        "two kinds at once": (
            reading(["1"], numeric=["x"], categorical=["x"]),
            ValueError, "cannot be numeric and categorical at once",
        ),
        "days or months first": (
            reading(["3/4/2021", "5/6/2021"]),
            ValueError, r"such as 3/4/2021.*--dates dmy or --dates mdy",
        ),
        "a day that is not there": (
            reading(["31.2.2021", "1.1.2021"]),
            ValueError, r"not in 1 of 2 rows: line 2 '31.2.2021'",
        ),
        "a text in a column of dates": (
            reading(["2021-03-04", "soon"], dates=["x"]),
            ValueError, "'x' holds dates, but not in 1 of 2 rows: line 3 'soon'",
        ),
        "a text among dates": (
            reading([*(f"2021-01-{1 + i % 28}" for i in range(39)), "unknown"]),
            ValueError, r"'x' holds dates, but not in 1 of 40 rows: .* 'unknown'",
        ),
        "dates against what was said": (
            reading(["13/04/2021", "2/6/2021"], Conventions(dates="mdy")),
            ValueError, OTHER_DATES + r"\.",
        ),
        "dates against the training rows": (
            reading(["13/04/2021", "2/6/2021"], usual=Conventions(dates="mdy")),
            ValueError, OTHER_DATES + ", as in the training rows",
        ),
    }
)  # fmt: skip
def test_what_is_asked(call, error, words):
    with pytest.raises(error, match=words):
        call()
