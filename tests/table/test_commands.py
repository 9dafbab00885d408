"""fit, predict and plot, as someone with a CSV file types them."""

import sys

import numpy as np
import pandas as pd
import pytest

from pyro_dgp.cli import main
from pyro_dgp.table import report as report_module

pytestmark = pytest.mark.filterwarnings("ignore:.*interactive:UserWarning")


def table(num_rows=60):
    rng = np.random.default_rng(0)
    size = rng.gamma(4, 30, num_rows)
    city = rng.choice(["Oslo", "Rome"], num_rows)
    price = 1000 * size * (1 + (city == "Oslo")) * rng.lognormal(0, 0.1, num_rows)
    return pd.DataFrame({"size": size, "city": city, "price": price})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table().to_csv(folder / "houses.csv", index=False)
    patch = pytest.MonkeyPatch()
    patch.setattr(report_module, "_PROBABILITIES", np.array([0.25, 0.75]))
    code = main(
        ["fit", str(folder / "houses.csv"), "--target", "price", "--layers", "1", "--steps", "4",
         "--quiet", "--output", str(folder / "houses.pt")]
    )  # fmt: skip
    patch.undo()
    assert code == 0
    return folder


def test_fit_leaves_a_model_and_nothing_else(fitted):
    assert sorted(p.name for p in fitted.iterdir()) == ["houses.csv", "houses.pt"]


def test_an_interrupted_fit_leaves_an_earlier_model_alone(fitted, capsys, ctrl_c_at, tmp_path):
    output = tmp_path / "m.pt"
    output.write_bytes(earlier := (fitted / "houses.pt").read_bytes())
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "5", "--quiet"]
    command += ["--layers", "1", "--test-fraction", "0", "--output", str(output)]
    steps = ctrl_c_at(3)
    assert main(command) == 130
    assert "interrupted after 3 steps. The model so far is" in capsys.readouterr().err
    assert output.read_bytes() == earlier
    assert main(["predict", f"{output}.partial", str(fitted / "houses.csv")]) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert "the model's 5 steps\nmodel  " in capsys.readouterr().out
    assert len(steps) == 5 + 4 * 2  # those of the folds, too
    assert output.read_bytes() != earlier
    assert list(tmp_path.iterdir()) == [output]


def test_predict(fitted, capsys, tmp_path):
    new = table(5).drop(columns="price")[["city", "size"]]
    new.to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", str(fitted / "houses.pt"), str(tmp_path / "new.csv")]
    assert (
        main([*command, "--quantiles", "0.1", "0.9", "--output", str(tmp_path / "p.csv.gz")]) == 0
    )
    found = pd.read_csv(tmp_path / "p.csv.gz")
    assert list(found) == ["price_mean", "price_std", "price_q0.1", "price_q0.9"]
    assert len(found) == 5
    assert (found["price_q0.1"] < found["price_q0.9"]).all()
    capsys.readouterr()
    assert main(["predict", str(fitted / "houses.pt"), str(fitted / "houses.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 61
    assert lines[0].endswith("price_q0.95,log_density")


def test_plot(fitted, tmp_path):
    command = ["plot", str(fitted / "houses.pt"), str(fitted / "houses.csv")]
    assert main([*command, "--output", str(tmp_path / "figures")]) == 0
    names = ["along_input.png", "calibration.png", "densities.png", "training.png"]
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == names


def test_report(fitted, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report_module, "_PROBABILITIES", np.array([0.25, 0.75]))
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2"]
    command += ["--layers", "1", "--quiet", "--output", str(tmp_path / "m.pt")]
    assert main(command) == 0
    out = capsys.readouterr().out
    for line in ("On 6 held-out rows", "latent deep GP", "normal distribution", "quantile boost"):
        assert line in out
    assert main([*command, "--test-fraction", "0", "--target", "price", "size"]) == 0
    assert "held-out" not in capsys.readouterr().out


def test_a_time_limit_is_told_in_a_line(fitted, capsys, tmp_path):
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "100000"]
    command += ["--layers", "1", "--quiet", "--test-fraction", "0", "--time-limit", "4"]
    assert main([*command, "--output", str(tmp_path / "m.pt")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pyro-dgp: time_limit=4.0 leaves time for")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["fit", "absent.csv", "--target", "price"], "No such file"),
        (["fit", "houses.csv", "--target", "prize"], "no column 'prize'. The columns are size"),
        (["fit", "houses.csv", "--target", "price", "--test-fraction", "1"], "--test-fraction"),
        (["fit", "houses.csv", "--target", "price", "--steps", "0"], "num_steps must be at least"),
        (["fit", "houses.csv", "--target", "price", "--output", "."], "is a folder"),
        (["predict", "houses.csv", "houses.csv"], "is no model of pyro_dgp"),
        (["predict", "houses.pt", "houses.csv", "--quantiles", "5"], "--quantiles must lie"),
        (["predict", "houses.pt", "houses.csv", "--device", "cuda:99"], "cuda:99"),
        (["plot", "houses.pt", "houses.csv", "--input", "zip"], "--input zip is no input"),
        (["plot", "houses.pt", "houses.csv", "--output", "houses.csv"], "is a file"),
    ],
)
def test_errors_are_one_line(fitted, capsys, monkeypatch, arguments, match):
    monkeypatch.chdir(fitted)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert match in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "houses.csv", "--target", "price"],
        ["predict", "houses.pt", "houses.csv"],
        ["plot", "houses.pt", "houses.csv"],
    ],
)
@pytest.mark.parametrize("missing", ["pandas", "sklearn.preprocessing"])
def test_packages_that_are_missing(fitted, capsys, monkeypatch, arguments, missing):
    monkeypatch.chdir(fitted)
    monkeypatch.setitem(sys.modules, missing, None)
    for name in ("pyro_dgp.sklearn", "pyro_dgp.table.frames", "pyro_dgp.table.report"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(arguments) == 2
    assert "pip install 'pyro_dgp[table]'" in capsys.readouterr().err
