"""``pyro-dgp fit``: from a file with a table to a model, and a report on rows held out."""

import argparse
import hashlib
import json
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pyro_dgp._files import write_json

# The tables first: what they need brings all the rest.
from pyro_dgp.table.packages import pd  # isort: split

from pyro_dgp.sklearn import LatentDGPRegressor
from pyro_dgp.table.cells import Conventions, typed
from pyro_dgp.table.columns import Columns, names_of_rows
from pyro_dgp.table.outputs import check_output, is_checkpoint, is_model, is_options
from pyro_dgp.table.report import report
from pyro_dgp.table.shared import note, print_report, rows_to_score, rows_with_targets, table_of

__all__ = ["fit_command"]


def fit_command(args: argparse.Namespace) -> int:
    """``pyro-dgp fit``."""
    if not 0 <= args.test_fraction < 1:
        raise ValueError(f"--test-fraction must be at least 0 and below 1: {args.test_fraction}.")
    if args.output == "-":
        raise ValueError("--output -: a model is a file; name one.")
    output = Path(args.output)
    inputs = {"table": args.table, "test table": args.test or "-"}
    check_output(output, inputs, is_model)
    checkpoint, partial, options = (
        output.with_name(f"{output.name}.{kind}") for kind in ("checkpoint", "partial", "options")
    )
    # They are written, too, and removed in the end.
    check_output(checkpoint, inputs, is_checkpoint)
    check_output(partial, inputs, is_model)
    check_output(options, inputs, is_options)
    frame, names, conventions = _training_table(args)
    several = len(args.target) > 1  # the report is of one target
    share = 0.0 if several or args.test else args.test_fraction
    order = np.random.default_rng(args.seed).permutation(len(frame))
    test, train = np.split(order, [round(share * len(frame))])
    columns = Columns.of(frame.iloc[np.sort(train)], args.target, names, conventions)
    X, y = columns.inputs(frame), columns.target_values(frame)
    weights = None if args.weights is None else _weights(frame[args.weights])
    if columns.constant:
        note([f"Left out, as they do not vary: {', '.join(columns.constant)}."])
    if not several and len(np.unique(y)) == 2:
        note(
            [
                "The target has two values only. If they are classes, "
                "pyro_dgp.sklearn.LatentDGPClassifier gives their probabilities."
            ]
        )
    held_out = X.iloc[test], y[test]
    if args.test and not several:
        table, _ = table_of(args, args.test)
        held_out = rows_to_score(columns, table, conventions)
    model = LatentDGPRegressor(
        num_layers=args.layers, dtype=args.dtype, device=args.device, random_state=args.seed,
        checkpoint=checkpoint, verbose=not args.quiet, time_limit=args.time_limit,
        n_jobs=args.jobs, num_steps=args.steps,
    )  # fmt: skip
    kinds = {"numbers": columns.numbers, "dates": columns.dates, "texts": columns.categories}
    counts = ", ".join(f"{len(names)} of {kind}" for kind, names in kinds.items() if names)
    number = len(held_out[0])
    print(f"{len(X)} rows, {X.shape[1]} inputs (columns: {counts}), {number} rows held out.")
    _check_same_options(options, checkpoint, args, X, y)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as told, _terminated_as_interrupted():
            warnings.simplefilter("always")
            model.fit(X.iloc[train], y[train], None if weights is None else weights[train])
    finally:
        if not checkpoint.exists():
            options.unlink(missing_ok=True)
    note(warning.message for warning in told)
    seconds = time.perf_counter() - start
    steps, interrupted = len(model.history_.losses), model.history_.interrupted
    # A model that is whole, of an earlier command, stays.
    model.save(partial if interrupted else output, columns=columns.as_dict())
    if interrupted:
        goes_on = f", and the same command goes on from {checkpoint}" if checkpoint.exists() else ""
        note([f"interrupted after {steps} steps. The model so far is {partial}{goes_on}."])
        return 130
    for leftover in (*model.checkpoints(), partial, options):
        leftover.unlink(missing_ok=True)
    if number:
        try:
            scores = report(model, X.iloc[train], y[train], *held_out, args.seed)
        except KeyboardInterrupt:
            note([f"the report was interrupted. The model is whole: {output}."])
            return 130
        print_report(scores, number)
    training = f"{model.history_.seconds:.0f} for the model's {steps} steps"
    print(f"time   {seconds:.0f} s, of them {training}")
    print(f"model  {output}")
    return 0


def _training_table(args: argparse.Namespace) -> tuple[pd.DataFrame, list[str], Conventions]:
    """Rows that have targets, columns that only name rows, and how numbers are written."""
    table, conventions = table_of(args, args.table)
    weights = [] if args.weights is None else [args.weights]
    for name in (*args.drop, *weights):
        if name not in table.frame:
            raise ValueError(
                f"There is no column '{name}'. The columns are {', '.join(table.frame)}."
            )
        if name in args.target:
            raise ValueError(f"'{name}' is the target, and cannot be something else, too.")
    table.frame = table.frame.drop(columns=args.drop)
    frame, conventions, notes = typed(
        table, conventions, numeric=[*args.numeric, *weights], categorical=args.categorical
    )
    chosen = {*args.target, *args.numeric, *args.categorical, *weights}
    names = {n: why for n, why in names_of_rows(frame).items() if n not in chosen}
    frame, left_out = rows_with_targets(frame, args.target)
    told = [
        f"Column '{n}' is left out: {why} (--numeric, --categorical)." for n, why in names.items()
    ]
    note([*notes, *left_out, *told])
    return frame, [*names, *weights], conventions


def _weights(column) -> np.ndarray:
    weights = column.to_numpy()
    if not (weights >= 0).all():
        raise ValueError(f"--weights {column.name}: a weight is negative or missing.")
    return weights


def _check_same_options(path: Path, checkpoint: Path, args: argparse.Namespace, X, y) -> None:
    """Says which option has changed since a run that is to be gone on with."""
    kept = ("steps", "layers", "dtype", "seed", "target", "drop", "numeric", "categorical",
            "test_fraction", "weights")  # fmt: skip
    table = hashlib.sha256(np.ascontiguousarray(X).tobytes() + y.tobytes()).hexdigest()
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
