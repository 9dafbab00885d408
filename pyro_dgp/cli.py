"""The command line: commands of the study; those for tables are in :mod:`pyro_dgp.table`."""

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pyro_dgp import __version__
from pyro_dgp._checks import check_distinct, check_integer
from pyro_dgp._options import add_options, given_options
from pyro_dgp._threads import spare_busy_cores
from pyro_dgp.experiments import datasets, uci
from pyro_dgp.experiments.config import RunConfig
from pyro_dgp.experiments.reproduce import STUDIES, demo_config, some_data, trained
from pyro_dgp.experiments.reproduce.log_likelihoods import FORMATS, read_evaluations, table1
from pyro_dgp.experiments.reproduce.study import Size
from pyro_dgp.experiments.runs import checkpoint_path, load_record, record_path, run
from pyro_dgp.memory import keep_freed_memory
from pyro_dgp.plots import pyplot
from pyro_dgp.table.commands import add_evaluate, add_fit, add_plot, add_predict, add_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["main"]

# Default configuration of `demo` and `snr`.
_DEMO = {"num_layers": 1, "K": 10, "num_steps": 1500, "lr": 0.05}
_SNR = {"num_layers": 2, "K": 10, "num_steps": 2000, "lr": 0.02}


def main(argv: list[str] | None = None) -> int:
    """Runs a command.

    :param argv: Arguments without the program's name; None for the process's.
    :returns: 0 for success, 2 for a wrong argument or missing data, 3 for a failure of training or
        of something else that has run, 130 after Ctrl-C.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if argv is None:  # a process of our own
        keep_freed_memory()
        spare_busy_cores()
    try:
        return args.command(args)
    except ArithmeticError as error:  # some are a ValueError, too
        # Pyro appends a table of the shapes of all sites.
        told = str(error).partition("Trace Shapes:")[0].rstrip()
        print(f"pyro-dgp: training failed: {told}", file=sys.stderr)
        return 3
    except (ValueError, OSError, ImportError) as error:
        print(f"pyro-dgp: error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"pyro-dgp: failed: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("pyro-dgp: interrupted.", file=sys.stderr)
        return 130


def _demo(args: argparse.Namespace) -> int:
    figures = None if args.no_figure else _figures()
    return _run(args, replace(_demo_config(args, _DEMO), noise_variance=0.1), figures)


def _figures() -> ModuleType | None:
    """The module of figures; None, with a message, without Matplotlib. Called before long runs."""
    from pyro_dgp.experiments import figures

    try:
        pyplot()
    except ImportError as error:
        print(f"{error} Going on without the figure.", file=sys.stderr)
        return None
    return figures


def _demo_config(args: argparse.Namespace, defaults: dict) -> RunConfig:
    options = defaults | given_options(args, RunConfig)
    own = {name: options.pop(name) for name in defaults}
    return replace(demo_config(**own), **options)


def _snr(args: argparse.Namespace) -> int:
    from pyro_dgp.experiments.reproduce import encoders

    folder = Path(args.output)
    _check_folder(folder)
    check_integer("--draws", args.draws, 20)
    check_integer("--points", args.points, 1)
    for number in args.samples:
        check_integer("--samples", number, 1)
    check_distinct("--samples", args.samples)
    figures = None if args.no_figure else _figures()
    progress = not args.quiet
    if args.record is None:
        config, source = _demo_config(args, _SNR), folder
    else:
        config, source = load_record(args.record)[0], Path(args.record).parent
        own = [name for name in given_options(args, RunConfig) if name != "seed"]
        if own:
            raise ValueError(
                f"{args.record} says how its model was trained: of the options of training, only "
                f"--seed has an effect, on the draws (not {', '.join(own)})."
            )
        if config.num_steps and not checkpoint_path(config, source).exists():
            raise ValueError(
                f"The model of {args.record} is not there: {checkpoint_path(config, source)}."
            )
    dgp = trained(config, source, progress)
    _, X, y = some_data(config, args.points)
    seed = given_options(args, RunConfig).get("seed", config.seed) or 0
    sweep = encoders.snr_against_K(dgp, X, y, args.samples, args.draws, seed, progress=progress)
    path = folder / "snr.json"
    sweep.save(path)
    print("estimator       K      SNR   +-       debiased")
    for p in sweep.select(group="encoder"):
        print(f"{p.estimator:<10} {p.K:>6} {p.snr:>8.4f} {p.snr_error:.4f} {p.debiased:>10.4f}")
    for name in encoders.ESTIMATORS:
        try:
            print(sweep.advice(estimator=name, group="encoder"))
            slope, error = sweep.slope(estimator=name, group="encoder")
            print(f"{name}: SNR ~ K^({slope:.2f} +- {error:.2f})")
        except ValueError as error:
            print(f"{name}: {error}")
    k = encoders.tail_indices(dgp, X, y, seed)
    print(
        f"Pareto k of the weights: {k.min():.2f} to {k.max():.2f}; above 0.25 DReG's ratio rises "
        "more slowly than the root of K"
    )
    print(f"points               {path}")
    if figures is not None:
        parameters = sorted({p.group for p in sweep.points} - {"encoder"})[:4]
        some = sorted({args.samples[i] for i in (0, len(args.samples) // 2, -1)})
        entry = encoders.strongest_weight(dgp, X[:1], y[:1], max(some), seed)
        by_K = {
            K: encoders.gradient_draws(dgp, X[:1], y[:1], entry, K, 10 * args.draws, seed, progress)
            for K in some
        }
        draws = {name: {K: by_K[K][name] for K in some} for name in encoders.ESTIMATORS}
        _save_figure(figures.snr_figure(sweep, parameters), folder / "snr.png")
        _save_figure(figures.histogram_figure(draws), folder / "gradients.png")
    return 0


def _save_figure(figure: "Figure", image: Path) -> None:
    figure.savefig(image, dpi=120)
    print(f"figure               {image}")


def _reproduce(args: argparse.Namespace) -> int:
    study = STUDIES[args.what]
    given = given_options(args, Size)
    published = _published(args)
    if published is not None and not given:
        print(published)
        return 0
    folder = Path(args.output)
    _check_folder(folder)
    size = study.size.with_options(**given)
    unused = study.unused(given)
    if unused:
        print(f"pyro-dgp: {args.what} does not use {', '.join(unused)}.", file=sys.stderr)
    draw = None if args.no_figure else study.draw
    if draw is not None and _figures() is None:
        draw = None
    print(f"{args.what}: {size}", file=sys.stderr)
    try:
        results = study.compute(size, folder, not args.quiet)
    except KeyboardInterrupt:
        print(
            f"pyro-dgp: interrupted; what is done is in {folder}, and the same command goes on.",
            file=sys.stderr,
        )
        return 130
    text = "\n".join(study.table(results)).rstrip() + "\n"
    if published is not None:
        text += f"\nPublished:\n\n{published}\n"
    print(text, end="")
    for suffix, content in ({".txt": text} | study.files(results)).items():
        path = folder / f"{args.what}{suffix}"
        path.write_text(content)
        print(f"table                {path}")
    figure = None if draw is None else draw(results)
    if figure is not None:
        _save_figure(figure, folder / f"{args.what}.png")
    return 0


def _published(args: argparse.Namespace) -> str | None:
    """The table from the file with published numbers, if one is given."""
    if args.published is None:
        for option in ("format", "outliers"):
            if getattr(args, option) is not None:
                raise ValueError(f"--{option} belongs to --published.")
        return None
    if args.what != "table1":
        raise ValueError(f"--published belongs to table1, not to {args.what}.")
    table = table1(read_evaluations(args.published), args.outliers)
    return FORMATS[args.format or "markdown"](table)


def _data(args: argparse.Namespace) -> int:
    unknown = [name for name in args.names if name not in uci.manifest()]
    if unknown:
        raise ValueError(f"No data set '{unknown[0]}'; there are {', '.join(uci.manifest())}.")
    for name in args.names:
        print(f"data set             {uci.fetch(name, args.source, not args.quiet)}")
    if args.names:
        return 0
    if args.source is not None:
        raise ValueError(f"--from {args.source}: name the data sets to make.")
    print(f"{'name':<14}{'rows':>6}{'inputs':>8}  file")
    wrong = False
    for name, entry in uci.manifest().items():
        place = uci.find(name)
        where = f"missing: pyro-dgp data {name}" if place is None else str(place)
        try:
            if place is not None:
                uci.read(name)
        except ValueError as error:
            wrong, where = True, f"wrong: {error}"
        print(f"{name:<14}{entry['num_rows']:>6}{entry['num_inputs']:>8}  {where}")
        print(f"{'':<30}{entry['license']}")
    return 2 if wrong else 0


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; name a folder.")


def _train(args: argparse.Namespace) -> int:
    given = {"dataset": args.dataset} | given_options(args, RunConfig)
    config = RunConfig(**given) if args.config is None else _from_file(args.config, given)
    config.check_effect(given)
    return _run(args, config, None)


def _from_file(path: str, given: dict) -> RunConfig:
    """The configuration of a file with options, or a record; those given come first."""
    try:
        options = json.loads(Path(path).read_text())
        return RunConfig.from_dict(options.get("config", options) | given)
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise ValueError(f"--config {path}: no options of a run in JSON ({error}).") from error


def _run(args: argparse.Namespace, config: RunConfig, figures: ModuleType | None) -> int:
    folder = Path(args.output)
    _check_folder(folder)
    record, dgp = run(config, folder, progress=not args.quiet)
    if record["interrupted"]:
        print(
            f"pyro-dgp: interrupted after {record['steps_done']} steps, which are saved; the same "
            "command goes on.",
            file=sys.stderr,
        )
        return 130
    variance = record["noise_variance"]
    noise = "" if variance is None else f"noise variance       {variance:.2e}\n"
    label = "bound (VI)" if config.loss == "vi" else f"bound (K={config.K})"
    print(
        f"{label:<20} {record['train_bound']:.2f}"
        f"  ({record['train_bound'] / record['num_train']:.4f} per training point)\n"
        f"test log-likelihood  {record['test_log_likelihood']:.4f}\n"
        f"test CRPS            {record['crps']:.4f}\n"
        f"test RMSE            {record['rmse']:.4f}\n"
        f"{noise}"
        f"time                 {record['seconds']:.1f} s for {record['steps_done']} steps"
        f" ({1e3 * record['seconds_per_step']:.1f} ms per step)\n"
        f"record               {record_path(config, folder)}"
    )
    if figures is not None:
        data = datasets.load(config.dataset, config.split)
        _save_figure(figures.demo_figure(dgp, data), folder / "demo.png")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyro-dgp",
        description="Latent-variable deep Gaussian processes with importance-weighted bounds.",
    )
    parser.add_argument("--version", action="version", version=f"pyro_dgp {__version__}")
    with suppress(ImportError):
        import shtab

        shtab.add_argument_to(parser, help="print a script that completes commands in a shell")
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (
        add_fit,
        add_predict,
        add_evaluate,
        add_plot,
        add_report,
        _add_demo,
        _add_train,
        _add_snr,
        _add_reproduce,
        _add_data,
    ):
        add(commands)
    return parser


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo",
        help="train on the paper's demo data and draw what was learned",
        description="Trains a model with DReG on the paper's demo data (no download), prints the "
        "bound and the test log-likelihood, and draws data and posterior samples. One GP layer, as "
        "in the authors' demo script, learns them in about a minute; two need some ten times that.",
    )
    demo.set_defaults(command=_demo)
    demo.add_argument("--no-figure", action="store_true", help="draw nothing")
    add_options(demo, RunConfig, [*_DEMO, "dtype", "seed"], **_DEMO)
    _add_output(demo)


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = commands.add_parser(
        "train",
        help="train and evaluate one model on one split of a data set",
        description="Trains one model in the paper's configuration and writes a JSON record.",
        epilog="example: pyro-dgp train forest --split 0 --loss dreg --K 50 --steps 3000",
    )
    train.set_defaults(command=_train)
    train.add_argument("dataset", help=f"one of {', '.join(datasets.names())}")
    train.add_argument(
        "--config", metavar="FILE",
        help="JSON file with options, or a record of another run; those given here come first",
    )  # fmt: skip
    add_options(train, RunConfig)
    _add_output(train)


def _add_snr(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    snr = commands.add_parser(
        "snr",
        help="signal-to-noise ratios of the encoder's gradient",
        description="Estimates, for single data, the mean signal-to-noise ratio of the encoder's "
        "gradient against K, under the ordinary gradient (REG) and the doubly reparameterised one "
        "(DReG); prints a table with the fitted orders, and draws the ratios and the gradients' "
        "histograms. Of a model that `pyro-dgp train` made, or else of one of the demo data, which "
        "is trained first.",
        epilog="example: pyro-dgp snr results/forest_split0_dreg_K50.json --samples 1 10 100",
    )
    snr.set_defaults(command=_snr)
    snr.add_argument("record", nargs="?", help="JSON record of a run, with its model beside it")
    snr.add_argument("--no-figure", action="store_true", help="draw nothing")
    snr.add_argument("--draws", type=int, default=1000, help="gradients per estimate (1000)")
    snr.add_argument("--points", type=int, default=10, help="data to average over (default 10)")
    snr.add_argument(
        "--samples",
        type=int,
        nargs="+",
        metavar="K",
        default=[1, 5, 10, 20, 50, 100],
        help="importance samples to profile (default 1 5 10 20 50 100)",
    )
    add_options(snr, RunConfig, [*_SNR, "dtype", "seed"], **_SNR)
    _add_output(snr)


def _add_reproduce(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="make one of the paper's figures, or its table",
        description="Trains the models of one of the paper's figures or of its table, computes "
        "what is shown, writes a table and draws the figure. Models and results go to the output "
        "folder as they come: an interrupted command goes on when it is given again. Options size "
        "the study; the defaults, which depend on the figure, take minutes to days.",
        epilog="example: pyro-dgp reproduce figure3 --datasets forest --steps 1000 --draws 200",
    )
    reproduce.set_defaults(command=_reproduce)
    reproduce.add_argument("what", choices=tuple(STUDIES))
    # They depend on the study.
    add_options(reproduce, Size, **dict.fromkeys(vars(Size())))
    reproduce.add_argument(
        "--published",
        metavar="FILE",
        help="table1 of a CSV file with the columns dataset, estimator, split, eval_index and "
        "test_log_likelihood; alone, nothing is trained, and with options of size it is "
        "printed beside",
    )
    reproduce.add_argument(
        "--format", choices=tuple(FORMATS), help="of --published (default markdown)"
    )
    reproduce.add_argument(
        "--outliers",
        type=float,
        metavar="SD",
        help="with --published: leave out splits more than so many standard deviations from the "
        "mean (2 in the paper's text)",
    )
    reproduce.add_argument("--no-figure", action="store_true", help="draw nothing")
    _add_output(reproduce)


def _add_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    data = commands.add_parser(
        "data",
        help="list the data sets of the study, check their files, and get those that are missing",
        description="Without names, lists the data sets, their licences and where their files are, "
        "and checks the contents. With names, makes the missing files from the originals, which "
        "are downloaded, or lie in a folder.",
        epilog="example: pyro-dgp data pol --from downloads",
    )
    data.set_defaults(command=_data)
    data.add_argument("names", nargs="*", metavar="NAME", help="data sets to get")
    data.add_argument("--from", dest="source", metavar="FOLDER", help="folder with the originals")
    data.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default="results", help="folder to write to (default results)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


if __name__ == "__main__":
    sys.exit(main())
