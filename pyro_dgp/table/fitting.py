"""``pyro-dgp fit``: from a file with a table to a model, and a report on held-out rows."""

import argparse
import hashlib
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyro_dgp._checks import check_jobs, check_seed
from pyro_dgp._files import write_json
from pyro_dgp.plots import pyplot
from pyro_dgp.table.held_out import as_plain
from pyro_dgp.table.outputs import (
    check_output,
    is_checkpoint,
    is_model,
    is_options,
    is_page,
    is_scores,
)
from pyro_dgp.table.packages import pd
from pyro_dgp.table.preparing import Prepared, prepared
from pyro_dgp.table.report.page import write_page
from pyro_dgp.table.scores import jsonable
from pyro_dgp.table.shared import TableModel, note, task_of
from pyro_dgp.table.task import Model

__all__ = ["fit_command"]


def fit_command(args: argparse.Namespace) -> int:
    """``pyro-dgp fit``."""
    check_seed("--seed", args.seed)
    if args.jobs is not None:
        check_jobs("--jobs", args.jobs)
    files = _Files.checked(args)
    data = prepared(args)
    print(f"{data.facts['rows']}, {data.facts['inputs']}.")
    start = time.perf_counter()
    model = _trained(args, files, data)
    seconds = time.perf_counter() - start
    steps, interrupted = len(model.history_.losses), model.history_.interrupted
    facts = data.facts | {
        "model": f"deep GP with {model.num_layers} layers, likelihood {model.likelihood_}",
        "pool": ", ".join(f"{n} {w:.0%}" for n, w in model.pool_weights_.items() if w > 0.005),
        "time": f"{seconds:.0f} s, of them {model.history_.seconds:.0f} for the model's {steps} "
        "steps",
    }
    kept = {"facts": facts, "held_out": as_plain(data.held_out)}
    # A complete model of an earlier command is kept.
    path = files.partial if interrupted else files.model
    model.save(path, columns=data.columns.as_dict(), **kept)
    if interrupted:
        there = files.checkpoint.exists()
        goes_on = f", and the same command goes on from {files.checkpoint}" if there else ""
        note([f"interrupted after {steps} steps. The model so far is {files.partial}{goes_on}."])
        return 130
    for leftover in (*model.checkpoints(), files.partial, files.options):
        leftover.unlink(missing_ok=True)
    own = TableModel(model, data.columns, kept)
    try:
        with _terminated_as_interrupted():
            _report(args, files, own, data)
    except KeyboardInterrupt:
        note([f"the report was interrupted. The model is whole: {files.model}."])
        return 130
    except (ValueError, ArithmeticError, OSError, RuntimeError) as error:
        note([f"the report failed: {error}. The model is whole: {files.model}."])
        return 2
    print(f"time   {facts['time']}")
    print(f"model  {files.model}")
    return 0


def _trained(args: argparse.Namespace, files: "_Files", data: Prepared) -> Model:
    """The trained model; with fewer steps after Ctrl-C."""
    options = {"likelihood": args.likelihood} if args.likelihood else {}
    if data.columns.classes is None:
        options["target_transform"] = args.transform
    model = task_of(data.columns).ESTIMATOR(
        num_layers=args.layers, dtype=args.dtype, device=args.device, random_state=args.seed,
        checkpoint=files.checkpoint, verbose=not args.quiet, time_limit=args.time_limit,
        n_jobs=args.jobs, num_steps=args.steps, **options,
    )  # fmt: skip
    _check_same_options(files, args, data.X, data.y)
    try:
        with warnings.catch_warnings(record=True) as told, _terminated_as_interrupted():
            warnings.simplefilter("always")
            model.fit(data.X, data.y, data.weights)
    finally:
        if not files.checkpoint.exists():
            files.options.unlink(missing_ok=True)
    note(warning.message for warning in told)
    return model


@dataclass(frozen=True)
class _Files:
    """The files that a fit writes."""

    model: Path
    checkpoint: Path
    partial: Path
    options: Path
    reports: list[tuple[Path, Callable]]

    @classmethod
    def checked(cls, args: argparse.Namespace) -> "_Files":
        """The files, after checks that no other file is overwritten."""
        if not 0 <= args.test_fraction < 1:
            raise ValueError(
                f"--test-fraction must be at least 0 and below 1: {args.test_fraction}."
            )
        if args.output == "-":
            raise ValueError("--output -: a model is a file; name one.")
        output = Path(args.output)
        inputs = {"table": args.table, "test table": args.test or "-"}
        check_output(output, inputs, is_model)
        kinds = ("checkpoint", "partial", "options")
        checkpoint, partial, options = (output.with_name(f"{output.name}.{kind}") for kind in kinds)
        found = cls(output, checkpoint, partial, options, _reports(args))
        # The other files are removed at the end.
        for kind, is_ours in zip(kinds, (is_checkpoint, is_model, is_options), strict=True):
            check_output(getattr(found, kind), inputs, is_ours)
        for path, writer in found.reports:
            ours = is_scores if writer is _write_scores else is_page
            check_output(path, inputs | {"model": args.output}, ours, "--report")
        paths = [path.resolve() for path in (output, *(path for path, _ in found.reports))]
        if len(set(paths)) < len(paths):
            raise ValueError("--output and --report name the same file twice.")
        if found.reports and not args.test and args.test_fraction == 0:
            raise ValueError("--report needs rows held out: --test-fraction, or --test FILE.")
        if any(writer is _write_page for _, writer in found.reports):
            pyplot()  # an error now, not after training, if it is missing
        return found


def _report(args: argparse.Namespace, files: _Files, own: TableModel, data: Prepared) -> None:
    """Prints scores, saves them in the file of the model, and writes the reports."""
    if not len(data.held_out):
        note(["no row is held out: there is no report."] if files.reports else [])
        return
    rows = own.columns.inputs(data.held_out), own.columns.target_values(data.held_out)
    train = data.X, data.y, data.weights
    scores = own.task.report(own.model, train, rows, own.targets, args.seed, not args.quiet)
    own.notes["scores"] = jsonable(scores)
    print(*own.task.tables(scores), sep="\n\n")
    own.model.save(files.model, columns=own.columns.as_dict(), **own.notes)
    for path, write in files.reports:
        write(path, args, own, data, own.notes["scores"])
        print(f"report {path}")


def _reports(args: argparse.Namespace) -> list[tuple[Path, Callable]]:
    """Files of the report and the functions that write them; the faster ones first.

    :raises ValueError: If the suffix of a name is unknown.
    """
    found = []
    for name in args.report:
        path = Path(name)
        writer = _WRITERS.get(path.suffix.lower())
        if writer is None:
            raise ValueError(f"--report {name}: name a file that ends in .html or .json.")
        found.append((path, writer))
    return sorted(found, key=lambda one: one[1] is not _write_scores)


def _write_scores(
    path: Path, args: argparse.Namespace, own: TableModel, data: Prepared, scores: dict
) -> None:
    write_json(scores, path)


def _write_page(
    path: Path, args: argparse.Namespace, own: TableModel, data: Prepared, scores: dict
) -> None:
    write_page(path, own, data.held_out, scores, args.output, progress=not args.quiet)


_WRITERS = {".json": _write_scores, ".html": _write_page, ".htm": _write_page}


def _check_same_options(
    files: _Files, args: argparse.Namespace, X: pd.DataFrame, y: np.ndarray
) -> None:
    """Refuses to continue a run whose options or table have changed."""
    path, checkpoint = files.options, files.checkpoint
    kept = ("steps", "layers", "dtype", "seed", "target", "drop", "numeric", "categorical",
            "test_fraction", "weights", "transform", "likelihood")  # fmt: skip
    targets = "\n".join(map(str, y.tolist())).encode()
    table = hashlib.sha256(np.ascontiguousarray(X).tobytes() + targets).hexdigest()
    options = {name: getattr(args, name) for name in kept} | {"table": table}
    if checkpoint.exists() and path.exists():
        before = json.loads(path.read_text())
        changed = [name for name in options if before.get(name) != options[name]]
        if changed:
            name = changed[0]
            what = f"--{name.replace('_', '-')} was {before.get(name)}"
            if name == "table":
                what = "the table's contents were others"
            raise ValueError(
                f"{checkpoint} is of a run that was interrupted, in which {what}. Do as then to go "
                "on with it, or remove it to start anew."
            )
    write_json(options, path)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Handles SIGTERM, which queueing systems send, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
