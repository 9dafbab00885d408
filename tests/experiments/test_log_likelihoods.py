"""The published numbers give the printed table."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from pyro_dgp import cli
from pyro_dgp.experiments.reproduce.log_likelihoods import read_evaluations, table1

PUBLISHED = Path(__file__).parents[1] / "data" / "table1_test_log_likelihood.csv"

PRINTED = """\
| Dataset | Splits | REG | SE | DReG | SE | p-value |
|---|---|---|---|---|---|---|
| forest | 18 | 0.59 | (0.08) | **0.63** | (0.08) | 0.1% |
| solar | 17 | 2.33 | (0.17) | **2.57** | (0.11) | 2.8% |
| pol | 19 | 2.99 | (0.01) | 2.99 | (0.01) | 24.7% |
| power | 20 | 0.21 | (0.01) | 0.21 | (0.01) | 67.3% |
| winewhite | 20 | -1.11 | (0.01) | -1.11 | (0.01) | 50.0% |
| winered | 20 | 0.57 | (0.27) | **0.61** | (0.20) | 41.1% |
| Across datasets | 114 | | | | | 1.2% |
"""


def test_the_printed_table_digit_for_digit(capsys):
    assert cli.main(["reproduce", "table1", "--published", str(PUBLISHED)]) == 0
    assert capsys.readouterr().out == PRINTED


def test_the_outlier_rule_of_the_text():
    """What two standard deviations with ddof 1 exclude from the published splits."""
    table = table1(read_evaluations(PUBLISHED), outliers=2.0)
    excluded = {row.dataset: row.excluded for row in table.rows}
    assert excluded == {
        "forest": (2,), "solar": (5, 18), "pol": (), "power": (2,), "winewhite": (5,),
        "winered": (25,),
    }  # fmt: skip
    p = [round(100 * row.p_value, 1) for row in table.rows]
    assert p == [0.2, 4.4, 24.7, 53.2, 58.0, 56.4]
    assert round(100 * table.p_value, 1) == 2.0


def test_p_value_by_hand():
    """The signed-rank statistic's normal approximation, written out."""
    rng = np.random.default_rng(0)
    reg, dreg = rng.standard_normal((2, 15))
    values = {"a": {"reg": dict(enumerate(reg)), "dreg": dict(enumerate(dreg))}}
    d = dreg - reg
    n, ranks = len(d), rankdata(np.abs(d))
    mean, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
    expected = norm.sf((ranks[d > 0].sum() - mean) / math.sqrt(variance))
    (row,) = table1(values).rows
    assert row.p_value == pytest.approx(expected)
    assert row.error["reg"] == pytest.approx(reg.std(ddof=1) / math.sqrt(n))


def test_other_formats():
    table = table1(read_evaluations(PUBLISHED))
    rows = list(csv.DictReader(table.csv().splitlines()))
    assert [float(rows[1][c]) for c in ("reg_mean", "dreg_mean")] == pytest.approx(
        [2.3282, 2.5743], abs=5e-5
    )
    assert float(rows[-1]["p_value"]) == pytest.approx(0.0124, abs=5e-5)
    assert r"solar & 17 & 2.33 & (0.17) & \textbf{2.57} & (0.11) & 2.8\% \\" in table.latex()


def test_one_split_and_equal_values():
    table = table1({"a": {"reg": {3: 1.0}, "dreg": {3: 1.0}}})
    assert "| a | 1 | 1.00 |  | 1.00 |  |  |" in table.markdown()
    assert math.isnan(table.p_value)


HEADER = "dataset,estimator,split,eval_index,test_log_likelihood\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset,split\na,1\n", "has no column estimator"),
        (HEADER + "a,reg,0,0,high\n", "line 2: could not convert"),
        (HEADER + "a,reg,0,0,nan\n", "line 2: estimator 'reg', value nan"),
        (HEADER + "a,vi,0,0,1.0\n", "line 2: estimator 'vi'"),
        (HEADER + "a,reg,x,0,1.0\n", "line 2: invalid literal"),
        (HEADER + "a,reg\n", "line 2"),
        ("", "has no column dataset"),
    ],
)
def test_bad_files(tmp_path, capsys, text, message):
    path = tmp_path / "numbers.csv"
    path.write_text(text)
    assert cli.main(["reproduce", "table1", "--published", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_wrong_use_of_published(tmp_path, capsys):
    assert cli.main(["reproduce", "figure4", "--published", str(PUBLISHED)]) == 2
    assert "belongs to table1" in capsys.readouterr().err
    assert cli.main(["reproduce", "table1", "--published", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
