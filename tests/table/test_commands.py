"""fit, predict and plot, as someone with a CSV file types them."""

import base64
import errno
import io
import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyro.infer import SVI

from pyro_dgp.cli import main
from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor
from pyro_dgp.table import densities
from pyro_dgp.table.columns import Columns
from pyro_dgp.table.held_out import as_plain, from_plain
from pyro_dgp.table.report.pictures import spread_rows
from tests.estimators import use_few_trees

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("ignore:.*interactive:UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def little_is_learned():
    """By the models that tests share, too, and by the quantile boosting beside them."""
    with pytest.MonkeyPatch.context() as patch:
        use_few_trees(patch)
        patch.setattr(densities, "_PROBABILITIES", np.array([0.25, 0.75]))
        yield


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
    code = main(
        ["fit", str(folder / "houses.csv"), "--target", "price", "--layers", "1", "--steps", "4",
         "--quiet", "--output", str(folder / "houses.pt")]
    )  # fmt: skip
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
    assert len(steps) == 5 + 2 * 2  # those of the folds, too
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
    names = [
        "along_input.png", "calibration.png", "densities.png", "importance.png", "training.png",
    ]  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == names


def test_report(fitted, capsys, tmp_path):
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2"]
    command += ["--layers", "1", "--quiet", "--output", str(tmp_path / "m.pt")]
    assert main(command) == 0
    out = capsys.readouterr().out
    for line in (
        "price on 6 held-out rows",
        "latent deep GP",
        "normal distribution",
        "quantile boost",
    ):
        assert line in out
    assert main([*command, "--test-fraction", "0"]) == 0
    assert "held-out" not in capsys.readouterr().out


def test_all_cores_are_used_unless_told_otherwise(fitted, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "pyro_dgp.sklearn.schedule._num_processes", lambda plan, _: asked.append(plan.n_jobs) or 1
    )
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", *QUICK]
    for options in ([], ["--jobs", "2"]):
        assert main([*command, *options, "--output", str(tmp_path / "m.pt")]) == 0
    assert asked == [-1, 2]


def test_a_time_limit_is_told_in_a_line(fitted, capsys, tmp_path):
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "100000"]
    command += ["--layers", "1", "--quiet", "--test-fraction", "0", "--time-limit", "4"]
    assert main([*command, "--output", str(tmp_path / "m.pt")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pyro-dgp: time_limit=4.0 leaves time for")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("fit absent.csv --target price", "No such file"),
        ("fit houses.csv --target prize", "no column 'prize'. The columns are size"),
        ("fit houses.csv --target price --test-fraction 1", "--test-fraction"),
        ("fit houses.csv --target price --steps 0", "num_steps must be at least"),
        ("fit houses.csv --target price --seed -1", "--seed must be at least 0, but it is -1"),
        ("fit houses.csv --target price --seed 4294967296", "--seed must be less than 2^32"),
        ("fit houses.csv --target price --jobs 0", "--jobs must be at least 1, or -1 for one"),
        ("fit houses.csv --target price --jobs -2", "--jobs must be at least -1"),
        ("predict houses.pt houses.csv --seed -1", "--seed must be at least 0, but it is -1"),
        ("fit houses.csv --target price --output .", "is a folder"),
        ("predict houses.csv houses.csv", "is no model of pyro_dgp"),
        ("predict houses.pt houses.csv --quantiles 5", "--quantiles must lie"),
        ("predict houses.pt houses.csv --device cuda:99", "cuda:99"),
        ("plot houses.pt houses.csv --input zip", "The inputs are size, city"),
        ("plot houses.pt houses.csv --output houses.csv", "is a file"),
        ("fit houses.csv --target city price", "Fit classes by themselves."),
        ("fit houses.csv --target price --report r.pdf", "ends in .html or .json"),
        ("fit houses.csv --target price --report houses.json", "not what this"),
        (
            "fit houses.csv --target price --report r.html --test-fraction 0",
            "needs rows held out",
        ),
        (
            "fit houses.csv --target price --likelihood poisson --transform log",
            "needs a likelihood of real numbers",
        ),
        ("predict houses.pt houses.csv --level 1", "--level must lie"),
        ("predict houses.pt houses.csv --draws -1", "--draws must be"),
        ("predict houses.pt houses.csv --density 3 1 9", "--density takes"),
        ("report houses.pt --output houses.csv", "not what this command writes"),
        ("plot houses.pt --target size", "--target size: the targets are price"),
        ("fit houses.csv --target price --drop zip", "no column 'zip'"),
        ("fit houses.csv --target price --numeric city", "but not in 60 of 60"),
        ("fit houses.csv --target price --output houses.csv", "table itself"),
        ("fit houses.csv --target price --output -", "a model is a file"),
        ("fit houses.csv --target price --separator ab", "must be one character"),
        ("predict houses.pt houses.csv --output houses.pt", "is the model itself"),
        ("predict houses.pt houses.csv --output houses.csv", "is the table itself"),
        (
            "predict houses.pt houses.csv --keep zip",
            "--keep: there is no column 'zip' in houses.csv",
        ),
    ],
)
def test_errors_are_one_line(fitted, capsys, monkeypatch, arguments, match):
    monkeypatch.chdir(fitted)
    Path("houses.json").write_text("{}")
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert match in error
    assert error.count("\n") == 1
    Path("houses.json").unlink()


@pytest.mark.parametrize(
    "command",
    [
        "evaluate houses.pt few.csv", "report houses.pt few.csv --output few.html",
        "fit houses.csv --target price --output few.pt --test few.csv",
    ],
)  # fmt: skip
def test_rows_to_score_need_the_inputs(fitted, capsys, monkeypatch, tmp_path, command):
    table().to_csv(tmp_path / "houses.csv", index=False)
    table().drop(columns="city").to_csv(tmp_path / "few.csv", index=False)
    monkeypatch.chdir(tmp_path)
    assert main(command.replace("houses.pt", str(fitted / "houses.pt")).split()) == 2
    assert "The table has no column 'city', which the model looks at" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(fitted, capsys, monkeypatch):
    def refuse(**_):
        raise FileNotFoundError(2, "No such file or directory", ".p.csv.temporary")

    monkeypatch.chdir(fitted)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert main(["predict", "houses.pt", "houses.csv", "--output", "p.csv"]) == 2
    error = capsys.readouterr().err
    assert "p.csv'" in error
    assert "temporary" not in error


def test_one_row_is_no_rows(fitted, tmp_path, capsys):
    lines = (fitted / "houses.csv").read_text().splitlines(keepends=True)
    (tmp_path / "one.csv").write_text("".join(lines[:2]))
    assert main(["evaluate", str(fitted / "houses.pt"), str(tmp_path / "one.csv")]) == 0
    assert "1 row of one.csv" in capsys.readouterr().out


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
    for name in list(sys.modules):
        if name.startswith(("pyro_dgp.sklearn", "pyro_dgp.table.")) and "commands" not in name:
            monkeypatch.delitem(sys.modules, name)
    assert main(arguments) == 2
    assert "pip install 'pyro_dgp[table]'" in capsys.readouterr().err


def test_files_of_others_are_not_written_over(fitted, capsys, tmp_path):
    notes, link = tmp_path / "notes.txt", tmp_path / "link.csv"
    notes.write_text("mine")
    fit = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2", "--quiet"]
    fit += ["--layers", "1", "--test-fraction", "0"]
    predict = ["predict", str(fitted / "houses.pt"), str(fitted / "houses.csv")]
    for command in (fit, predict):
        assert main([*command, "--output", str(notes)]) == 2
        assert "exists and is not what this command writes" in capsys.readouterr().err
        assert notes.read_text() == "mine"
        assert main([*command, "--output", "/dev/null"]) == 0
    # Its own files it does; a link stays one.
    output = tmp_path / "p.csv"
    link.symlink_to(output)
    for _ in range(2):
        assert main([*predict, "--output", str(link)]) == 0
    assert link.is_symlink()
    assert len(pd.read_csv(output)) == 60


def test_leftovers_of_others_are_not_touched(fitted, capsys, tmp_path):
    """What a fit writes beside the model, and removes, may be somebody's."""
    fit = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2", "--quiet"]
    fit += ["--layers", "1", "--test-fraction", "0", "--output", str(tmp_path / "m.pt")]
    for kind in ("partial", "options", "checkpoint"):
        path = tmp_path / f"m.pt.{kind}"
        path.write_text("mine")
        assert main(fit) == 2
        assert "exists and is not what this command writes" in capsys.readouterr().err
        assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]
        path.unlink()
    groups = tmp_path / "groups.csv"
    groups.write_text("region,price_mean,price_n\nN,3,4\n")
    predict = ["predict", str(fitted / "houses.pt"), str(fitted / "houses.csv"), "--output"]
    assert main([*predict, str(groups)]) == 2
    assert main([*predict, str(groups / "p.csv")]) == 2
    assert "is no folder" in capsys.readouterr().err
    capsys.readouterr()
    for kind in ("xlsx", "json", "feather", "json.gz"):
        assert main([*predict, str(tmp_path / f"p.{kind}")]) == 2
        assert "predictions are written as CSV" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", ["tsv", "tsv.gz", "CSV", "tab.csv", "csv.gz", "2024-06-01", "parquet"]
)
def test_kinds_of_files_of_predictions(fitted, tmp_path, kind):
    output = tmp_path / f"p.{kind}"
    table = [str(fitted / "houses.pt"), str(fitted / "houses.csv")]
    for _ in range(2):  # its own file may be replaced
        assert main(["predict", *table, "--output", str(output)]) == 0
    tab = "\t" if "tsv" in kind else ","
    found = pd.read_parquet(output) if kind == "parquet" else pd.read_csv(output, sep=tab)
    assert found.shape == (60, 6)
    assert next(iter(found)) == "price_mean"


def test_gaps_in_all_rows(fitted, capsys, monkeypatch):
    """Each column may be empty in all rows that are to be predicted."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"city,size\nOslo,\nRome,?\n")))
    assert main(["predict", str(fitted / "houses.pt"), "-"]) == 0
    assert "nan" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"city,size\n,7\n")))
    assert main(["predict", str(fitted / "houses.pt"), "-"]) == 0
    assert "nan" not in capsys.readouterr().out


def test_names_and_texts_with_signs_of_formulas(tmp_path):
    frame = table(40).rename(columns={"size": "size $\\foo$", "price": "$x_price$"})
    frame["city"] = frame["city"].map({"Oslo": "_$a$", "Rome": "$"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "$x_price$", "--steps", "2", "--quiet"]
    fit += ["--layers", "1", "--test-fraction", "0", "--output", str(tmp_path / "m.pt")]
    assert main(fit) == 0
    for column in ("city", "size $\\foo$"):
        plot = ["plot", str(tmp_path / "m.pt"), str(tmp_path / "t.csv"), "--input", column]
        assert main([*plot, "--output", str(tmp_path / "f")]) == 0


def test_targets_that_are_missing(fitted, capsys, tmp_path):
    """To fit, their rows are left out; to predict, they are missing from log densities alone."""
    frame = table()
    frame["price"] = frame["price"].astype(object)
    frame.loc[[3, 5], "price"] = ["?", ""]
    frame.to_csv(tmp_path / "t.csv", index=False)
    command = ["predict", str(fitted / "houses.pt"), str(tmp_path / "t.csv"), "--keep", "city"]
    assert main([*command, "--output", str(tmp_path / "p.parquet")]) == 0
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert found["city"].tolist() == frame["city"].tolist()
    assert np.flatnonzero(found["log_density"].isna()).tolist() == [3, 5]
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "price", "--steps", "2", "--quiet"]
    fit += ["--layers", "1", "--test-fraction", "0", "--output", str(tmp_path / "m.pt")]
    assert main(fit) == 0
    out, err = capsys.readouterr()
    assert "58 rows, 0 held out, 3 inputs" in out
    assert "2 of 60 rows without the target 'price' are left out." in err


def test_a_spreadsheet_goes_all_the_way(capsys, monkeypatch, tmp_path):
    """Semicolons, decimal commas, dates, row numbers, a constant, missing cells, many texts."""
    frame = table(80)
    rng = np.random.default_rng(1)
    frame.insert(0, "nr", range(1, 81))
    frame["when"] = pd.date_range("2020-01-01", periods=80, freq="37h").strftime("%d.%m.%Y")
    frame["country"] = "NA"
    frame["street"] = [f"street {i}" for i in range(80)]
    frame["size"] = frame["size"].where(rng.random(80) > 0.1)
    frame["city"] = frame["city"].where(rng.random(80) > 0.1)
    frame["price"] = [f"{x:,.2f} €".translate({44: 46, 46: 44}) for x in frame["price"]]
    path, model = tmp_path / "t.csv", str(tmp_path / "m.pt")
    path.write_text(frame.to_csv(sep=";", decimal=",", index=False), encoding="cp1252")
    fit = ["fit", str(path), "--target", "price", "--steps", "2", "--quiet", "--layers", "1"]
    assert main([*fit, "--output", model]) == 0
    out, err = capsys.readouterr()
    assert "inputs from the columns: 1 of numbers, 1 of dates, 1 of texts" in out
    for note in (
        "Fields are separated by semicolons.",
        "Latin-1",
        "Numbers have decimal commas.",
        "The sign € of the numbers in price is left out.",
        "Column 'nr' is left out: it counts the rows",
        "Column 'street' is left out: all of its texts are different",
        "Left out, as they do not vary: country.",
    ):
        assert note in err
    new = "city;size;when\nBonn;100;01.01.2030\nOslo;;02.01.2020\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(new.encode())))
    assert main(["predict", model, "-"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "'city' has texts in 1 row that were not in the training rows (Bonn)" in err
    assert "'when (year)'" not in err  # one year only: it is no input
    for column in ("city", "when", "size"):
        arguments = ["plot", model, str(path), "--output", str(tmp_path / "f"), "--input", column]
        assert main(arguments) == 0


def test_evaluate_and_a_test_table(fitted, capsys, tmp_path):
    assert main(["evaluate", str(fitted / "houses.pt"), str(fitted / "houses.csv"), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["rows"] == 60
    found = described["targets"]["price"]["latent deep GP"]
    assert found["crps_error"] > 0
    assert list(found["coverage"]) == ["0.5", "0.9", "0.95"]
    model = LatentDGPRegressor.load(fitted / "houses.pt")
    X = Columns(**model.extra_["columns"]).inputs(table())
    assert found["crps"] == pytest.approx(model.crps(X, table()["price"]).mean())
    assert found["log_likelihood"] == pytest.approx(model.log_density(X, table()["price"]).mean())
    assert main(["evaluate", str(fitted / "houses.pt"), str(fitted / "houses.csv")]) == 0
    assert "price on 60 rows of houses.csv" in capsys.readouterr().out
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2", "--quiet"]
    command += ["--layers", "1", "--test", str(fitted / "houses.csv")]
    assert main([*command, "--output", str(tmp_path / "m.pt")]) == 0
    assert "price on 60 held-out rows" in capsys.readouterr().out


def test_weights(fitted, capsys, tmp_path):
    table().assign(w=[1.0] * 30 + [0.0] * 30).to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", str(tmp_path / "t.csv"), "--target", "price", "--steps", "2", "--quiet"]
    command += ["--layers", "1", "--test-fraction", "0", "--output", str(tmp_path / "m.pt")]
    assert main([*command, "--weights", "w"]) == 0
    out, err = capsys.readouterr()
    assert "30 rows, 0 held out, 3 inputs" in out
    assert "30 of 60 rows have the weight 0" in err
    assert main([*command, "--weights", "price"]) == 2
    assert "'price' is the target" in capsys.readouterr().err
    table().assign(w=-1.0).to_csv(tmp_path / "t.csv", index=False)
    assert main([*command, "--weights", "w"]) == 2
    assert "--weights w: a weight is negative or missing" in capsys.readouterr().err


def test_resuming_says_which_option_has_changed(fitted, capsys, ctrl_c_at, tmp_path):
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--quiet", "--layers", "1"]
    command += ["--test-fraction", "0", "--output", str(tmp_path / "m.pt")]
    ctrl_c_at(3)
    assert main([*command, "--steps", "5"]) == 130
    capsys.readouterr()
    assert main([*command, "--steps", "6"]) == 2
    assert "interrupted, in which --steps was 5." in capsys.readouterr().err
    assert main([*command, "--steps", "5", "--drop", "city"]) == 2
    assert "in which --drop was []" in capsys.readouterr().err
    assert main([*command, "--steps", "5"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["m.pt"]


def test_being_terminated_saves(fitted, capsys, monkeypatch, tmp_path):
    steps = []

    def step(self, *args):
        steps.append(0)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGTERM)
        return svi_step(self, *args)

    svi_step = SVI.step
    monkeypatch.setattr(SVI, "step", step)
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "9", "--quiet"]
    command += ["--layers", "1", "--output", str(tmp_path / "m.pt")]
    assert main(command) == 130
    assert "interrupted after 3 steps" in capsys.readouterr().err
    assert (tmp_path / "m.pt.partial").exists()


def test_an_interrupted_report_says_that_the_model_is_there(fitted, capsys, monkeypatch, tmp_path):
    def report(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(densities, "report", report)
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2", "--quiet"]
    assert main([*command, "--layers", "1", "--output", str(tmp_path / "m.pt")]) == 130
    assert "the report was interrupted. The model is whole" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["m.pt"]


def test_a_full_disk_leaves_the_old_model(fitted, capsys, monkeypatch, tmp_path):
    output = tmp_path / "m.pt"
    output.write_bytes(earlier := (fitted / "houses.pt").read_bytes())

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    command = ["fit", str(fitted / "houses.csv"), "--target", "price", "--steps", "2", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert main([*command, "--layers", "1", "--output", str(output)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert output.read_bytes() == earlier


QUICK = ["--steps", "2", "--layers", "1", "--quiet"]


def images_of(path):
    return re.findall(r'src="data:image/png;base64,([^"]+)"', path.read_text())


def test_a_table_becomes_a_page_in_one_command(fitted, capsys, tmp_path):
    page, numbers, model = (tmp_path / f"m.{end}" for end in ("html", "json", "pt"))
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", *QUICK, "--output"]
    assert main([*command, str(model), "--report", str(page), str(numbers)]) == 0
    capsys.readouterr()
    text = page.read_text()
    for part in (
        "Predictive densities of price", "houses.csv", "60 rows, 6 held out", "quantile boosting",
        "Calibration", "Columns that matter", "pyro-dgp predict",
    ):  # fmt: skip
        assert part in text
    assert len(images_of(page)) == 6  # two of them along the two columns
    assert all(base64.b64decode(p).startswith(b"\x89PNG") for p in images_of(page))
    scores = json.loads(numbers.read_text())
    assert set(scores["targets"]["price"]) == {
        "latent deep GP", "normal distribution", "quantile boosting",
    }  # fmt: skip
    # The model keeps the rows and the scores: the same again, without the table.
    assert main(["report", str(model), "--output", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == text
    assert main(["evaluate", str(model), "--json"]) == 0
    own = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    expected = scores["targets"]["price"]["latent deep GP"]
    assert own["targets"]["price"]["latent deep GP"] == expected
    # Pages and numbers are written over, by themselves alone.
    assert main([*command, str(model), "--report", str(numbers), str(page)]) == 0
    page.write_text("<html>mine</html>")
    assert main([*command, str(model), "--report", str(page)]) == 2


def test_rows_that_were_held_out_come_back_as_they_were():
    frame = pd.DataFrame(
        {
            "number": [1.5, np.nan, 1e-300],
            "date": pd.to_datetime(["2020-01-01 10:30", None, "1999-12-31 00:00"]),
            "text": ["a", np.nan, "None"],
        }
    ).astype({"date": "datetime64[us]"})
    again = from_plain(json.loads(json.dumps(as_plain(frame))))
    pd.testing.assert_frame_equal(again, frame, check_dtype=False)
    assert [c.kind for c in again.dtypes] == ["f", "M", "O"]


@pytest.fixture(scope="module")
def classified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classes")
    table().to_csv(folder / "houses.csv", index=False)
    arguments = ["fit", str(folder / "houses.csv"), "--target", "city", *QUICK]
    assert main([*arguments, "--output", str(folder / "m.pt")]) == 0
    return folder


def test_targets_of_texts_are_classes(classified, capsys, tmp_path):
    model, path = str(classified / "m.pt"), tmp_path / "t.csv"
    new = table()
    new.loc[[1, 4], "city"] = ["Bonn", ""]
    new.to_csv(path, index=False)
    assert main(["predict", model, str(path), "--output", str(tmp_path / "p.csv")]) == 0
    assert main(["predict", model, str(path), "--output", str(tmp_path / "p.csv")]) == 0
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found) == ["city_class", "city_p_Oslo", "city_p_Rome", "log_probability"]
    np.testing.assert_allclose(found["city_p_Oslo"] + found["city_p_Rome"], 1)
    assert (found["city_class"] == np.where(found["city_p_Oslo"] > 0.5, "Oslo", "Rome")).all()
    assert found["log_probability"].isna().to_numpy().nonzero()[0].tolist() == [4]
    assert found["log_probability"][1] == -np.inf
    capsys.readouterr()
    assert main(["evaluate", model, str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "1 of 59 rows with classes that the model does not know are left out" in err
    scores = json.loads(out)
    assert scores["rows"] == 58
    known = found.drop(index=[1, 4])
    own = scores["targets"]["city"]["latent deep GP"]
    assert own["log_loss"] == pytest.approx(-known["log_probability"].mean())
    assert own["accuracy"] == (known["city_class"] == table()["city"].drop(index=[1, 4])).mean()
    assert main(["predict", model, str(path), "--level", "0.9"]) == 2
    assert "--level is for targets that are numbers" in capsys.readouterr().err
    assert main(["plot", model, "--output", str(tmp_path / "f")]) == 0
    assert main(["plot", model, "--output", str(tmp_path / "f"), "--input", "size"]) == 0
    assert (tmp_path / "f" / "probabilities.png").exists()


def test_two_numbers_are_classes_unless_they_are_said_to_be_numbers(capsys, tmp_path):
    path = tmp_path / "t.csv"
    table(40).assign(sold=np.arange(40) % 2).to_csv(path, index=False)
    fit = ["fit", str(path), "--target", "sold", *QUICK, "--output", str(tmp_path / "m.pt")]
    assert main(fit) == 0
    out, err = capsys.readouterr()
    assert "Classification: 'sold' has the 2 classes 0, 1" in err
    assert "Brier" in out
    assert main(["predict", str(tmp_path / "m.pt"), str(path)]) == 0
    assert capsys.readouterr().out.startswith("sold_class,sold_p_0,sold_p_1,log_probability")
    assert main([*fit, "--test-fraction", "0", "--numeric", "sold"]) == 0
    assert "Classification" not in capsys.readouterr().err
    table(40).assign(sold=[f"text {i % 38}" for i in range(40)]).to_csv(path, index=False)
    frame = pd.concat([table(60).assign(sold=[f"text {i}" for i in range(60)])] * 2)
    frame.to_csv(path, index=False)
    assert main(fit) == 2
    assert "has 60 different texts" in capsys.readouterr().err


def test_a_class_of_one_row_trains(capsys, tmp_path):
    frame = table(40)
    frame.loc[7, "city"] = "Bonn"
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "city", *QUICK, "--test-fraction", "0.9"]
    assert main([*fit, "--output", str(tmp_path / "m.pt")]) == 0
    assert LatentDGPClassifier.load(tmp_path / "m.pt").classes_.tolist() == ["Bonn", "Oslo", "Rome"]


def test_several_targets_in_one_report(fitted, capsys, tmp_path):
    model, page = tmp_path / "m.pt", tmp_path / "m.html"
    fit = ["fit", str(fitted / "houses.csv"), "--target", "price", "size", *QUICK]
    assert main([*fit, "--output", str(model), "--report", str(page)]) == 0
    out = capsys.readouterr().out
    for line in ("price on 6 held", "size on 6 held", "Log-likelihood of all targets jointly"):
        assert line in out
    assert len(images_of(page)) == 1 + 1 + 2 * 3  # importance, training, three of each target
    assert main(["evaluate", str(model), str(fitted / "houses.csv"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    own = LatentDGPRegressor.load(model)
    X, y = Columns(**own.extra_["columns"]).inputs(table()), table()[["price", "size"]].to_numpy()
    for i, name in enumerate(["price", "size"]):
        found = scores["targets"][name]["latent deep GP"]
        assert found["crps"] == pytest.approx(own.crps(X, y)[:, i].mean())
    assert scores["joint"]["log_likelihood"] == pytest.approx(own.log_density(X, y).mean())
    plot = ["plot", str(model), "--output", str(tmp_path / "f"), "--target", "size"]
    assert main(plot) == 0


def test_intervals_draws_and_densities(fitted, tmp_path):
    predict = ["predict", str(fitted / "houses.pt"), str(fitted / "houses.csv"), "--output"]
    more = ["--level", "0.9", "0.5", "--draws", "3", "--density", "0", "1e6", "5"]
    for name in ("a.csv", "b.csv"):
        assert main([*predict, str(tmp_path / name), *more]) == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    found = pd.read_csv(tmp_path / "a.csv")
    grid = ["0", "250000", "500000", "750000", "1000000"]
    assert list(found) == [
        f"price_{name}" for name in
        ("mean", "std", "lower_0.9", "upper_0.9", "lower_0.5", "upper_0.5", "draw_1", "draw_2",
         "draw_3", *(f"density_{v}" for v in grid))
    ] + ["log_density"]  # fmt: skip
    model = LatentDGPRegressor.load(fitted / "houses.pt")
    X = Columns(**model.extra_["columns"]).inputs(table())
    np.testing.assert_allclose(
        found[["price_lower_0.9", "price_upper_0.5"]], model.predict_quantiles(X, [0.05, 0.75])
    )
    density = model.log_density(X, np.full(60, 250000.0))
    np.testing.assert_allclose(found["price_density_250000"], np.exp(density))
    assert found["price_draw_1"].nunique() == 60
    assert main([*predict, str(tmp_path / "a.csv"), *more, "--seed", "1"]) == 0
    assert (pd.read_csv(tmp_path / "a.csv")["price_draw_1"] != found["price_draw_1"]).all()


def test_a_long_tail_is_hinted_at_and_modelled(capsys, tmp_path):
    frame = table(80)
    frame["price"] = np.exp(2 * np.random.default_rng(0).normal(size=80))
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "price", *QUICK, "--output"]
    assert main([*fit, str(tmp_path / "m.pt"), "--test-fraction", "0"]) == 0
    assert "--transform log models its logarithm" in capsys.readouterr().err
    log = [*fit, str(tmp_path / "m.pt"), "--test-fraction", "0", "--transform", "log"]
    assert main(log) == 0
    assert "--transform log" not in capsys.readouterr().err
    predict = ["predict", str(tmp_path / "m.pt"), str(tmp_path / "t.csv"), "--quantiles", "0.0001"]
    assert main([*predict, "--output", str(tmp_path / "p.csv")]) == 0
    found = pd.read_csv(tmp_path / "p.csv")
    assert (found["price_q0.0001"] > 0).all()
    model = LatentDGPRegressor.load(tmp_path / "m.pt")
    assert model.target_transform == "log"
    frame.loc[3, "price"] = 0
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert main(log) == 2
    assert "1 of 80 are not (the smallest is 0)" in capsys.readouterr().err
    assert main([*predict, "--output", str(tmp_path / "p.csv")]) == 0
    assert pd.read_csv(tmp_path / "p.csv")["log_density"][3] == -np.inf


def test_copies_of_rows_are_noticed(capsys, tmp_path):
    frame = pd.concat([table(40)] * 2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "price", *QUICK, "--output"]
    assert main([*fit, str(tmp_path / "m.pt")]) == 0
    assert re.search(r"\d of 8 rows held out have an equal among", capsys.readouterr().err)
    table(40).to_csv(tmp_path / "t.csv", index=False)
    assert main([*fit, str(tmp_path / "m.pt"), "--test-fraction", "0"]) == 0
    assert "equal" not in capsys.readouterr().err


def fit(path, frame, *options, target="y"):
    """Of a frame; returns the exit code and the model's name."""
    frame.to_csv(path / "t.csv", index=False)
    arguments = ["fit", str(path / "t.csv"), "--target", target, *QUICK, *options]
    return main([*arguments, "--output", str(path / "m.pt")]), str(path / "m.pt")


def scores_of(model, capsys, *table):
    capsys.readouterr()
    assert main(["evaluate", model, *table, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return next(iter(found["targets"].values()))["latent deep GP"]


def test_a_target_of_two_numbers_and_missing_cells_has_two_classes(capsys, tmp_path):
    frame = table(50).drop(columns="price")
    for missing in ("NA", "?", ""):
        frame["sold"] = ["0", "1", missing, "1", "0"] * 10
        code, _ = fit(tmp_path, frame, target="sold")
        assert code == 0
        err = capsys.readouterr().err
        assert "has the 2 classes 0, 1 (" in err
        assert "10 of 50 rows without the target 'sold' are left out" in err
        assert main(["evaluate", str(tmp_path / "m.pt"), str(tmp_path / "t.csv")]) == 0
        err = capsys.readouterr().err
        assert "10 of 50 rows without the target 'sold' are left out" in err
        assert "does not know" not in err


def test_what_leaves_nothing_to_train_on(capsys, tmp_path):
    table(6).assign(weight=0.0).to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", str(tmp_path / "t.csv"), *QUICK, "--output", str(tmp_path / "m.pt")]
    for options, message in (
        (["price", "price"], "--target price price: a column is named twice"),
        (["price", "--weights", "weight"], "--weights weight: all weights are 0"),
        (["price", "--test-fraction", "0.99"], "no row would be left for training, of 6"),
    ):
        assert main([*command, "--target", *options]) == 2
        assert message in capsys.readouterr().err


def test_a_column_that_is_kept_twice_is_kept_once(fitted, tmp_path):
    files = str(fitted / "houses.pt"), str(fitted / "houses.csv")
    output = tmp_path / "p.parquet"
    command = ["predict", *files, "--keep", "city", "city", "--output", str(output)]
    assert main(command) == 0
    assert pd.read_parquet(output).columns.tolist().count("city") == 1


def test_ordinal_classes_whose_order_would_be_lost(capsys, tmp_path):
    frame = table(40).assign(grade=["2.5", "5", "7.5", "10"] * 10)
    code, _ = fit(tmp_path, frame, "--likelihood", "ordinal", target="grade")
    assert code == 2
    assert "would have the order 10, 2.5, 5, 7.5" in capsys.readouterr().err


def test_whole_numbers_have_intervals_and_densities_of_their_own(capsys, tmp_path):
    x = np.linspace(-2, 2, 100)
    frame = pd.DataFrame({"x": x, "y": 0.5 * np.digitize(x, [-1.2, -0.4, 0.4, 1.2]) + 1})
    code, model = fit(tmp_path, frame, "--steps", "150", "--test-fraction", "0")
    assert code == 0
    own = scores_of(model, capsys, str(tmp_path / "t.csv"))
    # Nearly certain, and so within all intervals.
    assert own["coverage"]["0.5"] > 0.85
    assert own["coverage"]["0.95"] >= own["coverage"]["0.9"] >= own["coverage"]["0.5"]
    predict = ["predict", model, str(tmp_path / "t.csv"), "--output", str(tmp_path / "p.csv")]
    assert main([*predict, "--level", "0.9", "--density", "0", "4", "41"]) == 0
    found = pd.read_csv(tmp_path / "p.csv")
    inside = (found["y_lower_0.9"] <= frame["y"]) & (frame["y"] <= found["y_upper_0.9"])
    assert inside.mean() == pytest.approx(own["coverage"]["0.9"])
    assert found["log_density"].mean() == pytest.approx(own["log_likelihood"])
    densities_ = found.filter(like="density_").drop(columns="log_density", errors="ignore")
    np.testing.assert_allclose(densities_.sum(axis=1) * 0.1, 1, atol=0.02)  # of steps of 0.5


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([1.5, 2.5], ["1.5", "2.5"]), (["True", "False"], ["False", "True"]),
        (["007", "08"], ["007", "08"]), ([-1, 1], ["-1", "1"]),
        (["<b>", 'a "b", c'], ["<b>", 'a "b", c']),
    ],
)  # fmt: skip
def test_classes_keep_their_names(capsys, tmp_path, values, classes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    frame = pd.DataFrame({"x": x, "y": [values[int(v > 0)] for v in x]})
    code, model = fit(tmp_path, frame)
    assert code == 0
    assert sorted(map(str, LatentDGPClassifier.load(model).classes_)) == sorted(classes)
    assert (
        main(["predict", model, str(tmp_path / "t.csv"), "--output", str(tmp_path / "p.csv")]) == 0
    )
    found = pd.read_csv(tmp_path / "p.csv", dtype={"y_class": str})
    assert set(found["y_class"]) <= set(classes)
    assert np.isfinite(found["log_probability"]).all()


def test_classes_that_are_written_in_another_way(capsys, tmp_path):
    x = np.random.default_rng(0).normal(size=50)
    frame = pd.DataFrame({"x": x, "y": np.where(x > 0, "1", "2")})
    frame.loc[3, "y"] = "unknown"
    code, model = fit(tmp_path, frame, "--missing", "unknown", "--categorical", "y")
    assert code == 0
    assert LatentDGPClassifier.load(model).classes_.tolist() == [1, 2]
    frame["y"] = np.where(x > 0, "1.0", "2.0")
    frame.loc[4, "y"] = "9"
    frame.to_csv(tmp_path / "new.csv", index=False)
    capsys.readouterr()
    assert main(["evaluate", model, str(tmp_path / "new.csv")]) == 0
    assert "y on 49 rows of new.csv" in capsys.readouterr().out
    assert main(["predict", model, str(tmp_path / "new.csv")]) == 0
    assert "does not know the classes 9." in capsys.readouterr().err


def test_grades_are_classes_if_the_likelihood_is(tmp_path):
    x = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"x": x, "y": np.digitize(x, [-1, 0, 1]) + 9})
    assert fit(tmp_path, frame, "--likelihood", "ordinal")[0] == 0
    model = LatentDGPClassifier.load(tmp_path / "m.pt")
    assert (model.likelihood_, model.classes_.tolist()) == ("ordinal", [9, 10, 11, 12])
    assert main(["evaluate", str(tmp_path / "m.pt"), str(tmp_path / "t.csv")]) == 0


def test_a_model_without_rows_held_out_says_so(capsys, tmp_path):
    assert fit(tmp_path, table(), "--test-fraction", "0", target="price")[0] == 0
    for command in ("evaluate", "plot", "report"):
        assert main([command, str(tmp_path / "m.pt")]) == 2
        assert "keeps no rows that were held out: name a table" in capsys.readouterr().err
    page = str(tmp_path / "page.html")
    assert fit(tmp_path, table(4), "--report", page, target="price")[0] == 0
    assert "no row is held out: there is no report" in capsys.readouterr().err


def test_json_is_json(capsys, tmp_path):
    report = tmp_path / "r.JSON"
    code, model = fit(
        tmp_path, table(), "--test-fraction", "0.01", "--report", str(report), target="price"
    )
    assert code == 0
    found = json.loads(report.read_text(), parse_constant=pytest.fail)
    assert found["targets"]["price"]["latent deep GP"]["crps_error"] is None
    assert scores_of(model, capsys)["crps_error"] is None


def test_files_that_are_named_twice(fitted, capsys, tmp_path):
    same = str(tmp_path / "m.html")
    command = ["fit", str(fitted / "houses.csv"), "--target", "price", *QUICK, "--output", same]
    assert main([*command, "--report", same]) == 2
    assert "name the same file twice" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "m.pt"), "--report", same, same]) == 2


def test_a_report_that_fails_leaves_the_model(fitted, capsys, monkeypatch, tmp_path):
    def report(*args):
        raise ValueError("no such thing")

    monkeypatch.setattr(densities, "report", report)
    assert fit(tmp_path, table(), target="price")[0] == 2
    error = capsys.readouterr().err
    assert f"the report failed: no such thing. The model is whole: {tmp_path / 'm.pt'}" in error
    assert main(["predict", str(tmp_path / "m.pt"), str(fitted / "houses.csv")]) == 0


def test_pages_of_odd_tables(tmp_path):
    """Dates that are missing in all rows held out, no text that is frequent, long names."""
    frame = table(60)
    frame["when"] = pd.date_range("2020-01-01", periods=60, freq="37h").strftime("%Y-%m-%d")
    frame["rare"] = [f"text {i % 30}" for i in range(60)]
    frame = frame.rename(columns={"size": "s" * 150})
    new = frame[:20].assign(when="")
    new.to_csv(tmp_path / "new.csv", index=False)
    frame["rare"] = frame["rare"].where(np.arange(60) % 2 == 0, "")
    options = ["--test", str(tmp_path / "new.csv"), "--report", str(tmp_path / "r.html")]
    assert fit(tmp_path, frame, *options, "--categorical", "rare", target="price")[0] == 0
    assert (tmp_path / "r.html").exists()


def test_damaged_rows_of_a_model(fitted, capsys, tmp_path):
    model = LatentDGPRegressor.load(fitted / "houses.pt")
    extra = dict(model.extra_)
    for held_out in (5, {"size": 3}, extra["held_out"] | {"size": ["number", [1.0]]}):
        model.save(tmp_path / "m.pt", **extra | {"held_out": held_out})
        assert main(["evaluate", str(tmp_path / "m.pt")]) == 2
        assert "is damaged" in capsys.readouterr().err


def test_pictures_of_others_are_not_written_over(fitted, capsys, tmp_path):
    (tmp_path / "training.png").write_bytes(b"mine")
    plot = ["plot", str(fitted / "houses.pt"), "--output", str(tmp_path)]
    assert main(plot) == 2
    assert "not what this command writes" in capsys.readouterr().err
    (tmp_path / "training.png").unlink()
    assert main(plot) == 0
    assert main(plot) == 0


def test_rows_of_pictures_are_chosen_by_their_targets():
    y = np.array([5.0, 1, 4, 2, 3, 0])
    assert y[spread_rows(y, 3)].tolist() == [1, 3, 5]
    assert y[spread_rows(y, 1)].tolist() == [3]
    assert y[spread_rows(y, 6)].tolist() == [0, 1, 2, 3, 4, 5]
    classes = np.array(["b", "a", "a", "b", "a", "b"])
    assert classes[spread_rows(classes, 2)].tolist() == ["a", "b"]
