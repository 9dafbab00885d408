import numpy as np
import pandas as pd
import pytest

from pyro_dgp.table.frames import Columns, read_table

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
    assert list(X) == ["size", "rooms", "garden", "city_Oslo", "city_Rome"]
    assert X["garden"].tolist() == [1, 0, 1, 0]
    assert X["city_Oslo"].tolist() == [1, 0, 0, 0]
    assert columns.target_values(FRAME).tolist() == FRAME["price"].tolist()
    # What is kept is enough for rows of another day, in another order of columns.
    again = Columns(**columns.as_dict())
    new = FRAME[["city", "garden", "rooms", "size"]].iloc[[1]]
    assert again.inputs(new).to_numpy().tolist() == X.iloc[[1]].to_numpy().tolist()


def test_several_targets_and_dropped_columns():
    columns = Columns.of(FRAME, ["price", "size"], drop=["city"])
    assert list(columns.inputs(FRAME)) == ["rooms", "garden"]
    assert columns.target_values(FRAME).shape == (4, 2)


def test_missing_values():
    frame = FRAME.assign(size=[1.0, np.nan, np.nan, 8.0], city=["Oslo", None, "Rome", "Rome"])
    with pytest.raises(
        ValueError, match=r"missing in 2 of 4 rows: size \(2\), city \(1\).*--impute"
    ):
        Columns.of(frame, ["price"]).inputs(frame)
    columns = Columns.of(frame, ["price"], impute=True)
    X = columns.inputs(frame)
    assert X["size"].tolist() == [1, 4.5, 4.5, 8]
    assert X["city_Rome"].tolist() == [0, 1, 1, 1]
    # A missing truth value leaves objects, a missing number among texts' numbers floats.
    new = frame.assign(garden=[True, None, False, True])
    assert columns.inputs(new)["garden"].tolist() == [1, 0.5, 0, 1]
    codes = Columns.of(FRAME.assign(city=["1234567", "2", "2", "x"]), ["price"], impute=True)
    again = codes.inputs(FRAME.assign(city=[1234567.0, 2.0, np.nan, 2.0]))
    assert again["city_1234567"].tolist() == [1, 0, 0, 0]
    assert again["city_2"].tolist() == [0, 1, 1, 1]
    with pytest.raises(ValueError, match="named twice"):
        Columns.of(FRAME, ["price"], drop=["price"])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"size": ["a"] * 4}, "Column 'size' must hold numbers"),
        ({"city": ["Oslo", "Bonn", "Rome", "Rome"]}, "not fitted to: Bonn. It knows Oslo, Rome"),
    ],
)
def test_new_rows_that_do_not_fit(change, match):
    columns = Columns.of(FRAME, ["price"])
    with pytest.raises(ValueError, match=match):
        columns.inputs(FRAME.assign(**change))
    with pytest.raises(ValueError, match="has no column 'rooms'"):
        columns.inputs(FRAME.drop(columns="rooms"))


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (FRAME.assign(price=[1.0, np.nan, 2.0, 3.0]), "'price' is missing in 1 of 4 rows"),
        (FRAME.assign(price=["a", "b", "c", "d"]), "The target 'price' must hold numbers"),
        (FRAME.assign(when=pd.to_datetime("2020-01-01")), "'when' holds datetime64"),
        (FRAME.assign(size=np.nan), "Column 'size' has no values"),
        (FRAME.assign(city_Oslo=1.0), "A category makes a column 'city_Oslo'"),
        (FRAME[["price"]], "No input column is left"),
        (
            pd.DataFrame({"id": [f"r{i}" for i in range(30)], "price": range(30)}),
            "'id' has 30 different texts in 30 rows",
        ),
        (FRAME.drop(columns="price"), "no column 'price'. The columns are size, rooms"),
    ],
)
def test_tables_that_cannot_be_used(frame, match):
    with pytest.raises(ValueError, match=match):
        Columns.of(frame, ["price"]).inputs(frame)


def test_files(tmp_path):
    FRAME.to_csv(tmp_path / "t.csv.gz", index=False)
    FRAME.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv.gz", "t.parquet"):
        pd.testing.assert_frame_equal(read_table(tmp_path / name), FRAME)
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "nameless.csv").write_text("a,,y\n1,2,3\n")
    (tmp_path / "longer.csv").write_text("a,y\n1,2,3\n4,5,6\n")
    FRAME.to_csv(tmp_path / "numbered.csv")
    assert list(read_table(tmp_path / "numbered.csv")) == list(FRAME)
    (tmp_path / "head.csv").write_text("a,b\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "other.parquet").write_text("no parquet")
    for name, match in (
        ("twice.csv", "several columns called 'a'"),
        ("head.csv", "has no rows"),
        ("longer.csv", "Length of header or names does not match"),
        ("nameless.csv", "a column other than the first has no name"),
        ("empty.csv", "cannot be read as a CSV file"),
        ("other.parquet", "cannot be read as a Parquet file"),
        (".", "is a folder"),
    ):
        with pytest.raises(ValueError, match=match):
            read_table(tmp_path / name)
