import argparse
import json
import re
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyro_dgp import cli
from pyro_dgp._options import add_options, given_options
from pyro_dgp.experiments import runs
from pyro_dgp.experiments.reproduce import STUDIES
from pyro_dgp.infer import SNRSweep

pytestmark = pytest.mark.whole

DATA = Path(__file__).parent / "data"


def test_train_prints_and_saves_a_record(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    code = cli.main(
        ["train", "forest", "--split", "3", "--loss", "dreg", "--K", "2", "--steps", "3",
         "--test-samples", "10", "--quiet", "--output", str(tmp_path)]
    )  # fmt: skip
    assert code == 0
    out = capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["config"]["split"] == 3
    assert str(path) in out
    assert f"{record['test_log_likelihood']:.4f}" in out


def test_demo_draws_a_figure(tmp_path, capsys):
    code = cli.main(["demo", "--K", "2", "--steps", "3", "--quiet", "--output", str(tmp_path)])
    assert code == 0
    (image,) = tmp_path.glob("*.png")
    assert image.read_bytes().startswith(b"\x89PNG")
    assert str(image) in capsys.readouterr().out


def test_demo_without_matplotlib(monkeypatch, tmp_path, capsys):
    def missing():
        raise ImportError("Figures need Matplotlib: pip install 'pyro_dgp[plot]'.")

    monkeypatch.setattr(cli, "pyplot", missing)
    code = cli.main(["demo", "--K", "2", "--steps", "1", "--quiet", "--output", str(tmp_path)])
    assert code == 0
    assert "pyro_dgp[plot]" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "woods"], "Unknown data set 'woods'"),
        (["train", "protein"], "`pyro-dgp data protein`"),
        (["train", "demo", "--K", "0", "--steps", "1"], "K must be at least 1"),
        (["train", "demo", "--layers", "0", "--steps", "1"], "num_layers must be"),
        (["train", "demo", "--split", "-1"], "split must not be negative"),
        (["train", "forest", "--split", "4294967296"], "split must not be negative, nor 2^32 or"),
        (["train", "demo", "--seed", "-1"], "seed must be at least 0, but it is -1"),
        (["train", "demo", "--seed", "4294967296"], "seed must be less than 2^32"),
        (["demo", "--seed", "-1"], "seed must be at least 0, but it is -1"),
        (["train", "demo", "--lr-decay-steps", "0"], "lr_decay_steps must be at least 1"),
        (["train", "demo", "--lr-decay", "nan"], "lr_decay must be positive and finite"),
        (["train", "demo", "--lr", "-1"], "lr must be finite and at least 0, but it is -1"),
        (["train", "demo", "--natural-lr", "-1"], "natural_lr must be finite and"),
        (["train", "demo", "--natural-lr", "2"], "natural_lr must be at most 1"),
        (["train", "demo", "--noise-variance", "0"], "noise_variance must be positive"),
        (["train", "demo", "--inducing", "0"], "num_inducing must be at least 1"),
        (["train", "demo", "--batch-size", "0", "--steps", "1"], "batch_size must be"),
        (["train", "demo", "--test-samples", "0", "--steps", "1"], "num_test_samples must be"),
        (["train", "demo", "--loss", "vi", "--K", "5"], "K has no effect with loss='vi'"),
        (
            ["train", "demo", "--layers", "1", "--latent-dim", "0", "--K", "3"],
            "K has no effect with num_layers=1 and latent_dim=0",
        ),
        (
            ["train", "demo", "--likelihood", "rounded", "--noise-variance", "0.1"],
            "noise_variance has no effect with likelihood='rounded'",
        ),
        (["train", "demo", "--noise-scale", "0.1"], "noise_scale has no effect"),
        (
            ["train", "demo", "--schedule", "cosine", "--lr-decay", "0.9"],
            "lr_decay has no effect with schedule='cosine'",
        ),
        (["train", "demo", "--schedule", "fast", "--lr-decay-steps", "9"], "lr_decay_steps has no"),
        (
            ["train", "demo", "--latent-dim", "0", "--no-learned-qz"],
            "learned_qz has no effect with latent_dim=0",
        ),
        (
            ["train", "demo", "--layers", "1", "--mixing", "principal"],
            "mixing has no effect with num_layers=1",
        ),
    ],
)
def test_errors_are_one_line(monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.setenv("PYRO_DGP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = cli.main([*arguments, "--quiet", "--output", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("pyro-dgp: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_output_that_is_a_file_is_refused_before_training(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("precious")
    assert cli.main(["demo", "--steps", "100000000", "--quiet", "--output", str(path)]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["train"], ["train", "demo", "--loss", "iwae"], ["demo", "--K", "x"]]
)
def test_wrong_usage_exits_with_2(arguments):
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert "pyro_dgp 0.1.0" in capsys.readouterr().out


def test_the_package_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pyro_dgp", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("pyro_dgp", run_name="__main__")
    assert ended.value.code == 0
    assert "pyro_dgp 0.1.0" in capsys.readouterr().out


def test_a_run_that_is_done_is_not_run_again(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    command = ["train", "solar", "--loss", "reg", "--K", "2", "--steps", "3"]
    command += ["--test-samples", "10", "--quiet", "--output", str(tmp_path)]
    outputs = []
    for _ in range(2):
        assert cli.main(command) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".pt"}


def test_train_goes_on_after_ctrl_c(ctrl_c_at, tmp_path, capsys):
    command = ["demo", "--K", "2", "--steps", "4", "--no-figure", "--quiet"]
    assert cli.main([*command, "--output", str(tmp_path / "whole")]) == 0
    expected = capsys.readouterr().out
    steps = ctrl_c_at(2)
    assert cli.main([*command, "--output", str(tmp_path / "parts")]) == 130
    assert "interrupted after 2 steps" in capsys.readouterr().err
    assert not list((tmp_path / "parts").glob("*.json"))
    assert cli.main([*command, "--output", str(tmp_path / "parts")]) == 0
    assert len(steps) == 4
    results = [text.splitlines()[:5] for text in (expected, capsys.readouterr().out)]
    assert results[0] == results[1]


SNR = ["--samples", "1", "10", "--draws", "40", "--points", "1", "--quiet"]


def test_snr(tmp_path, capsys):
    assert cli.main(["snr", "--steps", "20", *SNR, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "DReG           10" in out
    assert re.search(r"Pareto k of the weights: -?\d\.\d\d to -?\d\.\d\d;", out)
    points = SNRSweep.load(tmp_path / "snr.json").points
    assert {(p.estimator, p.K) for p in points} == {
        (e, K) for e in ("REG", "DReG") for K in (1, 10)
    }
    for name in ("snr", "gradients"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_snr_of_one_number_of_samples(tmp_path, capsys):
    command = ["snr", "--steps", "1", *SNR[3:], "--samples", "2", "--layers", "1", "--no-figure"]
    assert cli.main([*command, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "DReG: There are not two values of K" in out
    assert str(tmp_path / "snr.json") in out


def test_snr_of_a_trained_model(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    command = ["train", "forest", "--K", "2", "--steps", "3", "--test-samples", "10", "--quiet"]
    assert cli.main([*command, "--output", str(tmp_path)]) == 0
    (record,) = tmp_path.glob("*.json")
    args = ["snr", str(record), *SNR, "--no-figure", "--output", str(tmp_path / "snr")]
    assert cli.main(args) == 0
    assert "DReG           10" in capsys.readouterr().out
    first = (tmp_path / "snr" / "snr.json").read_text()
    assert cli.main([*args, "--seed", "5"]) == 0
    assert (tmp_path / "snr" / "snr.json").read_text() != first
    capsys.readouterr()
    assert cli.main([*args, "--layers", "1"]) == 2
    assert "only --seed has an effect, on the draws (not num_layers)" in capsys.readouterr().err
    next(tmp_path.glob("*.pt")).unlink()
    assert cli.main(args) == 2
    assert "The model of" in capsys.readouterr().err
    record.write_text("{}")
    assert cli.main(args) == 2
    assert "is no record of a run" in capsys.readouterr().err


def test_snr_of_a_model_before_training(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    command = ["train", "forest", "--K", "2", "--steps", "0", "--test-samples", "10", "--quiet"]
    assert cli.main([*command, "--output", str(tmp_path)]) == 0
    (record,) = tmp_path.glob("*.json")
    args = ["snr", str(record), *SNR, "--no-figure", "--output", str(tmp_path / "snr")]
    assert cli.main(args) == 0
    assert "DReG           10" in capsys.readouterr().out


def test_snr_bad_options(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    for extra, message in (
        (["--output", str(file)], "is a file; name a folder"),
        (["--draws", "3", "--output", str(tmp_path)], "--draws must be at least 20"),
        (["--samples", "0", "--output", str(tmp_path)], "--samples must be at least 1"),
        (["--seed", "-1", "--output", str(tmp_path)], "seed must be at least 0"),
    ):
        assert cli.main(["snr", "--steps", "2", "--quiet", "--no-figure", *extra]) == 2
        assert message in capsys.readouterr().err


def test_reproduce(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    size = ["--steps", "2", "--draws", "20", "--samples", "1", "4", "--points", "1"]
    size += ["--train-K", "2", "--output", str(tmp_path), "--quiet"]
    fast = ["--schedule", "fast"]
    for what, extra in (
        ("figure3", ["--datasets", "forest", "--layers", "1"]),
        ("figure9", ["--datasets", "forest", "--seeds", "1", "--samples", "4"]),
        ("figure9", ["--datasets", "forest", "--seeds", "1", "--samples", "4", *fast]),
    ):
        command = ["reproduce", what, *size, *extra]
        assert cli.main(command) == 0
        first = capsys.readouterr().out
        assert (tmp_path / f"{what}.png").stat().st_size > 10_000
        assert (tmp_path / f"{what}.txt").read_text() in first
        files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*_*")}
        assert cli.main([*command, "--no-figure"]) == 0  # all of it is there already
        assert capsys.readouterr().out in first
        assert files == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*_*")}


def test_a_study_of_likelihoods(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    command = ["reproduce", "likelihoods", "--datasets", "forest", "solar", "--steps", "3"]
    command += ["--splits", "2", "--test-samples", "3", "--train-K", "2", "--layers", "1"]
    command += ["--quiet", "--output", str(tmp_path)]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    for kind in ("gaussian", "heteroscedastic", "zero_inflated"):
        assert f"| forest, {kind} | 2 |" in out
    assert "| solar, rounded | 2 |" in out
    assert "48% of the targets are one value" in out


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "rounded"])
def test_training_with_another_likelihood(monkeypatch, tmp_path, capsys, likelihood):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    command = ["train", "solar", "--likelihood", likelihood, "--kernel", "matern32", "--K", "2"]
    command += ["--steps", "3", "--schedule", "cosine", "--test-samples", "10", "--quiet"]
    assert cli.main([*command, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "test log-likelihood" in out
    assert "noise variance" not in out
    (record,) = tmp_path.glob("*.json")
    assert f"likelihood={likelihood}" in record.name
    record = json.loads(record.read_text())
    assert (record.get("log_step") is not None) == (likelihood == "rounded")
    with pytest.raises(SystemExit):
        cli.main(["train", "solar", "--likelihood", "normal"])
    assert "invalid choice: 'normal'" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["figure1", "figure2"])
def test_what_a_figure_has_is_kept(tmp_path, what):
    command = ["reproduce", what, "--steps", "2", "--draws", "20", "--train-K", "2", "--quiet"]
    command += ["--samples", "1", "4", "--no-figure", "--output", str(tmp_path)]
    assert cli.main(command) == 0
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*_Q20_K*")}
    assert len(files) == 2
    (lost,) = (path for path in files if path.stem.endswith("K4"))
    lost.unlink()
    table = (tmp_path / f"{what}.txt").read_text()
    assert cli.main(command) == 0
    again = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*_Q20_K*")}
    assert again.keys() == files.keys()
    assert {path for path in files if again[path] != files[path]} == {lost}
    assert (tmp_path / f"{what}.txt").read_text() == table


def test_reproduce_goes_on_after_ctrl_c(ctrl_c_at, monkeypatch, tmp_path, capsys):
    """At once: without an evaluation of what was interrupted."""
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    ctrl_c_at(1)
    command = ["reproduce", "table1", "--datasets", "solar", "--splits", "1", "--steps", "2"]
    command += ["--train-K", "2", "--test-samples", "5", "--evaluations", "2", "--quiet"]
    command += ["--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "evaluate", None)
        assert cli.main(command) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert [path.suffix for path in tmp_path.iterdir()] == [".pt"]
    published = ["--published", str(DATA / "table1_test_log_likelihood.csv")]
    assert cli.main([*command, *published]) == 0
    out = capsys.readouterr().out
    assert "| Across datasets | 1 |" in out
    assert "Published:" in out
    assert "| Across datasets | 114 |" in out
    assert "83% of the targets are one value" in out
    assert (tmp_path / "table1.csv").read_text().startswith("dataset,num_splits")
    assert cli.main([*command[:1], "figure6", *command[2:]]) == 0  # of the same records
    assert cli.main([*command[:1], "figure4", *command[2:]]) == 0
    assert cli.main([*command[:1], "figure5", *command[2:], "--points", "2"]) == 0
    for name in ("figure4", "figure5", "figure6"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lr", "1e300", "--layers", "1"], "Step 1: the loss is not finite at"),
        (["--lr", "1e10", "--inducing", "128"], "has no Cholesky factor"),
    ],
)
def test_training_that_diverges(monkeypatch, tmp_path, capsys, options, message):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    command = ["train", "forest", "--steps", "5", "--K", "2", "--quiet", *options]
    assert cli.main([*command, "--output", str(tmp_path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"training failed: .*{message}", line)
    (record,) = tmp_path.glob("*.json")
    assert message in json.loads(record.read_text())["error"]


def test_reproduce_where_every_run_fails(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    monkeypatch.setattr(runs.RunConfig, "elbo", lambda self: 1 / 0)
    command = ["reproduce", "figure6", "--splits", "1", "--steps", "2", "--quiet"]
    assert cli.main([*command, "--output", str(tmp_path)]) == 3
    assert "all 2 runs; the first: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "kind", "fails"),
    [
        ("figure4", "fixed", lambda config: not config.learned_qz),
        ("figure6", "dreg", lambda config: config.loss == "dreg"),
        ("table1", "dreg", lambda config: config.loss == "dreg"),
    ],
)
def test_reproduce_where_no_split_has_all_runs(monkeypatch, tmp_path, capsys, what, kind, fails):
    monkeypatch.setenv("PYRO_DGP_DATA", str(DATA))
    elbo = runs.RunConfig.elbo
    monkeypatch.setattr(runs.RunConfig, "elbo", lambda self: 1 / 0 if fails(self) else elbo(self))
    command = ["reproduce", what, "--datasets", "forest", "--splits", "1", "--steps", "1"]
    command += ["--train-K", "2", "--test-samples", "5", "--evaluations", "1", "--quiet"]
    assert cli.main([*command, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "forest: left out, as every split has a run that failed" in out
    assert f"forest, split 0, {kind}: failed" in out
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("what", "unused"),
    [
        ("figure3", ["seeds", "splits", "jobs"]),
        ("figure5", ["draws", "samples", "seeds", "splits", "evaluations", "jobs"]),
        ("likelihoods", ["points", "draws", "samples", "seeds"]),
    ],
)
def test_options_that_a_study_uses(what, unused):
    assert STUDIES[what].unused(["dtype", *unused, "schedule"]) == unused


def test_figure7(tmp_path, capsys):
    command = ["reproduce", "figure7", "--steps", "2", "--quiet", "--output", str(tmp_path)]
    assert cli.main([*command, "--splits", "3"]) == 0
    captured = capsys.readouterr()
    assert "figure7 does not use splits" in captured.err
    assert "1998 training" in captured.out
    assert (tmp_path / "figure7.png").stat().st_size > 10_000


def test_reproduce_takes_one_where_one_is_shown(tmp_path, capsys):
    for what, option in (("figure1", "layers"), ("figure9", "samples"), ("figure2", "datasets")):
        values = ["demo", "demo_published"] if option == "datasets" else ["1", "2"]
        command = ["reproduce", what, f"--{option}", *values, "--steps", "0"]
        assert cli.main([*command, "--quiet", "--output", str(tmp_path)]) == 2
        assert f"{option} takes one value here, not 2" in capsys.readouterr().err
    assert cli.main(["reproduce", "figure7", "--datasets", "forest", "--quiet"]) == 2
    assert "must be demo data here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--format", "csv"], "--format belongs to --published"),
        (["--datasets", "woods"], "Unknown data set 'woods'"),
        (["--steps", "-1"], "steps must be at least 0"),
        (["--samples", "4", "1", "4"], "samples has 4 twice"),
        (["--datasets", "demo", "demo"], "datasets has demo twice"),
        (["--jobs", "0"], "jobs must be at least 1, or -1 for one per core, but it is 0"),
        (["--layers", "0"], "layers must be at least 1"),
        (["--draws", "2"], "draws must be at least 20"),
    ],
)
def test_reproduce_bad_options(tmp_path, capsys, option, message):
    assert cli.main(["reproduce", "figure3", *option, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_data_sets_are_listed_and_checked(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYRO_DGP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["data"]) == 0
    out = capsys.readouterr().out
    assert "missing: pyro-dgp data pol" in out
    assert str(Path("experiments") / "data" / "forest.csv.gz") in out
    assert cli.main(["data", "woods"]) == 2
    assert "No data set 'woods'; there are forest" in capsys.readouterr().err
    assert cli.main(["data", "pol", "--from", str(tmp_path)]) == 2
    assert "There is no" in capsys.readouterr().err
    assert cli.main(["data", "--from", str(tmp_path)]) == 2
    assert "name the data sets to make" in capsys.readouterr().err
    assert cli.main(["data", "solar"]) == 0
    assert str(tmp_path / "solar.csv.gz") in capsys.readouterr().out
    (tmp_path / "solar.csv.gz").write_bytes(b"x")
    assert cli.main(["data"]) == 2
    assert "wrong: " in capsys.readouterr().out


def test_options_are_those_of_the_configuration():
    @dataclass
    class Config:
        """What there is.

        :param str name: Has no default, and is no option.
        :param int num_steps: Steps, see :meth:`~a.b.method`
            for 10% of ``them``.
        :param float lr: A rate; none.
        :param tuple sizes: Several.
        :param bool wide: Whether.
        :param str kind: Of it.
        """

        name: str
        num_steps: int = 3
        lr: float | None = None
        sizes: tuple[int, ...] = (1, 2)
        wide: bool = False
        kind: str = field(default="a", metadata={"choices": ("a", "b")})

    parser = argparse.ArgumentParser()
    add_options(parser, Config, num_steps=7)
    text = " ".join(parser.format_help().split())
    assert "--steps STEPS Steps, see method for 10% of them (default 7)" in text
    assert "--sizes SIZES [SIZES ...] Several (default 1 2)" in text
    assert given_options(parser.parse_args([]), Config) == {}
    arguments = ["--steps", "5", "--lr", "0.5", "--sizes", "4", "5", "--wide", "--kind", "b"]
    expected = {"num_steps": 5, "lr": 0.5, "sizes": (4, 5), "wide": True, "kind": "b"}
    assert given_options(parser.parse_args(arguments), Config) == expected
    assert given_options(parser.parse_args(["--no-wide"]), Config) == {"wide": False}
    with pytest.raises(SystemExit):
        parser.parse_args(["--kind", "c"])


def test_options_from_a_file(tmp_path, capsys):
    path = tmp_path / "options.json"
    train = ["train", "demo", "--quiet", "--output", str(tmp_path), "--config", str(path)]
    path.write_text('{"K": 2, "num_steps": 2, "num_layers": 1, "num_test_samples": 5}')
    assert cli.main([*train, "--K", "3"]) == 0
    (record,) = tmp_path.glob("demo*.json")
    config = json.loads(record.read_text())["config"]
    assert (config["K"], config["num_steps"], config["num_layers"]) == (3, 2, 1)
    # A record has its run's options.
    again = [*train[:-1], str(record), "--steps", "1", "--output", str(tmp_path / "again")]
    assert cli.main(again) == 0
    (other,) = (tmp_path / "again").glob("*.json")
    assert json.loads(other.read_text())["config"] == config | {"num_steps": 1}
    # It has all of them, also those without an effect.
    assert cli.main([*again[:-1], str(tmp_path / "vi"), "--loss", "vi"]) == 0
    assert cli.main([*again[:-1], str(tmp_path / "vi"), "--loss", "vi", "--K", "3"]) == 2
    for wrong in ("[1]", '{"num_step": 1}', "K = 2"):
        path.write_text(wrong)
        capsys.readouterr()
        assert cli.main(train) == 2
        assert f"--config {path}: no options of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": "100"}, 'num_steps must be an integer, but it is "100"'),
        ({"K": 2.5}, "K must be an integer, but it is 2.5"),
        ({"num_layers": None}, "num_layers must be an integer, but it is null"),
        ({"num_layers": True}, "num_layers must be an integer, but it is true"),
        ({"seed": "1"}, 'seed must be an integer, but it is "1"'),
        ({"lr": "0.1"}, 'lr must be a number, but it is "0.1"'),
        ({"learned_qz": "no"}, 'learned_qz must be true or false, but it is "no"'),
        ({"device": 0}, "device must be a string, but it is 0"),
        ({"loss": ["vi"]}, 'loss must be a string, but it is ["vi"]'),
        ({"steps": 5}, "there is no option 'steps'; there are dataset, split, "),
    ],
)
def test_a_file_with_options_of_other_types(tmp_path, capsys, options, message):
    path, output = tmp_path / "options.json", tmp_path / "results"
    train = ["train", "demo", "--quiet", "--config", str(path), "--output", str(output)]
    path.write_text(json.dumps(options))
    assert cli.main(train) == 2
    error = capsys.readouterr().err
    assert f"--config {path}: no options of a run in JSON ({message}" in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_null_is_an_option_that_is_not_given(tmp_path):
    options = {"dataset": "demo", "seed": None, "K": None, "lr": 1}
    assert runs.RunConfig.from_dict(options) == runs.RunConfig("demo", lr=1.0)


def test_completion_of_a_shell(capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as end:
        cli.main(["--print-completion", "bash"])
    assert end.value.code == 0
    assert "_shtab_pyro_dgp" in capsys.readouterr().out
