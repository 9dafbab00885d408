"""``pyro-dgp fit``: from a file with a table to a model, and a report on rows held out."""

import argparse
import hashlib
import json
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
from pyro_dgp.table.page import write_page
from pyro_dgp.table.preparing import Prepared, prepared
from pyro_dgp.table.shared import TableModel, note, task_of

__all__ = ["fit_command"]


def fit_command(args: argparse.Namespace) -> int:
    """``pyro-dgp fit``."""
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
    kept = {"columns": data.columns.as_dict(), "facts": facts, "held_out": as_plain(data.held_out)}
    # A model that is whole, of an earlier command, stays.
    model.save(files.partial if interrupted else files.model, **kept)
    if interrupted:
        there = files.checkpoint.exists()
        goes_on = f", and the same command goes on from {files.checkpoint}" if there else ""
        note([f"interrupted after {steps} steps. The model so far is {files.partial}{goes_on}."])
        return 130
    for leftover in (*model.checkpoints(), files.partial, files.options):
        leftover.unlink(missing_ok=True)
    if len(data.held_out):
        try:
            with _terminated_as_interrupted():
                _report(args, files, TableModel(model, data.columns, kept), data)
        except KeyboardInterrupt:
            note([f"the report was interrupted. The model is whole: {files.model}."])
            return 130
    print(f"time   {facts['time']}")
    print(f"model  {files.model}")
    return 0


def _trained(args: argparse.Namespace, files: "_Files", data: Prepared):
    """A model; of fewer steps after Ctrl-C."""
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
    """What a fit writes."""

    model: Path
    checkpoint: Path
    partial: Path
    options: Path

    @classmethod
    def checked(cls, args: argparse.Namespace) -> "_Files":
        """Refuses to write over what is not ours."""
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
        found = cls(output, *(output.with_name(f"{output.name}.{kind}") for kind in kinds))
        # The others are written, too, and removed in the end.
        for kind, is_ours in zip(kinds, (is_checkpoint, is_model, is_options), strict=True):
            check_output(getattr(found, kind), inputs, is_ours)
        for name in args.report:
            path = Path(name)
            if path.suffix.lower() not in (".html", ".htm", ".json"):
                raise ValueError(f"--report {name}: name a file that ends in .html or .json.")
            ours = is_scores if path.suffix.lower() == ".json" else is_page
            check_output(path, inputs | {"model": args.output}, ours, "--report")
        if args.report and not args.test and args.test_fraction == 0:
            raise ValueError("--report needs rows held out: --test-fraction, or --test FILE.")
        if any(not name.endswith(".json") for name in args.report):
            pyplot()  # before the work, if it is missing
        return found


def _report(args: argparse.Namespace, files: _Files, own: TableModel, data: Prepared) -> None:
    """Prints scores, keeps them in the model's file, and writes what is asked for."""
    rows = own.columns.inputs(data.held_out), own.columns.target_values(data.held_out)
    progress = not args.quiet
    scores = own.task.report(own.model, (data.X, data.y), rows, own.targets, args.seed, progress)
    print(*own.task.tables(scores), sep="\n\n")
    own.notes["scores"] = scores
    own.model.save(files.model, **own.notes)
    for name in args.report:
        if name.endswith(".json"):
            write_json(scores, Path(name))
        else:
            write_page(Path(name), own, data.held_out, scores, args.output, progress)
        print(f"report {name}")


def _check_same_options(files: _Files, args: argparse.Namespace, X, y) -> None:
    """Says which option has changed since a run that is to be gone on with."""
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
def _terminated_as_interrupted():
    """SIGTERM, as of a queue whose time is over, saves like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
