"""``pyro-dgp predict`` and ``evaluate``: predictions and scores of a fitted model."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from pyro_dgp._checks import check_seed
from pyro_dgp._files import written_whole
from pyro_dgp.table.columns import Columns
from pyro_dgp.table.outputs import are_predictions, check_kind, check_output, is_parquet, separator
from pyro_dgp.table.scores import jsonable
from pyro_dgp.table.shared import loaded, note, scored_rows, table_of

__all__ = ["evaluate_command", "predict_command"]

# Most points of the grid of a density, and most draws; more is probably an error.
_MOST_COLUMNS = 100_000


def predict_command(args: argparse.Namespace) -> int:
    """``pyro-dgp predict``."""
    own = loaded(args.model, args.device)
    columns = own.columns
    _check_asked(args, columns)
    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        inputs = {"table": args.table, "model": args.model}
        check_output(output, inputs, lambda path: are_predictions(path, columns.targets[0]))
        check_kind(output)
    table, conventions = table_of(args, args.table)
    args.keep = list(dict.fromkeys(args.keep))
    absent = [name for name in args.keep if name not in table.frame]
    if absent:
        raise ValueError(
            f"--keep: there is no column '{absent[0]}' in {args.table}. The columns are "
            f"{', '.join(table.frame)}."
        )
    frame, notes = columns.typed(table, conventions)
    X = columns.inputs(frame)
    note([*notes, *columns.remarks(frame)])
    y = None
    if all(name in frame and frame[name].notna().any() for name in columns.targets):
        y = columns.target_values(frame)
        if columns.classes is not None:
            new = sorted({*frame[columns.targets[0]].dropna()} - {*columns.classes})
            if new:
                note([f"The model does not know the classes {', '.join(new[:5])}."])
    found = own.task.predictions(own.model, columns.targets, X, y, args)
    twice = sorted({*args.keep} & {*found})
    if twice:
        raise ValueError(f"--keep {twice[0]}: a column of the predictions is called so.")
    found = table.frame[args.keep].join(found)
    if output is None:
        with suppress(BrokenPipeError):
            found.to_csv(sys.stdout, index=False)
        return 0
    if is_parquet(output):  # which has no type for columns of texts and numbers
        mixed = [name for name in args.keep if found[name].dtype == object]
        found[mixed] = found[mixed].astype(str).where(found[mixed].notna())
    with written_whole(output) as temporary:
        if is_parquet(output):
            found.to_parquet(temporary)
        else:
            found.to_csv(temporary, index=False, sep=separator(output))
    print(f"{len(found)} predictions  {output}")
    return 0


def _check_asked(args: argparse.Namespace, columns: Columns) -> None:
    if not 0 <= args.draws <= _MOST_COLUMNS:
        raise ValueError(f"--draws must be from 0 to {_MOST_COLUMNS}: {args.draws}.")
    check_seed("--seed", args.seed)
    if args.density is not None:
        low, high, number = args.density
        whole = np.isfinite(args.density).all() and number == int(number)
        if not (whole and low < high and 2 <= number <= _MOST_COLUMNS):
            raise ValueError(
                "--density takes the lowest target, the highest, and a number of points from 2 to "
                f"{_MOST_COLUMNS}: {low:g} {high:g} {number:g}."
            )
        if len(columns.targets) > 1:
            raise ValueError("--density is for models of one target.")


def evaluate_command(args: argparse.Namespace) -> int:
    """``pyro-dgp evaluate``."""
    own = loaded(args.model, args.device)
    frame, of = scored_rows(args, own)
    X, y = own.columns.inputs(frame), own.columns.target_values(frame)
    scores = own.task.scores(own.model, X, y, own.targets, progress=True)
    if args.json:
        print(json.dumps(jsonable(scores), indent=1, allow_nan=False))
    else:
        print(*own.task.tables(scores, of), sep="\n\n")
    return 0
