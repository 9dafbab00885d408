from datetime import date, datetime, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.table.columns import Columns, names_of_rows
from pyro_dgp.table.labels import as_classes
from tests.refusals import refusals

FRAME = pd.DataFrame(
    {
        "size": [1.0, 2.0, 4.0, 8.0],
        "rooms": [1, 2, 2, 3],
        "city": ["Oslo", "Rome", "Rome", "Rome"],
        "garden": [True, False, True, False],
        "price": [10.0, 20.0, 30.0, 45.0],
    }
)


def test_numbers_truth_values_and_categories():
    columns = Columns.of(FRAME, ["price"])
    X = columns.inputs(FRAME)
    assert list(X) == ["size", "rooms", "garden", "city_Rome", "city_Oslo"]
    assert X["garden"].tolist() == [1, 0, 1, 0]
    assert X["city_Oslo"].tolist() == [1, 0, 0, 0]
    assert columns.target_values(FRAME).tolist() == FRAME["price"].tolist()
    # What is kept is enough for rows of another day, in another order of columns.
    again = Columns(**columns.as_dict())
    new = FRAME[["city", "garden", "rooms", "size"]].iloc[[1]]
    assert again.inputs(new).to_numpy().tolist() == X.iloc[[1]].to_numpy().tolist()
    assert again.remarks(new) == []


def test_codes_that_are_declared_as_categories():
    frame = FRAME.assign(city=pd.Categorical([7, 3, 3, None]), rooms=FRAME["rooms"].astype("int8"))
    columns = Columns.of(frame, ["price"])
    assert [n for n in columns.inputs(frame) if "city" in n] == [
        "city_3",
        "city_7",
        "city (missing)",
    ]
    assert columns.inputs(frame)["city_7"].tolist() == [1, 0, 0, 0]
    # Also where rows of another day have them as numbers.
    new = frame.assign(city=[7.0, 3.0, 3.0, np.nan])
    assert columns.inputs(new).equals(columns.inputs(frame))
    assert columns.remarks(new) == []


def test_several_targets_and_dropped_columns():
    columns = Columns.of(FRAME, ["price", "size"], drop=["city"])
    assert list(columns.inputs(FRAME)) == ["rooms", "garden"]
    assert columns.target_values(FRAME).shape == (4, 2)


def test_what_is_missing_is_an_input():
    frame = FRAME.assign(size=[1.0, np.nan, np.nan, 8.0], city=["Oslo", None, "Rome", "Rome"])
    columns = Columns.of(frame, ["price"])
    X = columns.inputs(frame)
    assert X["size"].tolist() == [1, 4.5, 4.5, 8]
    assert X["size (missing)"].tolist() == [0, 1, 1, 0]
    assert X["city_Rome"].tolist() == [0, 0, 1, 1]
    assert X["city (missing)"].tolist() == [0, 1, 0, 0]
    assert columns.remarks(frame) == []
    # Nothing but missing or not is information, too.
    only = Columns.of(FRAME.assign(size=[1.0, np.nan, 1.0, 1.0]), ["price"])
    assert "size (missing)" in only.inputs(frame)


def test_what_was_never_missing_is_told():
    columns = Columns.of(FRAME, ["price"])
    new = FRAME.assign(size=[1, np.nan, 4, 8], city=["Oslo", None, "Rome", "Rome"])
    X = columns.inputs(new)
    assert X["size"].tolist() == [1, 3, 4, 8]
    assert X.loc[1, ["city_Oslo", "city_Rome"]].tolist() == [0, 0]
    number, text = columns.remarks(new)
    assert "'size' is missing in 1 row, as it never was" in number
    assert "Column 'city' is missing in 1 row, as it never was" in text


def test_dates():
    days = pd.to_datetime(["2020-01-06", "2020-02-04", "2021-03-03", None])
    columns = Columns.of(FRAME.assign(day=days), ["price"])
    X = columns.inputs(FRAME.assign(day=days))
    parts = ["year", "month", "day of year", "weekday"]
    assert [c for c in X if c.startswith("day")] == [
        *(f"day ({part})" for part in parts),
        "day (missing)",
    ]
    assert X["day (year)"].tolist() == [2020, 2020, 2021, 2020]
    assert X["day (day of year)"].tolist() == [6, 35, 62, 35]
    assert X["day (weekday)"].tolist()[:3] == [0, 1, 2]
    assert X["day (missing)"].tolist() == [0, 0, 0, 1]
    remark, *_ = columns.remarks(FRAME.assign(day=pd.to_datetime("2030-01-05")))
    assert "'day (year)' lies far outside the training rows, which are from 2020 to 2021" in remark
    hours = pd.date_range("2020-01-01", periods=4, freq="30min")
    X = Columns.of(FRAME.assign(day=hours), ["price"]).inputs(FRAME.assign(day=hours))
    assert X["day (hour)"].tolist() == [0, 0.5, 1, 1.5]
    assert "day (year)" not in X


def test_columns_that_do_not_vary_are_left_out():
    frame = FRAME.assign(size=3.0, city="Oslo", day=pd.Timestamp("2020-01-01"), empty=np.nan)
    columns = Columns.of(frame, ["price"])
    assert columns.constant == ["size", "city", "day", "empty"]
    assert columns.used == ["rooms", "garden"]


def test_many_categories():
    """Rare ones together; new ones with them, or nowhere where there were none."""
    counts = [*range(1, 30), 100]
    names = np.repeat([f"c{i}" for i in range(len(counts))], counts)
    frame = pd.DataFrame({"x": names, "y": np.arange(len(names), dtype=float)})
    columns = Columns.of(frame, ["y"])
    X = columns.inputs(frame)
    assert X.shape[1] == 27
    assert X["x (other)"].sum() == 1 + 2 + 3 + 4
    assert (X.sum(axis=1) == 1).all()
    new = pd.DataFrame({"x": ["c29", "new"]})
    assert columns.inputs(new)[["x_c29", "x (other)"]].to_numpy().tolist() == [[1, 0], [0, 1]]
    assert columns.remarks(new) == []
    few = Columns.of(FRAME, ["price"])
    new = FRAME.assign(city=["Oslo", "Bonn", "Bonn", "Ulm"])
    assert few.inputs(new)[["city_Oslo", "city_Rome"]].sum(axis=1).tolist() == [1, 0, 0, 0]
    (remark,) = few.remarks(new)
    assert "'city' has texts in 3 rows that were not in the training rows (Bonn, Ulm)" in remark


def test_far_outside_the_training_rows():
    columns = Columns.of(FRAME, ["price"])
    (remark,) = columns.remarks(FRAME.assign(size=[1, 11, 12, -3.0]))
    assert remark == (
        "'size' lies far outside the training rows, which are from 1 to 8, in 2 rows (such as 12)."
    )


def test_names_of_rows():
    n = 30
    frame = pd.DataFrame(
        {
            "count": np.arange(5.0, 5 + n),
            "name": [f"r{i}" for i in range(n)],
            "number": np.arange(n) * 2.0,
            "city": ["Oslo", "Rome"] * (n // 2),
        }
    )
    frame["address"] = [f"street {i}" if i < 25 else "market" for i in range(n - 1)] + ["x"]
    assert names_of_rows(frame).keys() == {"count", "name", "address"}
    assert names_of_rows(frame.iloc[:10]) == {}
    assert names_of_rows(frame.assign(count=np.inf)).keys() == {"name", "address"}


def test_types_of_databases_are_numbers_and_dates():
    frame = FRAME.assign(
        cost=[Decimal("1.5"), None, Decimal("2"), Decimal("4")],
        day=[date(2020, 1, d) for d in (1, 2, 5, 9)],
        wait=pd.to_timedelta([1, 2, 3, 5], "h"),
    )
    zoned = pd.Series(
        [datetime(2020, 1, d, tzinfo=timezone.utc) for d in (1, 2, 5, 9)], dtype=object
    )
    assert list(Columns.of(FRAME.assign(day=zoned), ["price"]).dates) == ["day"]
    columns = Columns.of(frame, ["price"])
    assert {"cost", "wait"} <= columns.numbers.keys()
    assert list(columns.dates) == ["day"]
    assert columns.constant == []
    X = columns.inputs(frame)
    assert X["cost"].tolist() == [1.5, 2, 2, 4]
    assert X["wait"].tolist() == [3600, 7200, 10800, 18000]


def test_a_row_in_which_everything_is_missing():
    frame = FRAME.assign(when=pd.date_range("2020-01-01", periods=4))
    columns = Columns.of(frame, ["price"])
    empty = pd.DataFrame([dict.fromkeys(columns.used)])
    assert len(columns.remarks(empty)) > 3
    X = columns.inputs(empty)
    assert X.loc[0, ["size", "rooms", "when (day of year)"]].tolist() == [3, 2, 2.5]
    assert X["city_Oslo"].tolist() == [0]


def test_numbers_for_categories_may_be_written_otherwise():
    """As pandas writes whole numbers with a decimal once one of them is missing."""
    frame = FRAME.assign(zone=["1", "2", "2", "3"], old=["1.0", "2.0", "2.0", "0.0"])
    columns = Columns.of(frame, ["price"])
    new = frame.assign(zone=["1.0", "2.0", None, "3"], old=["1", "2", "2", "0"])
    X, before = columns.inputs(new), columns.inputs(frame)
    zones = [name for name in X if name.startswith("zone_")]
    assert X.loc[[0, 1, 3], zones].equals(before.loc[[0, 1, 3], zones])
    assert X.filter(like="old_").equals(before.filter(like="old_"))
    assert [note for note in columns.remarks(new) if "old" in note] == []


def test_classes_may_be_written_otherwise():
    for classes, texts in ((["0", "1"], ["0.0", "1"]), (["0.0", "1.0"], ["0", "1.0"])):
        assert as_classes(pd.Series([*texts, "x", None]), classes).tolist()[:2] == classes
    codes = ["20", "1234567890123457", "10"]
    others = pd.Series(["2E1", "1234567890123458", "1_0"])
    assert as_classes(others, codes).tolist() == others.tolist()


def test_a_typical_row():
    row = Columns.of(FRAME, ["price"]).typical(FRAME)
    assert row.iloc[0].to_dict() == {"size": 3.0, "rooms": 2.0, "garden": 0.5, "city": "Rome"}


def inputs(frame):
    return lambda: Columns.of(frame, ["price"]).inputs(frame)


def of_new_rows(frame):
    return lambda: Columns.of(FRAME, ["price"]).inputs(frame)


@refusals(
    {
        "a target of texts": (
            inputs(FRAME.assign(price=["a", "b", "c", "d"])),
            ValueError, "'price' must hold numbers.* 'a', 'b', 'c'",
        ),
        "a target of dates": (
            inputs(FRAME.assign(price=pd.Timestamp("2020-01-01"))),
            ValueError, "'price' must hold numbers.*dates",
        ),
        "an infinite target": (
            inputs(FRAME.assign(price=[1, 2, np.inf, 3])),
            ValueError, "'price' is infinite in 1 row",
        ),
        "an infinite input": (
            inputs(FRAME.assign(size=[1, 2, np.inf, 3])), ValueError, "'size' is infinite in 1 row"
        ),
        "a column with the name of a category's": (
            inputs(FRAME.assign(city_Oslo=[1.0, 2, 3, 4])),
            ValueError, "would be called 'city_Oslo'",
        ),
        "no inputs": (inputs(FRAME[["price"]]), ValueError, "No input column is left"),
        "no inputs that vary": (
            lambda: Columns.of(
                FRAME.assign(size=3.0, city="Oslo")[["size", "city", "price"]], ["price"]
            ),
            ValueError, r"No input column is left.*\(size, city do not vary\)",
        ),
        "no target": (
            inputs(FRAME.drop(columns="price")),
            ValueError, r"no column 'price'\. The columns are size, rooms",
        ),
        "a target that is left out": (
            lambda: Columns.of(FRAME, ["price"], drop=["price"]), ValueError, "named twice"
        ),
        "two columns of one name": (
            inputs(FRAME.rename(columns={"rooms": "size"})),
            ValueError, "several columns called 'size'",
        ),
        "a name that is a number": (
            inputs(FRAME.rename(columns={"rooms": 3})), ValueError, "must be texts, but one is 3"
        ),
        "new rows without a column": (
            of_new_rows(FRAME.drop(columns="rooms")), ValueError, "has no column 'rooms'"
        ),
        "new rows of texts": (
            of_new_rows(FRAME.assign(size=["a"] * 4)), ValueError, "Column 'size' must hold numbers"
        ),
    }
)  # fmt: skip
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
