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
from scipy.stats import skew

from pyro_dgp._files import write_json

# The tables first: what they need brings all the rest.
from pyro_dgp.table.packages import pd  # isort: split

from pyro_dgp.plots import pyplot
from pyro_dgp.table.cells import Conventions, typed
from pyro_dgp.table.classes import label
from pyro_dgp.table.columns import Columns, names_of_rows
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
from pyro_dgp.table.shared import (
    TableModel,
    note,
    rows_to_score,
    rows_with_targets,
    table_of,
    task_of,
)

__all__ = ["fit_command"]

# Of a target that a logarithm would become: its skewness, and the rows that it takes to tell.
_SKEWED, _ROWS_FOR_SKEWNESS = 2.0, 30


def fit_command(args: argparse.Namespace) -> int:
    """``pyro-dgp fit``."""
    files = _Files.checked(args)
    frame, names, conventions = _training_table(args)
    classes = _is_classification(args, frame)
    train, test = _split(args, frame, classes)
    columns = Columns.of(frame.iloc[train], args.target, names, conventions, classes)
    held_out = frame.iloc[test][[*columns.used, *columns.targets]].reset_index(drop=True)
    if args.test is not None:
        held_out = rows_to_score(columns, *table_of(args, args.test))
    rows = frame.iloc[train].reset_index(drop=True)
    X, y = columns.inputs(rows), columns.target_values(rows)
    weights = None if args.weights is None else _weights(rows[args.weights])
    task = task_of(columns)
    facts = _facts(args, columns, names, len(X), len(held_out))
    if columns.constant:
        note([f"Left out, as they do not vary: {', '.join(columns.constant)}."])
    note(_hints(args, columns, y))
    options = {"likelihood": args.likelihood} if args.likelihood else {}
    if not classes:
        options["target_transform"] = args.transform
    model = task.ESTIMATOR(
        num_layers=args.layers, dtype=args.dtype, device=args.device, random_state=args.seed,
        checkpoint=files.checkpoint, verbose=not args.quiet, time_limit=args.time_limit,
        n_jobs=args.jobs, num_steps=args.steps, **options,
    )  # fmt: skip
    print(f"{facts['rows']}, {facts['inputs']}.")
    _check_same_options(files, args, X, y)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as told, _terminated_as_interrupted():
            warnings.simplefilter("always")
            model.fit(X, y, weights)
    finally:
        if not files.checkpoint.exists():
            files.options.unlink(missing_ok=True)
    note(warning.message for warning in told)
    seconds = time.perf_counter() - start
    steps, interrupted = len(model.history_.losses), model.history_.interrupted
    training = f"{model.history_.seconds:.0f} for the model's {steps} steps"
    facts |= _facts_of(model) | {"time": f"{seconds:.0f} s, of them {training}"}
    kept = {"columns": columns.as_dict(), "facts": facts, "held_out": as_plain(held_out)}
    # A model that is whole, of an earlier command, stays.
    model.save(files.partial if interrupted else files.model, **kept)
    if interrupted:
        there = files.checkpoint.exists()
        goes_on = f", and the same command goes on from {files.checkpoint}" if there else ""
        note([f"interrupted after {steps} steps. The model so far is {files.partial}{goes_on}."])
        return 130
    for leftover in (*model.checkpoints(), files.partial, files.options):
        leftover.unlink(missing_ok=True)
    if len(held_out):
        own = TableModel(model, columns, kept)
        try:
            with _terminated_as_interrupted():
                _report(args, files, own, (X, y), held_out)
        except KeyboardInterrupt:
            note([f"the report was interrupted. The model is whole: {files.model}."])
            return 130
    print(f"time   {facts['time']}")
    print(f"model  {files.model}")
    return 0


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


def _report(args: argparse.Namespace, files: _Files, own: TableModel, data, held_out) -> None:
    """Prints scores, keeps them in the model's file, and writes what is asked for."""
    rows = own.columns.inputs(held_out), own.columns.target_values(held_out)
    progress = not args.quiet
    scores = own.task.report(own.model, data, rows, own.targets, args.seed, progress)
    print(*own.task.tables(scores), sep="\n\n")
    own.notes["scores"] = scores
    own.model.save(files.model, **own.notes)
    for name in args.report:
        if name.endswith(".json"):
            write_json(scores, Path(name))
        else:
            write_page(Path(name), own, held_out, scores, args.output, progress)
        print(f"report {name}")


def _is_classification(args: argparse.Namespace, frame: pd.DataFrame) -> bool:
    """Whether the target is one of texts, or of two numbers only; says so."""
    if len(args.target) > 1 or args.target[0] not in frame:
        return False
    name = args.target[0]
    column = frame[name]
    two = pd.api.types.is_float_dtype(column) and column.nunique() == 2
    if column.dtype != object and not (two and name not in args.numeric):
        return False
    some = ", ".join(label(v) for v in sorted(column.dropna().unique())[:5])
    more = ", ..." if column.nunique() > 5 else ""
    numbers = f" (--numeric '{name}' for densities of a number)" if two else ""
    note([f"Classification: '{name}' has the {column.nunique()} classes {some}{more}{numbers}."])
    if args.transform:
        raise ValueError(f"--transform is for targets that are numbers, but '{name}' has classes.")
    return True


def _split(
    args: argparse.Namespace, frame: pd.DataFrame, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Training rows and rows held out, sorted; of each class one trains at least."""
    order = np.random.default_rng(args.seed).permutation(len(frame))
    share = 0.0 if args.test is not None else args.test_fraction
    test, train = np.split(order, [round(share * len(frame))])
    if classes:
        targets = frame[args.target[0]].to_numpy()
        alone = ~np.isin(targets[test].astype(str), targets[train].astype(str))
        train, test = np.concatenate([train, test[alone]]), test[~alone]
    return np.sort(train), np.sort(test)


def _facts(args: argparse.Namespace, columns: Columns, names, rows: int, held_out: int) -> dict:
    """What there is to say of a table before training, by what it is of."""
    kinds = {"numbers": columns.numbers, "dates": columns.dates, "texts": columns.categories}
    counts = ", ".join(f"{len(own)} of {kind}" for kind, own in kinds.items() if own)
    inputs = columns.num_inputs
    facts = {
        "table": Path(args.table).name if args.table != "-" else "standard input",
        "rows": f"{rows + (0 if args.test else held_out)} rows, {held_out} held out",
        "inputs": f"{inputs} inputs from the columns: {counts}",
        "columns": ", ".join(columns.used),
    }
    left_out = [*columns.constant, *names, *args.drop]
    return facts | ({"left out": ", ".join(left_out)} if left_out else {})


def _facts_of(model) -> dict:
    weights = ", ".join(f"{name} {w:.0%}" for name, w in model.pool_weights_.items() if w > 0.005)
    return {
        "model": f"deep GP with {model.num_layers} layers, likelihood {model.likelihood_}",
        "pool": weights,
    }


def _hints(args: argparse.Namespace, columns: Columns, y: np.ndarray) -> list[str]:
    """On targets with a long tail."""
    if columns.classes or y.ndim > 1 or args.transform or args.likelihood or y.min() <= 0:
        return []
    if len(y) < _ROWS_FOR_SKEWNESS or skew(y) < _SKEWED or abs(skew(np.log(y))) > _SKEWED / 2:
        return []
    return [
        f"'{columns.targets[0]}' is positive and has a long tail: --transform log models its "
        "logarithm, and no interval reaches below 0."
    ]


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
