"""``pyro-dgp fit``, ``predict`` and ``plot``: from a file with a table to densities."""

import argparse
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

from pyro_dgp import plots
from pyro_dgp._files import written_whole

__all__ = ["add_fit", "add_plot", "add_predict"]


def add_fit(commands) -> None:
    """Adds ``fit`` to the subparsers of ``argparse``."""
    fit = commands.add_parser(
        "fit",
        help="learn predictive densities from a table of one's own",
        description="Fits a latent-variable deep GP to a CSV or Parquet file, prints how good it "
        "is on rows held out, and saves it to one file. Texts become categories. Ctrl-C saves what "
        "there is, and the same command goes on.",
        epilog="example: pyro-dgp fit houses.csv --target price --output houses.pt",
    )
    fit.set_defaults(command=_fit)
    fit.add_argument("table", help="CSV or Parquet file")
    fit.add_argument("--target", nargs="+", required=True, help="column to predict, or several")
    fit.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    fit.add_argument(
        "--impute",
        action="store_true",
        help="let medians, and the most frequent category, stand for missing values",
    )
    fit.add_argument("--output", default="model.pt", help="file of the model (default model.pt)")
    fit.add_argument(
        "--test-fraction",
        type=float,
        default=0.1,
        help="share of the rows held out for the report (default 0.1; 0 for none, as with several "
        "targets)",
    )
    fit.add_argument(
        "--steps", type=int, default=None, help="most training steps (default 2000 or 4000)"
    )
    fit.add_argument(
        "--time-limit", type=float, default=None, metavar="SECONDS",
        help="take fewer steps if these would last longer (default: no limit)",
    )  # fmt: skip
    fit.add_argument(
        "--jobs", type=int, default=None, help="processes (default 1; -1 for one a core)"
    )
    fit.add_argument("--layers", type=int, default=2, help="number of GP layers (default 2)")
    fit.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    fit.add_argument("--device", default="cpu", help="torch device (default cpu)")
    fit.add_argument("--seed", type=int, default=0, help="default 0")
    fit.add_argument("--quiet", action="store_true", help="no progress bar")


def add_predict(commands) -> None:
    """Adds ``predict``, likewise."""
    predict = commands.add_parser(
        "predict",
        help="predict the targets of new rows with a model of `pyro-dgp fit`",
        description="Writes mean, standard deviation and quantiles of the target for each row of a "
        "table, as CSV; where the table has the target, its log density, too.",
        epilog="example: pyro-dgp predict houses.pt new.csv --quantiles 0.05 0.5 0.95",
    )
    predict.set_defaults(command=_predict)
    predict.add_argument("model", help="file that `pyro-dgp fit` wrote")
    predict.add_argument("table", help="CSV or Parquet file")
    predict.add_argument(
        "--quantiles", type=float, nargs="+", default=[0.05, 0.5, 0.95], metavar="P",
        help="default 0.05 0.5 0.95",
    )  # fmt: skip
    predict.add_argument("--output", default=None, help="CSV file to write (default: the terminal)")
    predict.add_argument("--device", default="cpu", help="torch device (default cpu)")


def add_plot(commands) -> None:
    """Adds ``plot``, likewise."""
    plot = commands.add_parser(
        "plot",
        help="draw the predictive densities of a model of `pyro-dgp fit`",
        description="Draws calibration on the rows of a table, densities of the first rows, and "
        "density, quantiles and what the latent input does along one input, the others at their "
        "medians.",
        epilog="example: pyro-dgp plot houses.pt houses.csv --input area --output figures",
    )
    plot.set_defaults(command=_plot)
    plot.add_argument("model", help="file that `pyro-dgp fit` wrote")
    plot.add_argument("table", help="CSV or Parquet file with the target")
    plot.add_argument(
        "--input", default=None, help="numeric column along the axis (default: that with most say)"
    )
    plot.add_argument("--rows", type=int, default=3, help="rows to draw densities of (default 3)")
    plot.add_argument("--output", default="figures", help="folder to write to (default figures)")
    plot.add_argument("--device", default="cpu", help="torch device (default cpu)")


def _fit(args: argparse.Namespace) -> int:
    # The tables first: what they need brings all the rest.
    from pyro_dgp.table.frames import Columns, read_table  # isort: split
    from pyro_dgp.sklearn import LatentDGPRegressor
    from pyro_dgp.table.report import report

    if not 0 <= args.test_fraction < 1:
        raise ValueError(f"--test-fraction must be at least 0 and below 1: {args.test_fraction}.")
    output = Path(args.output)
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder; name a file.")
    checkpoint, partial = (
        output.with_name(f"{output.name}.{kind}") for kind in ("checkpoint", "partial")
    )
    table = read_table(args.table)
    columns = Columns.of(table, args.target, args.drop, args.impute)
    X, y = columns.inputs(table), columns.target_values(table)
    share = args.test_fraction if y.ndim == 1 else 0.0  # the report is of one target
    order = np.random.default_rng(args.seed).permutation(len(X))
    test, train = np.split(order, [round(share * len(X))])
    options = {} if args.steps is None else {"num_steps": args.steps}
    model = LatentDGPRegressor(
        num_layers=args.layers, dtype=args.dtype, device=args.device, random_state=args.seed,
        checkpoint=checkpoint, verbose=not args.quiet, time_limit=args.time_limit,
        n_jobs=args.jobs, **options,
    )  # fmt: skip
    print(
        f"{len(X)} rows, {X.shape[1]} inputs (columns: {len(columns.numeric)} of numbers, "
        f"{len(columns.categorical)} of texts), {len(test)} rows held out."
    )
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X.iloc[train], y[train])
    for warning in told:
        print(f"pyro-dgp: {warning.message}", file=sys.stderr)
    seconds = time.perf_counter() - start
    steps, interrupted = len(model.history_.losses), model.history_.interrupted
    # A model that is whole, of an earlier command, stays.
    model.save(partial if interrupted else output, columns=columns.as_dict())
    if interrupted:
        goes_on = f", and the same command goes on from {checkpoint}" if checkpoint.exists() else ""
        print(
            f"pyro-dgp: interrupted after {steps} steps. The model so far is {partial}{goes_on}.",
            file=sys.stderr,
        )
        return 130
    if len(test):
        scores = report(model, X.iloc[train], y[train], X.iloc[test], y[test], args.seed)
        _print_report(scores, len(test))
    training = f"{model.history_.seconds:.0f} for the model's {steps} steps"
    print(f"time   {seconds:.0f} s, of them {training}")
    print(f"model  {output}")
    for leftover in (*model.checkpoints(), partial):
        leftover.unlink(missing_ok=True)
    return 0


def _print_report(scores: dict[str, dict], num_rows: int) -> None:
    print(f"On {num_rows} held-out rows          log-lik.      CRPS      RMSE   coverage of")
    print(" " * 56 + "50%   90%   95%")
    for name, s in scores.items():
        density = "       -" if s["log_likelihood"] is None else f"{s['log_likelihood']:8.4g}"
        shares = "".join(f"{share:6.0%}" for share in s["coverage"].values())
        print(f"{name:<28}{density}{s['crps']:10.4g}{s['rmse']:10.4g}{shares}")


def _predict(args: argparse.Namespace) -> int:
    from pyro_dgp.table.frames import read_table  # isort: split
    import pandas as pd

    for p in args.quantiles:
        if not 0 < p < 1:
            raise ValueError(f"--quantiles must lie strictly between 0 and 1: {p}.")
    model, columns = _loaded(args.model, args.device)
    table = read_table(args.table)
    X = columns.inputs(table)
    mean, std = (v.reshape(len(X), -1) for v in model.predict(X, return_std=True))
    quantiles = np.asarray(model.predict_quantiles(X, args.quantiles)).reshape(
        len(X), len(args.quantiles), -1
    )
    found = pd.DataFrame(index=table.index)
    for i, name in enumerate(columns.targets):
        found[f"{name}_mean"], found[f"{name}_std"] = mean[:, i], std[:, i]
        for j, p in enumerate(args.quantiles):
            found[f"{name}_q{p:g}"] = quantiles[:, j, i]
    known = [name in table and table[name].notna().all() for name in columns.targets]
    if all(known):
        found["log_density"] = model.log_density(X, columns.target_values(table))
    if args.output is None:
        with suppress(BrokenPipeError):
            found.to_csv(sys.stdout, index=False)
    else:
        with written_whole(Path(args.output)) as temporary:
            found.to_csv(temporary, index=False)
        print(f"{len(found)} predictions  {args.output}")
    return 0


def _plot(args: argparse.Namespace) -> int:
    from pyro_dgp.table.frames import read_table

    folder = Path(args.output)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; name a folder.")
    model, columns = _loaded(args.model, args.device)
    if len(columns.targets) > 1:
        raise ValueError("Pictures are of models of one target.")
    if args.rows < 1:
        raise ValueError(f"--rows must be at least 1: {args.rows}.")
    plt = plots.pyplot()
    table = read_table(args.table)
    X, y = columns.inputs(table), columns.target_values(table)
    names = list(X.columns)
    feature = args.input or _strongest(model, X, list(columns.numeric) or names)
    if feature not in names:
        raise ValueError(f"--input {feature} is no input. The inputs are {', '.join(names)}.")
    along, target = names.index(feature), columns.targets[0]
    folder.mkdir(parents=True, exist_ok=True)

    def panels(name, *draw):
        figure, axes = plt.subplots(
            1, len(draw), figsize=(4.5 * len(draw), 4), layout="constrained", squeeze=False
        )
        for ax, function in zip(axes[0], draw, strict=True):
            function(ax)
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)
        print(f"figure  {folder / name}.png")

    def named(curve):
        def draw(ax):
            curve(model, X, along, ax=ax)
            ax.set_ylabel(ax.get_ylabel().replace("y", target, 1))

        return draw

    curves = [plots.density_along_input, plots.fan_chart]
    if model.latent_dim == 1:
        curves.append(plots.latent_traversal)
    panels("along_input", *map(named, curves))
    pit = model.cdf(X, y)
    panels(
        "calibration",
        lambda ax: plots.pit_histogram(pit, ax=ax),
        lambda ax: plots.calibration_curve(pit, ax=ax),
    )
    some = slice(args.rows)
    panels(
        "densities",
        lambda ax: plots.marginal_densities(model, X[some], y[some], ax=ax).set_xlabel(target),
    )
    panels("training", lambda ax: plots.training_curve(model.history_, ax=ax))
    return 0


def _loaded(path: str, device: str):
    from pyro_dgp.table.frames import Columns  # isort: split
    from pyro_dgp.sklearn import LatentDGPRegressor

    model = LatentDGPRegressor.load(path, device=device)
    if "columns" not in model.extra_:
        raise ValueError(
            f"{path} was not made by `pyro-dgp fit`: it does not say what columns are."
        )
    return model, Columns(**model.extra_["columns"])


def _strongest(model, X, names: list[str]) -> str:
    """The input that moves the median most from its 5% to its 95% quantile, others at medians."""
    rows = np.tile(X.median().to_numpy(), (2 * len(names), 1))
    for i, name in enumerate(names):
        rows[2 * i : 2 * i + 2, X.columns.get_loc(name)] = X[name].quantile([0.05, 0.95])
    medians = np.asarray(model.predict_quantiles(plots.like(model, rows), [0.5]))[:, 0]
    return names[int(np.abs(np.diff(medians.reshape(-1, 2))).argmax())]
