"""Shuffled columns, of a function that is known."""

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.table.columns import Columns
from pyro_dgp.table.report.importance import permutation_importance

N = 1000


class Known:
    num_samples = 7


def test_a_column_matters_by_what_shuffling_it_costs():
    """Squared errors of y = 2 a + [city = Oslo]: shuffling a column doubles its variance."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=N),
            "city": rng.choice(["Oslo", "Rome"], N).astype(object),
            "none": rng.normal(size=N),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, N), "D"),
        }
    )
    signal = 2 * frame["a"] + (frame["city"] == "Oslo")
    frame["y"] = signal + 0.5 * rng.normal(size=N)
    columns = Columns.of(frame, ["y"])

    def losses(model, X, y):
        assert model.num_samples == 7
        return np.square(y - 2 * X["a"] - X["city_Oslo"]).to_numpy()

    before = frame.copy()
    found = permutation_importance(Known(), columns, losses, frame)
    pd.testing.assert_frame_equal(frame, before)
    assert list(found) == ["a", "none", "when", "city"]
    # Growth over the noise's variance of 1/4.
    expected = {"a": 2 * 4 / 0.25, "city": 2 * 0.25 / 0.25, "none": 0.0, "when": 0.0}
    for name, (growth, error) in found.items():
        assert growth == pytest.approx(expected[name], abs=5 * error + 1e-12)
        assert error < 0.15 * max(expected[name], 1e-9)


def test_one_row_has_no_error():
    frame = pd.DataFrame({"a": [1.0, 2.0], "y": [1.0, 2.0]})
    columns = Columns.of(frame, ["y"])
    found = permutation_importance(Known(), columns, lambda m, X, y: np.ones(len(y)), frame[:1])
    assert found["a"][0] == 0
    assert np.isnan(found["a"][1])


def test_rows_of_a_sorted_table_are_drawn_from_all_of_it():
    c = np.repeat(["x", "z"], [5000, 2000]).astype(object)
    frame = pd.DataFrame({"c": c, "y": (c == "z").astype(float)})
    columns = Columns.of(frame, ["y"])
    found = permutation_importance(
        Known(), columns, lambda m, X, y: np.square(y - X["c_z"]).to_numpy() + 1, frame
    )
    assert found["c"][0] == pytest.approx(2 * 2 / 7 * 5 / 7, abs=5 * found["c"][1])
