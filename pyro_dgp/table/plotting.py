"""``pyro-dgp plot``: pictures of what a model of a table has learned."""

import argparse
import textwrap
from pathlib import Path

import numpy as np

from pyro_dgp import plots
from pyro_dgp.table.shared import loaded, note, rows_with_targets, table_of

__all__ = ["plot_command"]

# Texts of a column that densities are drawn for.
_MOST_GROUPS = 6


def plot_command(args: argparse.Namespace) -> int:
    """``pyro-dgp plot``."""
    folder = Path(args.output)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; name a folder.")
    model, columns = loaded(args.model, args.device)
    if len(columns.targets) > 1:
        raise ValueError("Pictures are of models of one target.")
    if args.rows < 1:
        raise ValueError(f"--rows must be at least 1: {args.rows}.")
    if args.input is not None and args.input not in columns.used:
        raise ValueError(
            f"--input {args.input} is no input. The inputs are {', '.join(columns.used)}."
        )
    plt = plots.pyplot()
    table, conventions = table_of(args, args.table)
    frame, notes = columns.typed(table, conventions)
    columns.target_values(frame)
    note([*notes, *columns.remarks(frame)])
    frame, left_out = rows_with_targets(frame, columns.targets)
    note(left_out)
    X, y = columns.inputs(frame), columns.target_values(frame)
    target, typical = columns.targets[0], columns.typical(frame)
    feature = args.input or _strongest(model, columns, frame, typical)
    folder.mkdir(parents=True, exist_ok=True)

    def panels(name, *draw, title=None):
        figure, axes = plt.subplots(
            1, len(draw), figsize=(4.5 * len(draw), 4.2 if title else 4), layout="constrained",
            squeeze=False,
        )  # fmt: skip
        for ax, function in zip(axes[0], draw, strict=True):
            function(ax)
        figure.suptitle(title, fontsize="small")
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)
        print(f"figure  {folder / name}.png")

    rest = _plain(textwrap.fill(f"Held at: {_described(typical.drop(columns=feature))}", 110))
    target = _plain(target)
    if feature in columns.numbers:
        along, row = list(X.columns).index(feature), columns.inputs(typical).to_numpy()[0]

        def named(curve):
            def draw(ax):
                curve(model, X, along, row, ax=ax)
                ax.set_ylabel(ax.get_ylabel().replace("y", target, 1))

            return draw

        curves = [plots.density_along_input, plots.fan_chart]
        if model.latent_dim == 1:
            curves.append(plots.latent_traversal)
        panels("along_input", *map(named, curves), title=rest)
    else:
        values, labels = _values_of(columns, frame, feature)
        labels = [_plain(label) for label in labels]
        rows = typical.loc[typical.index.repeat(len(values))].reset_index(drop=True)
        rows[feature] = values

        def groups(ax):
            plots.marginal_densities(model, columns.inputs(rows), labels=labels, ax=ax)
            ax.set(xlabel=target, title=f"Densities by {_plain(feature)}")

        panels("along_input", groups, title=rest)
    pit = model.cdf(X, y)
    panels(
        "calibration",
        lambda ax: plots.pit_histogram(pit, ax=ax),
        lambda ax: plots.calibration_curve(pit, ax=ax),
    )
    some = slice(args.rows)
    panels(
        "densities",
        lambda ax: plots.marginal_densities(model, X[some], y[some], ax=ax).set_xlabel(target),
    )
    panels("training", lambda ax: plots.training_curve(model.history_, ax=ax))
    return 0


def _strongest(model, columns, frame, typical) -> str:
    """The input that moves the median most from its 5% to its 95% quantile, others held."""
    names = list(columns.numbers)
    if not names:
        return columns.used[0]
    rows = typical.loc[typical.index.repeat(2 * len(names))].reset_index(drop=True)
    for i, name in enumerate(names):
        rows.loc[2 * i : 2 * i + 1, name] = frame[name].quantile([0.05, 0.95]).to_numpy()
    medians = np.asarray(model.predict_quantiles(columns.inputs(rows), [0.5]))[:, 0]
    return names[int(np.abs(np.diff(medians.reshape(-1, 2))).argmax())]


def _values_of(columns, frame, name: str) -> tuple[list, list[str]]:
    """A few values of a column of texts or dates, and what to call them."""
    if name in columns.categories:
        values = columns.categories[name]["kept"][:_MOST_GROUPS]
        return values, values
    values = frame[name].dropna().quantile(np.linspace(0, 1, 5), interpolation="nearest").unique()
    return list(values), [f"{v:%Y-%m-%d}" for v in values]


def _plain(text: str) -> str:
    """Without what Matplotlib takes for mathematics, or for a label that is not to be shown."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _described(row) -> str:
    def text(value) -> str:
        if hasattr(value, "strftime"):
            return f"{value:%Y-%m-%d}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {text(value)}" for name, value in row.iloc[0].items())
