"""The command line: ``pyro-dgp demo``, ``pyro-dgp train`` and ``pyro-dgp snr``."""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from pyro_dgp import __version__
from pyro_dgp._checks import check_integer
from pyro_dgp._files import write_json
from pyro_dgp.experiments import datasets
from pyro_dgp.experiments.runs import LOSSES, RunConfig, run

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Runs a command.

    :param argv: Arguments without the program's name; None for the process's.
    :returns: 0 for success, 2 for a wrong argument or missing data, 3 for a failure in training,
        130 after Ctrl-C.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return args.command(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"pyro-dgp: error: {error}", file=sys.stderr)
        return 2
    except (ArithmeticError, RuntimeError) as error:
        print(f"pyro-dgp: training failed: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("pyro-dgp: interrupted; nothing was written.", file=sys.stderr)
        return 130


def _demo(args: argparse.Namespace) -> int:
    figures = None if args.no_figure else _figures()
    return _run(args, _demo_config(args), Path(args.output) / "demo.json", figures)


def _figures():
    """The module that draws, or None without Matplotlib. Before long work, so that it is known."""
    from pyro_dgp.experiments import figures

    try:
        figures._pyplot()
    except ImportError as error:
        print(f"{error} Going on without the figure.", file=sys.stderr)
        return None
    return figures


def _demo_config(args: argparse.Namespace) -> RunConfig:
    return RunConfig(
        "demo",
        seed=args.seed,
        K=args.K,
        num_layers=args.layers,
        num_inducing=50,
        noise_variance=0.1,
        num_steps=args.steps,
        batch_size=256,
        lr=args.lr,
        lr_decay=0.93,
        lr_decay_steps=max(1, args.steps // 30),
        mixing="principal",
        dtype=args.dtype,
        num_test_samples=2000,
    )


def _snr(args: argparse.Namespace) -> int:
    from pyro_dgp.experiments import paper

    folder = Path(args.output)
    _check_folder(folder)
    check_integer("--draws", args.draws, 20)
    check_integer("--points", args.points, 1)
    for number in args.samples:
        check_integer("--samples", number, 1)
    figures = None if args.no_figure else _figures()
    config = _demo_config(args)
    _, dgp = run(config, progress=not args.quiet)
    data = datasets.load("demo", 0)
    like = dgp.layers[-1].Xu
    rows = np.linspace(0, len(data.X_train) - 1, args.points).astype(int)
    X = torch.as_tensor(data.X_train[rows]).to(like)
    y = torch.as_tensor(data.y_train[rows]).to(like)
    sweep = paper.snr_against_K(
        dgp, X, y, args.samples, args.draws, seed=config.seed or 0, progress=not args.quiet
    )
    path = folder / "snr.json"
    sweep.save(path)
    print("estimator       K      SNR   +-       debiased")
    for p in sweep.select(group="encoder"):
        print(f"{p.estimator:<10} {p.K:>6} {p.snr:>8.4f} {p.snr_error:.4f} {p.debiased:>10.4f}")
    for name in paper.ESTIMATORS:
        print(sweep.advice(estimator=name, group="encoder"))
        try:
            slope, error = sweep.slope(estimator=name, group="encoder")
            print(f"{name}: SNR ~ K^({slope:.2f} +- {error:.2f})")
        except ValueError as error:
            print(f"{name}: {error}")
    print(f"points               {path}")
    if figures is not None:
        parameters = sorted({p.group for p in sweep.points} - {"encoder"})[:4]
        some = sorted({args.samples[i] for i in (0, len(args.samples) // 2, -1)})
        draws = paper.gradient_draws(
            dgp,
            X[-1:],
            y[-1:],
            sorted(set(some)),
            10 * args.draws,
            config.seed or 0,
            not args.quiet,
        )
        for name, figure in (
            ("figure1", figures.snr_figure(sweep, parameters)),
            ("figure2", figures.histogram_figure(draws)),
            ("figure8", figures.histogram_figure(draws, common_axis=False)),
        ):
            image = folder / f"{name}.png"
            figure.savefig(image, dpi=120)
            print(f"{name:<20} {image}")
    return 0


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; name a folder.")


def _train(args: argparse.Namespace) -> int:
    config = RunConfig(
        args.dataset,
        split=args.split,
        seed=args.seed,
        loss=args.loss,
        K=args.K,
        num_layers=args.layers,
        latent_dim=args.latent_dim,
        learned_qz=not args.fixed_qz,
        num_steps=args.steps,
        batch_size=args.batch_size,
        lr=args.lr,
        mixing=args.mixing,
        dtype=args.dtype,
        device=args.device,
        num_test_samples=args.test_samples,
    )
    return _run(args, config, Path(args.output) / f"{config.name}.json", None)


def _run(args: argparse.Namespace, config: RunConfig, path: Path, figures) -> int:
    _check_folder(path.parent)
    record, dgp = run(config, progress=not args.quiet)
    write_json(record, path)
    label = "bound (VI)" if config.loss == "vi" else f"bound (K={config.K})"
    print(
        f"{label:<20} {record['train_bound']:.2f}"
        f"  ({record['train_bound'] / record['num_train']:.4f} per training point)\n"
        f"test log-likelihood  {record['test_log_likelihood']:.4f}\n"
        f"test CRPS            {record['crps']:.4f}\n"
        f"test RMSE            {record['rmse']:.4f}\n"
        f"noise variance       {record['noise_variance']:.2e}\n"
        f"time                 {record['seconds']:.1f} s for {record['steps_done']} steps"
        f" ({1e3 * record['seconds_per_step']:.1f} ms per step)\n"
        f"record               {path}"
    )
    if figures is not None:
        image = path.with_suffix(".png")
        figures.demo_figure(dgp, datasets.load(config.dataset, config.split)).savefig(
            image, dpi=120
        )
        print(f"figure               {image}")
    if record["interrupted"]:
        print("pyro-dgp: interrupted; the record holds the steps done.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyro-dgp",
        description="Latent-variable deep Gaussian processes with importance-weighted bounds.",
    )
    parser.add_argument("--version", action="version", version=f"pyro_dgp {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser(
        "demo",
        help="train on the paper's demo data and draw what was learned",
        description="Trains a model with DReG on the paper's demo data (no download), prints the "
        "bound and the test log-likelihood, and draws data and posterior samples. One GP layer, as "
        "in the authors' demo script, learns them in about a minute; two need some ten times that.",
    )
    demo.set_defaults(command=_demo)
    demo.add_argument("--no-figure", action="store_true", help="draw nothing")
    _common(demo, layers=1, K=10, steps=1500, lr=0.05)

    train = commands.add_parser(
        "train",
        help="train and evaluate one model on one split of a data set",
        description="Trains one model in the paper's configuration and writes a JSON record.",
        epilog="example: pyro-dgp train forest --split 0 --loss dreg --K 50 --steps 3000",
    )
    train.set_defaults(command=_train)
    train.add_argument("dataset", help=f"one of {', '.join(datasets.names())}")
    train.add_argument("--split", type=int, default=0, help="train-test split (default 0)")
    train.add_argument("--loss", choices=LOSSES, default="dreg", help="default dreg")
    train.add_argument("--latent-dim", type=int, default=1, help="dimension of z (default 1)")
    train.add_argument("--fixed-qz", action="store_true", help="fix q(z) to the prior")
    train.add_argument("--batch-size", type=int, default=64, help="default 64")
    train.add_argument(
        "--mixing",
        choices=("published", "principal"),
        default="published",
        help="mixing matrix of the hidden layers (default: that of the published numbers)",
    )
    train.add_argument("--device", default="cpu", help="torch device (default cpu)")
    train.add_argument("--test-samples", type=int, default=10_000, help="default 10000")
    _common(train, layers=2, K=50, steps=3000, lr=0.005)

    snr = commands.add_parser(
        "snr",
        help="signal-to-noise ratios of the encoder's gradient on the demo data",
        description="Trains a model on the demo data and estimates, for single data, the mean "
        "signal-to-noise ratio of the encoder's gradient against K, under the ordinary gradient "
        "(REG) and the doubly reparameterised one (DReG); prints a table with the fitted orders "
        "and draws the paper's Figures 1, 2 and 8.",
        epilog="example: pyro-dgp snr --samples 1 10 100 1000 --draws 1000",
    )
    snr.set_defaults(command=_snr)
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
    _common(snr, layers=2, K=10, steps=1500, lr=0.05)
    return parser


def _common(parser, layers: int, K: int, steps: int, lr: float) -> None:
    parser.add_argument(
        "--layers", type=int, default=layers, help=f"number of GP layers (default {layers})"
    )
    parser.add_argument("--K", type=int, default=K, help=f"importance samples (default {K})")
    parser.add_argument("--steps", type=int, default=steps, help=f"default {steps}")
    parser.add_argument("--lr", type=float, default=lr, help=f"learning rate (default {lr})")
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float64", help="default float64"
    )
    parser.add_argument("--seed", type=int, default=None, help="default: the split's number")
    parser.add_argument("--output", default="results", help="folder to write to (default results)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


if __name__ == "__main__":
    sys.exit(main())
