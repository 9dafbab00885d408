"""The commands for tables: ``pyro-dgp fit``, ``predict``, ``evaluate`` and ``plot``."""

import argparse
import importlib
from collections.abc import Callable

__all__ = ["add_evaluate", "add_fit", "add_plot", "add_predict", "add_report"]


_TABLE = (
    "CSV, Parquet or Excel file with the target (default: the rows that `pyro-dgp fit` held out)"
)


def _later(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """A command that is imported when it runs, as it needs more packages than other commands."""

    def command(args: argparse.Namespace) -> int:
        return getattr(importlib.import_module(f"pyro_dgp.table.{module}"), name)(args)

    return command


def add_fit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``fit`` to the subparsers of ``argparse``."""
    fit = commands.add_parser(
        "fit",
        help="learn predictive densities from a table",
        description="Fits a latent-variable deep GP to a CSV, Parquet or Excel file, prints its "
        "scores on held-out rows, and saves it to one file. Targets of texts, or of two different "
        "numbers, are classes. Texts become categories; missing values have indicator inputs. "
        "Ctrl-C saves the progress, and the same command continues.",
        epilog="example: pyro-dgp fit houses.csv --target price --output houses.pt --report "
        "houses.html",
    )
    fit.set_defaults(command=_later("fitting", "fit_command"))
    fit.add_argument("table", help="CSV, Parquet or Excel file; - for the standard input")
    fit.add_argument("--target", nargs="+", required=True, help="column to predict, or several")
    fit.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    fit.add_argument(
        "--weights", default=None, metavar="COLUMN", help="column with the weight of each row"
    )
    for kind in ("numeric", "categorical"):
        fit.add_argument(
            f"--{kind}", nargs="+", default=[], metavar="COLUMN",
            help=f"columns, perhaps the target, to be treated as {kind}",
        )  # fmt: skip
    _add_reading(fit)
    fit.add_argument("--output", default="model.pt", help="file of the model (default model.pt)")
    fit.add_argument(
        "--test-fraction",
        type=float,
        default=0.1,
        help="share of the rows held out for the report (default 0.1; 0 for none)",
    )
    fit.add_argument(
        "--test",
        default=None,
        metavar="FILE",
        help="another table for the report",
    )
    fit.add_argument(
        "--report", nargs="+", default=[], metavar="FILE",
        help="also write the report: a page with pictures (.html), numbers (.json)",
    )  # fmt: skip
    fit.add_argument(
        "--transform", choices=("log",), default=None,
        help="model the logarithm of the target, for positive targets with a long tail",
    )  # fmt: skip
    fit.add_argument(
        "--likelihood", default=None, metavar="NAME",
        help="likelihood of the target, such as poisson for counts or ordinal for grades "
        "(default: automatic)",
    )  # fmt: skip
    fit.add_argument(
        "--steps",
        type=int,
        default=None,
        help="largest number of training steps (default 2000 or 4000)",
    )
    fit.add_argument(
        "--time-limit", type=float, default=None, metavar="SECONDS",
        help="use fewer steps if they would take longer (default: no limit)",
    )  # fmt: skip
    fit.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="number of processes, -1 for one per core (default: -1 on the CPU with at most 50,000 "
        "rows, otherwise 1)",
    )
    fit.add_argument("--layers", type=int, default=2, help="number of GP layers (default 2)")
    fit.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    fit.add_argument("--device", default="cpu", help="torch device (default cpu)")
    fit.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    fit.add_argument("--quiet", action="store_true", help="no progress bar")


def add_predict(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``predict`` to the subparsers of ``argparse``."""
    predict = commands.add_parser(
        "predict",
        help="predict the targets of new rows with a model of `pyro-dgp fit`",
        description="Writes mean, standard deviation and quantiles of the target for each row of a "
        "table, or probabilities of classes; where the table has the target, its log density, too.",
        epilog="example: pyro-dgp predict houses.pt new.csv --quantiles 0.05 0.5 0.95",
    )
    predict.set_defaults(command=_later("predicting", "predict_command"))
    predict.add_argument("model", help="file that `pyro-dgp fit` wrote")
    predict.add_argument("table", help="CSV, Parquet or Excel file; - for the standard input")
    _add_reading(predict)
    predict.add_argument(
        "--keep", nargs="+", default=[], metavar="COLUMN",
        help="columns of the table to write beside the predictions",
    )  # fmt: skip
    predict.add_argument(
        "--quantiles", type=float, nargs="+", default=None, metavar="P",
        help="default 0.05 0.5 0.95, if there is no --level",
    )  # fmt: skip
    predict.add_argument(
        "--level", type=float, nargs="+", default=[], metavar="P",
        help="ends of central intervals with this probability, such as 0.9",
    )  # fmt: skip
    predict.add_argument(
        "--draws",
        type=int,
        default=0,
        metavar="N",
        help="number of draws of the target (default 0)",
    )
    predict.add_argument("--seed", type=int, default=0, help="seed of the draws (default 0)")
    predict.add_argument(
        "--density", type=float, nargs=3, default=None, metavar=("LOW", "HIGH", "N"),
        help="the density at N targets from LOW to HIGH",
    )  # fmt: skip
    predict.add_argument(
        "--output", default="-", help="CSV, TSV or Parquet file to write (default -, the terminal)"
    )
    predict.add_argument("--device", default="cpu", help="torch device (default cpu)")


def add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``evaluate`` to the subparsers of ``argparse``."""
    evaluate = commands.add_parser(
        "evaluate",
        help="score a model of `pyro-dgp fit` on rows with known targets",
        description="Prints the mean log-likelihood (per unit of the target; larger is better), "
        "the mean CRPS and the RMSE (in units of the target; smaller is better), and the coverage "
        "of central intervals; for classes log loss, Brier score, accuracy and AUC.",
        epilog="example: pyro-dgp evaluate houses.pt sold.csv --json",
    )
    evaluate.set_defaults(command=_later("predicting", "evaluate_command"))
    evaluate.add_argument("model", help="file that `pyro-dgp fit` wrote")
    evaluate.add_argument("table", nargs="?", default=None, help=_TABLE)
    _add_reading(evaluate)
    evaluate.add_argument(
        "--json", action="store_true", help="as JSON, with standard errors of the means"
    )
    evaluate.add_argument("--device", default="cpu", help="torch device (default cpu)")


def add_plot(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``plot`` to the subparsers of ``argparse``."""
    plot = commands.add_parser(
        "plot",
        help="draw the predictive densities of a model of `pyro-dgp fit`",
        description="Draws calibration on the rows of a table, the importance of columns, "
        "densities of some rows, and density, quantiles and the effect of the latent input along "
        "one column, with the others at medians and most frequent texts.",
        epilog="example: pyro-dgp plot houses.pt houses.csv --input area --output figures",
    )
    plot.set_defaults(command=_later("plotting", "plot_command"))
    plot.add_argument("model", help="file that `pyro-dgp fit` wrote")
    plot.add_argument("table", nargs="?", default=None, help=_TABLE)
    _add_reading(plot)
    plot.add_argument(
        "--input", default=None, metavar="COLUMN",
        help="column along the axis (default: the most important one)",
    )  # fmt: skip
    plot.add_argument(
        "--target",
        default=None,
        metavar="COLUMN",
        help="target to draw, of several (default: the first)",
    )
    plot.add_argument("--rows", type=int, default=3, help="number of rows to draw (default 3)")
    plot.add_argument("--output", default="figures", help="folder to write to (default figures)")
    plot.add_argument("--device", default="cpu", help="torch device (default cpu)")


def add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``report`` to the subparsers of ``argparse``."""
    report = commands.add_parser(
        "report",
        help="one page about a model of `pyro-dgp fit`, with scores and pictures",
        description="Writes a page in HTML: scores, calibration, the importance of columns, and "
        "predictions along the most important ones.",
        epilog="example: pyro-dgp report houses.pt --output houses.html",
    )
    report.set_defaults(command=_later("plotting", "report_command"))
    report.add_argument("model", help="file that `pyro-dgp fit` wrote")
    report.add_argument("table", nargs="?", default=None, help=_TABLE)
    _add_reading(report)
    report.add_argument("--output", default="report.html", help="file (default report.html)")
    report.add_argument("--device", default="cpu", help="torch device (default cpu)")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of how a table is written, where it is not recognised."""
    group = parser.add_argument_group("how the table is written, where it is not recognised")
    group.add_argument(
        "--separator", default=None, help="character between fields, such as ';' or tab"
    )
    group.add_argument(
        "--decimal", default=None, choices=(".", ","), metavar="MARK", help="decimal mark, . or ,"
    )
    group.add_argument("--encoding", default=None, help="encoding of the text, such as utf-16")
    group.add_argument(
        "--skip-rows",
        type=int,
        default=None,
        metavar="N",
        help="number of lines above the column names",
    )
    group.add_argument("--sheet", default=None, help="sheet of an Excel file (default: the first)")
    group.add_argument(
        "--missing", nargs="+", default=[], metavar="TEXT",
        help="texts for missing values, besides NA, ? and the like",
    )  # fmt: skip
    group.add_argument(
        "--dates", default=None, choices=("dmy", "mdy"),
        help="whether days or months come first in dates such as 3/4/2021",
    )  # fmt: skip
