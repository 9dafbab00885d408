"""Checks of which files a command may overwrite."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from pyro_dgp._files import read_tensors

#: Metadata that identify a picture of this package.
PNG_MARK = {"Software": "pyro_dgp"}
#: A tag that identifies a page of this package.
MARK = '<meta name="generator" content="pyro_dgp">'

# Suffixes of tables, and of other files, that are no texts with a row per line.
_OTHERS = (
    ".xlsx", ".xlsm", ".xls", ".ods", ".json", ".jsonl", ".ndjson", ".feather", ".arrow", ".orc",
    ".avro", ".h5", ".hdf5", ".html", ".htm", ".xml", ".yaml", ".yml", ".db", ".sqlite", ".npy",
    ".npz", ".pkl", ".pickle", ".pt", ".dta", ".sav", ".rds", ".pdf", ".png", ".svg",
)  # fmt: skip

__all__ = [
    "are_predictions", "check_kind", "check_output", "is_checkpoint", "is_model", "is_options",
    "is_page", "is_parquet", "is_picture", "is_scores", "separator",
]  # fmt: skip


def check_output(
    output: Path, inputs: dict[str, str], is_ours: Callable[[Path], bool], option: str = "--output"
) -> None:
    """Refuses to overwrite a file that was not written by an earlier command of this kind.

    :param Path output: File to write.
    :param dict inputs: Other files of the command by kind; "-" for none.
    :param is_ours: A function that tells whether an existing file may be replaced.
    :param str option: Option with which the file was named.
    :raises ValueError: If the file may not be written.
    """
    parent = next(p for p in output.absolute().parents if p.exists())
    if not parent.is_dir():
        raise ValueError(f"{option} {output}: {parent} is no folder.")
    if not os.access(output if output.exists() else parent, os.W_OK):
        raise ValueError(f"{option} {output}: it may not be written.")
    if output.is_dir():
        raise ValueError(f"{option} {output} is a folder; name a file.")
    for kind, name in inputs.items():
        if name != "-" and output.exists() and Path(name).exists() and output.samefile(name):
            raise ValueError(f"{option} {output} is the {kind} itself; name another file.")
    if output.is_file() and output.stat().st_size and not is_ours(output):
        raise ValueError(
            f"{option} {output} exists and is not what this command writes; name another file, or "
            "remove that one."
        )


def is_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint of training."""
    try:
        return "checkpoint" in read_tensors(path, "checkpoint")["format"]
    except ValueError:
        return False


def is_options(path: Path) -> bool:
    """Whether a file contains the options of an interrupted run."""
    try:
        return "test_fraction" in json.loads(path.read_text())
    except (ValueError, TypeError):
        return False


def is_scores(path: Path) -> bool:
    """Whether a file contains scores of a report."""
    try:
        return {"rows", "targets"} <= json.loads(path.read_text()).keys()
    except (ValueError, TypeError, AttributeError):
        return False


def is_page(path: Path) -> bool:
    """Whether a file is a page about a model."""
    return MARK in path.read_text(encoding="utf-8", errors="replace")[:1000]


def is_picture(path: Path) -> bool:
    """Whether a file is a picture of this package."""
    return b"Software\0pyro_dgp" in path.read_bytes()[:1000]


def is_model(path: Path) -> bool:
    """Whether a file is a model, of any version."""
    try:
        return read_tensors(path, "model")["format"].startswith("pyro_dgp model")
    except ValueError:
        return False


def is_parquet(path: Path) -> bool:
    """Whether predictions of that name are a Parquet file."""
    return path.suffix.lower() in (".parquet", ".pq")


def separator(path: Path) -> str:
    """The character between the columns of a text of that name."""
    return "\t" if _kind(path) in (".tsv", ".tab") else ","


def check_kind(path: Path) -> None:
    """
    :raises ValueError: If the name is that of a file of another kind than predictions have.
    """
    if _kind(path) in _OTHERS:
        raise ValueError(
            f"--output {path}: predictions are written as CSV (.csv, or .tsv with tabs; .gz for a "
            "compressed one) or Parquet (.parquet)."
        )


def _kind(path: Path) -> str:
    """The suffix without that of a compression."""
    compressed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zip")
    return (path.with_suffix("") if compressed else path).suffix.lower()


def are_predictions(path: Path, target: str) -> bool:
    """Whether a file contains predictions of a target by ``pyro-dgp predict``."""
    from pyro_dgp.table.packages import pd

    try:
        if is_parquet(path):
            names = list(pd.read_parquet(path).columns)
        else:
            names = list(pd.read_csv(path, nrows=0, sep=separator(path)).columns)
        if f"{target}_class" in names:
            return names[names.index(f"{target}_class") + 1].startswith(f"{target}_p_")
        first = names.index(f"{target}_mean")
        return names[first + 1] == f"{target}_std"
    except Exception:  # parsers have many for files of other kinds
        return False
