"""``pyro-dgp predict`` and ``evaluate``: new rows with a model that has been fitted."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from pyro_dgp._files import written_whole
from pyro_dgp.table.outputs import are_predictions, check_output
from pyro_dgp.table.packages import pd
from pyro_dgp.table.report import model_scores
from pyro_dgp.table.shared import loaded, note, print_report, rows_to_score, table_of

__all__ = ["evaluate_command", "predict_command"]


def predict_command(args: argparse.Namespace) -> int:
    """``pyro-dgp predict``."""
    for p in args.quantiles:
        if not 0 < p < 1:
            raise ValueError(f"--quantiles must lie strictly between 0 and 1: {p}.")
    model, columns = loaded(args.model, args.device)
    output = None if args.output == "-" else Path(args.output)
    if output is not None:
        inputs = {"table": args.table, "model": args.model}
        check_output(output, inputs, lambda path: are_predictions(path, columns.targets[0]))
        if output.suffix.lower() in (".xlsx", ".xls", ".ods"):
            raise ValueError(f"--output {output}: predictions are written as CSV or Parquet.")
    table, conventions = table_of(args, args.table)
    absent = [name for name in args.keep if name not in table.frame]
    if absent:
        raise ValueError(
            f"--keep: there is no column '{absent[0]}'. The columns are {', '.join(table.frame)}."
        )
    frame, notes = columns.typed(table, conventions)
    X = columns.inputs(frame)
    note([*notes, *columns.remarks(frame)])
    y = None
    if all(name in frame for name in columns.targets):
        y = columns.target_values(frame)
    found = _predictions(model, columns.targets, X, y, args)
    twice = sorted({*args.keep} & {*found})
    if twice:
        raise ValueError(f"--keep {twice[0]}: a column of the predictions is called so.")
    found = table.frame[args.keep].join(found)
    if output is None:
        with suppress(BrokenPipeError):
            found.to_csv(sys.stdout, index=False)
        return 0
    parquet = output.suffix.lower() in (".parquet", ".pq")
    if parquet:  # a column of texts and numbers has no type there
        mixed = [name for name in args.keep if found[name].dtype == object]
        found[mixed] = found[mixed].astype(str).where(found[mixed].notna())
    with written_whole(output) as temporary:
        found.to_parquet(temporary) if parquet else found.to_csv(temporary, index=False)
    print(f"{len(found)} predictions  {output}")
    return 0


def _predictions(model, targets: list[str], X, y, args: argparse.Namespace):
    """Mean, standard deviation, quantiles and, where y is known, log densities; one row each."""
    probabilities = torch.tensor(args.quantiles, dtype=torch.float64)
    names = ["mean", "std", *(f"q{p:g}" for p in args.quantiles)]
    parts, log_densities, start = [], [], 0
    with tqdm(total=len(X), disable=None, unit="row") as bar:
        for p in model.predictives(X):
            stop = start + p.batch_shape[0]
            values = torch.stack([p.mean, p.stddev, *p.quantile(probabilities)], -1)
            parts.append(values.reshape(stop - start, -1))  # [rows, targets x names]
            if y is not None:
                log_densities.append(_known_log_density(p, y[start:stop]))
            bar.update(stop - start)
            start = stop
    columns = [f"{target}_{name}" for target in targets for name in names]
    found = pd.DataFrame(torch.cat(parts).numpy(), index=X.index, columns=columns)
    if y is not None and np.isfinite(y.reshape(len(y), -1)).all(1).any():
        found["log_density"] = np.concatenate(log_densities)
    return found


def _known_log_density(p, y: np.ndarray) -> np.ndarray:
    """NaN where a target is missing."""
    known = np.isfinite(y.reshape(len(y), -1)).all(1)
    y = np.where(known.reshape((-1,) + (1,) * (y.ndim - 1)), y, p.mean.numpy())
    return np.where(known, p.log_prob(torch.as_tensor(y)).numpy(), np.nan)


def evaluate_command(args: argparse.Namespace) -> int:
    """``pyro-dgp evaluate``."""
    model, columns = loaded(args.model, args.device)
    if len(columns.targets) > 1:
        raise ValueError("A report is of a model of one target.")
    table, conventions = table_of(args, args.table)
    X, y = rows_to_score(columns, table, conventions)
    scores = model_scores(model, X, y)
    if args.json:
        described = {"target": columns.targets[0], "rows": len(y), **scores}
        described["coverage"] = {f"{p:g}": share for p, share in scores["coverage"].items()}
        print(json.dumps(described, indent=1))
    else:
        print_report({"latent deep GP": scores}, len(y))
    return 0
