"""``pyro-dgp plot`` and ``report``: pictures of a model of a table, and a page about it."""

import argparse
from pathlib import Path

from pyro_dgp import plots
from pyro_dgp.table.outputs import PNG_MARK, check_output, is_page, is_picture
from pyro_dgp.table.report.page import write_page
from pyro_dgp.table.report.pictures import importance_of, pictures
from pyro_dgp.table.shared import loaded, scored_rows

__all__ = ["plot_command", "report_command"]


def plot_command(args: argparse.Namespace) -> int:
    """``pyro-dgp plot``."""
    folder = Path(args.output)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; name a folder.")
    own = loaded(args.model, args.device)
    if args.rows < 1:
        raise ValueError(f"--rows must be at least 1: {args.rows}.")
    used = own.columns.used
    if args.input is not None and args.input not in used:
        raise ValueError(f"--input {args.input} is no input. The inputs are {', '.join(used)}.")
    target = args.target or own.targets[0]
    if target not in own.targets:
        raise ValueError(f"--target {target}: the targets are {', '.join(own.targets)}.")
    plt = plots.pyplot()
    frame, _ = scored_rows(args, own)
    importance = importance_of(own, frame, progress=True)
    along = args.input or max(importance, key=lambda name: importance[name][0])
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures(own, frame, [along], target, args.rows, importance):
        path = folder / f"{picture.name}.png"
        check_output(path, {}, is_picture)
        picture.figure.savefig(path, dpi=120, metadata=PNG_MARK)
        plt.close(picture.figure)
        print(f"figure  {path}")
    return 0


def report_command(args: argparse.Namespace) -> int:
    """``pyro-dgp report``."""
    output = Path(args.output)
    inputs = {"table": args.table or "-", "model": args.model}
    check_output(output, inputs, is_page)
    own = loaded(args.model, args.device)
    plots.pyplot()
    frame, of = scored_rows(args, own)
    scores = own.notes.get("scores") if args.table is None else None
    if scores is None:
        X, y = own.columns.inputs(frame), own.columns.target_values(frame)
        scores = own.task.scores(own.model, X, y, own.targets, progress=True)
    write_page(output, own, frame, scores, args.model, of, progress=True)
    print(f"report  {output}")
    return 0
