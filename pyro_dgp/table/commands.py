"""``pyro-dgp fit``, ``predict`` and ``plot``: from a file with a table to densities."""

import argparse
import sys
import textwrap
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

from pyro_dgp import plots
from pyro_dgp._files import read_tensors, written_whole

__all__ = ["add_fit", "add_plot", "add_predict"]

# Texts of a column that densities are drawn for.
_MOST_GROUPS = 6


def add_fit(commands) -> None:
    """Adds ``fit`` to the subparsers of ``argparse``."""
    fit = commands.add_parser(
        "fit",
        help="learn predictive densities from a table of one's own",
        description="Fits a latent-variable deep GP to a CSV, Parquet or Excel file, prints how "
        "good it is on rows held out, and saves it to one file. Texts become categories; what is "
        "missing is an input of its own. Ctrl-C saves what there is, and the same command goes on.",
        epilog="example: pyro-dgp fit houses.csv --target price --output houses.pt",
    )
    fit.set_defaults(command=_fit)
    fit.add_argument("table", help="CSV, Parquet or Excel file; - for the standard input")
    fit.add_argument("--target", nargs="+", required=True, help="column to predict, or several")
    fit.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    for kind in ("numeric", "categorical"):
        fit.add_argument(
            f"--{kind}", nargs="+", default=[], metavar="COLUMN",
            help=f"columns that are {kind}, whatever they look like",
        )  # fmt: skip
    _add_reading(fit)
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
        "table; where the table has the target, its log density, too.",
        epilog="example: pyro-dgp predict houses.pt new.csv --quantiles 0.05 0.5 0.95",
    )
    predict.set_defaults(command=_predict)
    predict.add_argument("model", help="file that `pyro-dgp fit` wrote")
    predict.add_argument("table", help="CSV, Parquet or Excel file; - for the standard input")
    _add_reading(predict)
    predict.add_argument(
        "--keep", nargs="+", default=[], metavar="COLUMN",
        help="columns of the table to write beside the predictions",
    )  # fmt: skip
    predict.add_argument(
        "--quantiles", type=float, nargs="+", default=[0.05, 0.5, 0.95], metavar="P",
        help="default 0.05 0.5 0.95",
    )  # fmt: skip
    predict.add_argument(
        "--output", default="-", help="CSV or Parquet file to write (default -, the terminal)"
    )
    predict.add_argument("--device", default="cpu", help="torch device (default cpu)")


def add_plot(commands) -> None:
    """Adds ``plot``, likewise."""
    plot = commands.add_parser(
        "plot",
        help="draw the predictive densities of a model of `pyro-dgp fit`",
        description="Draws calibration on the rows of a table, densities of the first rows, and "
        "density, quantiles and what the latent input does along one input, the others at medians "
        "and most frequent texts.",
        epilog="example: pyro-dgp plot houses.pt houses.csv --input area --output figures",
    )
    plot.set_defaults(command=_plot)
    plot.add_argument("model", help="file that `pyro-dgp fit` wrote")
    plot.add_argument("table", help="CSV, Parquet or Excel file with the target")
    _add_reading(plot)
    plot.add_argument(
        "--input", default=None, metavar="COLUMN",
        help="column along the axis (default: the one of numbers with most say)",
    )  # fmt: skip
    plot.add_argument("--rows", type=int, default=3, help="rows to draw densities of (default 3)")
    plot.add_argument("--output", default="figures", help="folder to write to (default figures)")
    plot.add_argument("--device", default="cpu", help="torch device (default cpu)")


def _add_reading(parser) -> None:
    """What says how a table is written, where that is not clear."""
    group = parser.add_argument_group("how the table is written, where that is not clear")
    group.add_argument("--separator", default=None, help="between fields, such as ';' or tab")
    group.add_argument("--decimal", default=None, choices=(".", ","), help="decimal mark")
    group.add_argument("--encoding", default=None, help="of the text, such as utf-16")
    group.add_argument(
        "--skip-rows", type=int, default=None, metavar="N", help="lines above the names of columns"
    )
    group.add_argument("--sheet", default=None, help="of an Excel file (default: the first)")
    group.add_argument(
        "--missing", nargs="+", default=[], metavar="TEXT",
        help="what means that a number is missing, beside NA, ? and the like",
    )  # fmt: skip
    group.add_argument(
        "--dates", default=None, choices=("dmy", "mdy"),
        help="whether days or months come first in dates such as 3/4/2021",
    )  # fmt: skip


def _table(args: argparse.Namespace):
    """The table as it is written, and how its numbers and dates are, as far as arguments say."""
    from pyro_dgp.table.cells import Conventions
    from pyro_dgp.table.reading import read_table

    separator = {"tab": "\t", "\\t": "\t", "space": " "}.get(args.separator, args.separator)
    if separator is not None and len(separator) != 1:
        raise ValueError(f"--separator must be one character, or tab: {args.separator!r}.")
    if args.skip_rows is not None and args.skip_rows < 0:
        raise ValueError(f"--skip-rows must not be negative: {args.skip_rows}.")
    table = read_table(
        args.table, separator=separator, encoding=args.encoding, skip_rows=args.skip_rows,
        sheet=args.sheet,
    )  # fmt: skip
    _note(table.notes)
    return table, Conventions(args.decimal, args.dates, args.missing)


def _note(notes) -> None:
    for note in notes:
        print(f"pyro-dgp: {note}", file=sys.stderr)


def _check_output(output: Path, inputs: dict[str, str], is_ours) -> None:
    """Refuses to write over anything that no earlier command of the kind has written."""
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder; name a file.")
    for kind, name in inputs.items():
        if name != "-" and output.exists() and Path(name).exists() and output.samefile(name):
            raise ValueError(f"--output {output} is the {kind} itself; name another file.")
    if output.is_file() and output.stat().st_size and not is_ours(output):
        raise ValueError(
            f"--output {output} exists and is not what this command writes; name another file, or "
            "remove that one."
        )


def _is_model(path: Path) -> bool:
    try:
        return read_tensors(path, "model")["format"].startswith("pyro_dgp model")
    except ValueError:
        return False


def _are_predictions(path: Path, target: str) -> bool:
    from pyro_dgp.table.packages import pd

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return f"{target}_mean" in pd.read_parquet(path).columns
        return f"{target}_mean" in pd.read_csv(path, nrows=0).columns
    except Exception:  # whatever a parser says of a file of another kind
        return False


def _fit(args: argparse.Namespace) -> int:
    # The tables first: what they need brings all the rest.
    from pyro_dgp.table.cells import typed
    from pyro_dgp.table.columns import Columns, names_of_rows  # isort: split
    from pyro_dgp.sklearn import LatentDGPRegressor
    from pyro_dgp.table.report import report

    if not 0 <= args.test_fraction < 1:
        raise ValueError(f"--test-fraction must be at least 0 and below 1: {args.test_fraction}.")
    if args.output == "-":
        raise ValueError("--output -: a model is a file; name one.")
    output = Path(args.output)
    _check_output(output, {"table": args.table}, _is_model)
    checkpoint, partial = (
        output.with_name(f"{output.name}.{kind}") for kind in ("checkpoint", "partial")
    )
    table, conventions = _table(args)
    for name in args.drop:
        if name not in table.frame:
            raise ValueError(
                f"There is no column '{name}'. The columns are {', '.join(table.frame)}."
            )
    table.frame = table.frame.drop(columns=[n for n in args.drop if n not in args.target])
    frame, conventions, notes = typed(
        table, conventions, numeric=args.numeric, categorical=args.categorical
    )
    frame, left_out = _rows_with_targets(frame, args.target)
    chosen = {*args.target, *args.numeric, *args.categorical}
    names = {n: why for n, why in names_of_rows(frame).items() if n not in chosen}
    several = len(args.target) > 1  # the report is of one target
    share = 0.0 if several else args.test_fraction
    order = np.random.default_rng(args.seed).permutation(len(frame))
    test, train = np.split(order, [round(share * len(frame))])
    columns = Columns.of(frame.iloc[np.sort(train)], args.target, names, conventions)
    X, y = columns.inputs(frame), columns.target_values(frame)
    notes += left_out
    notes += [
        f"Column '{n}' is left out: {why} (--numeric, --categorical)." for n, why in names.items()
    ]
    if columns.constant:
        notes.append(f"Left out, as they do not vary: {', '.join(columns.constant)}.")
    if not several and len(np.unique(y)) == 2:
        notes.append(
            "The target has two values only. If they are classes, "
            "pyro_dgp.sklearn.LatentDGPClassifier gives their probabilities."
        )
    _note(notes)
    options = {} if args.steps is None else {"num_steps": args.steps}
    model = LatentDGPRegressor(
        num_layers=args.layers, dtype=args.dtype, device=args.device, random_state=args.seed,
        checkpoint=checkpoint, verbose=not args.quiet, time_limit=args.time_limit,
        n_jobs=args.jobs, **options,
    )  # fmt: skip
    kinds = {"numbers": columns.numbers, "dates": columns.dates, "texts": columns.categories}
    counts = ", ".join(f"{len(names)} of {kind}" for kind, names in kinds.items() if names)
    print(f"{len(X)} rows, {X.shape[1]} inputs (columns: {counts}), {len(test)} rows held out.")
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X.iloc[train], y[train])
    _note(warning.message for warning in told)
    seconds = time.perf_counter() - start
    steps, interrupted = len(model.history_.losses), model.history_.interrupted
    # A model that is whole, of an earlier command, stays.
    model.save(partial if interrupted else output, columns=columns.as_dict())
    if interrupted:
        goes_on = f", and the same command goes on from {checkpoint}" if checkpoint.exists() else ""
        _note([f"interrupted after {steps} steps. The model so far is {partial}{goes_on}."])
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


def _rows_with_targets(frame, targets: list[str]):
    """The rows in which no target is missing, and notes."""
    known = [name for name in targets if name in frame.columns]
    missing = frame[known].isna()
    if not missing.any(axis=None):
        return frame, []
    if missing.any(axis=1).all():
        raise ValueError(f"The target '{known[0]}' is missing in all rows.")
    counts = ", ".join(f"'{n}'" for n in known if missing[n].any())
    number = int(missing.any(axis=1).sum())
    notes = [f"{number} of {len(frame)} rows without the target {counts} are left out."]
    return frame[~missing.any(axis=1)].reset_index(drop=True), notes


def _print_report(scores: dict[str, dict], num_rows: int) -> None:
    print(f"On {num_rows} held-out rows          log-lik.      CRPS      RMSE   coverage of")
    print(" " * 56 + "50%   90%   95%")
    for name, s in scores.items():
        density = "       -" if s["log_likelihood"] is None else f"{s['log_likelihood']:8.4g}"
        shares = "".join(f"{share:6.0%}" for share in s["coverage"].values())
        print(f"{name:<28}{density}{s['crps']:10.4g}{s['rmse']:10.4g}{shares}")


def _predict(args: argparse.Namespace) -> int:

    for p in args.quantiles:
        if not 0 < p < 1:
            raise ValueError(f"--quantiles must lie strictly between 0 and 1: {p}.")
    model, columns = _loaded(args.model, args.device)
    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        inputs = {"table": args.table, "model": args.model}
        _check_output(output, inputs, lambda path: _are_predictions(path, columns.targets[0]))
    table, conventions = _table(args)
    absent = [name for name in args.keep if name not in table.frame]
    if absent:
        raise ValueError(
            f"--keep: there is no column '{absent[0]}'. The columns are {', '.join(table.frame)}."
        )
    frame, notes = columns.typed(table, conventions)
    X = columns.inputs(frame)
    _note([*notes, *columns.remarks(frame)])
    mean, std = (v.reshape(len(X), -1) for v in model.predict(X, return_std=True))
    quantiles = np.asarray(model.predict_quantiles(X, args.quantiles)).reshape(
        len(X), len(args.quantiles), -1
    )
    found = table.frame[args.keep].copy()
    for i, name in enumerate(columns.targets):
        found[f"{name}_mean"], found[f"{name}_std"] = mean[:, i], std[:, i]
        for j, p in enumerate(args.quantiles):
            found[f"{name}_q{p:g}"] = quantiles[:, j, i]
    if all(name in frame for name in columns.targets):
        y = columns.target_values(frame)
        known = np.isfinite(y.reshape(len(y), -1)).all(1)
        if known.any():
            found["log_density"] = np.nan
            found.loc[known, "log_density"] = model.log_density(X[known], y[known])
    if output is None:
        with suppress(BrokenPipeError):
            found.to_csv(sys.stdout, index=False)
        return 0
    parquet = output.suffix.lower() in (".parquet", ".pq")
    with written_whole(output) as temporary:
        found.to_parquet(temporary) if parquet else found.to_csv(temporary, index=False)
    print(f"{len(found)} predictions  {output}")
    return 0


def _plot(args: argparse.Namespace) -> int:
    folder = Path(args.output)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; name a folder.")
    model, columns = _loaded(args.model, args.device)
    if len(columns.targets) > 1:
        raise ValueError("Pictures are of models of one target.")
    if args.rows < 1:
        raise ValueError(f"--rows must be at least 1: {args.rows}.")
    if args.input is not None and args.input not in columns.used:
        raise ValueError(
            f"--input {args.input} is no input. The inputs are {', '.join(columns.used)}."
        )
    plt = plots.pyplot()
    table, conventions = _table(args)
    frame, notes = columns.typed(table, conventions)
    _note([*notes, *columns.remarks(frame)])
    frame, left_out = _rows_with_targets(frame, columns.targets)
    _note(left_out)
    X, y = columns.inputs(frame), columns.target_values(frame)
    target, typical = columns.targets[0], columns.typical(frame)
    feature = args.input or _strongest(model, columns, frame, typical)
    folder.mkdir(parents=True, exist_ok=True)

    def panels(name, *draw, title=None):
        figure, axes = plt.subplots(
            1, len(draw), figsize=(4.5 * len(draw), 4.2 if title else 4), layout="constrained",
            squeeze=False,
        )  # fmt: skip
        for ax, function in zip(axes[0], draw, strict=True):
            function(ax)
        figure.suptitle(title, fontsize="small")
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)
        print(f"figure  {folder / name}.png")

    rest = textwrap.fill(f"Held at: {_described(typical.drop(columns=feature))}", 110)
    if feature in columns.numbers:
        along, row = list(X.columns).index(feature), columns.inputs(typical).to_numpy()[0]

        def named(curve):
            def draw(ax):
                curve(model, X, along, row, ax=ax)
                ax.set_ylabel(ax.get_ylabel().replace("y", target, 1))

            return draw

        curves = [plots.density_along_input, plots.fan_chart]
        if model.latent_dim == 1:
            curves.append(plots.latent_traversal)
        panels("along_input", *map(named, curves), title=rest)
    else:
        values, labels = _values_of(columns, frame, feature)
        rows = typical.loc[typical.index.repeat(len(values))].reset_index(drop=True)
        rows[feature] = values

        def groups(ax):
            plots.marginal_densities(model, columns.inputs(rows), labels=labels, ax=ax)
            ax.set(xlabel=target, title=f"Densities by {feature}")

        panels("along_input", groups, title=rest)
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
    from pyro_dgp.table.columns import Columns  # isort: split
    from pyro_dgp.sklearn import LatentDGPRegressor

    model = LatentDGPRegressor.load(path, device=device)
    if "columns" not in model.extra_:
        raise ValueError(
            f"{path} was not made by `pyro-dgp fit`: it does not say what columns are."
        )
    try:
        return model, Columns(**model.extra_["columns"])
    except TypeError as error:
        raise ValueError(
            f"{path} was made by another version of `pyro-dgp fit`: fit it anew."
        ) from error


def _strongest(model, columns, frame, typical) -> str:
    """The input that moves the median most from its 5% to its 95% quantile, others held."""
    names = list(columns.numbers)
    if not names:
        return columns.used[0]
    rows = typical.loc[typical.index.repeat(2 * len(names))].reset_index(drop=True)
    for i, name in enumerate(names):
        rows.loc[2 * i : 2 * i + 1, name] = frame[name].quantile([0.05, 0.95]).to_numpy()
    medians = np.asarray(model.predict_quantiles(columns.inputs(rows), [0.5]))[:, 0]
    return names[int(np.abs(np.diff(medians.reshape(-1, 2))).argmax())]


def _values_of(columns, frame, name: str) -> tuple[list, list[str]]:
    """A few values of a column of texts or dates, and what to call them."""
    if name in columns.categories:
        values = columns.categories[name]["kept"][:_MOST_GROUPS]
        return values, values
    values = frame[name].dropna().quantile(np.linspace(0, 1, 5), interpolation="nearest").unique()
    return list(values), [f"{v:%Y-%m-%d}" for v in values]


def _described(row) -> str:
    def text(value) -> str:
        if hasattr(value, "strftime"):
            return f"{value:%Y-%m-%d}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {text(value)}" for name, value in row.iloc[0].items())
