"""Which files a command may write over."""

from collections.abc import Callable
from pathlib import Path

from pyro_dgp._files import read_tensors

__all__ = ["are_predictions", "check_output", "is_model"]


def check_output(output: Path, inputs: dict[str, str], is_ours: Callable[[Path], bool]) -> None:
    """Refuses to write over anything that no earlier command of the kind has written.

    :param Path output: Where to write.
    :param dict inputs: Names of the command's other files by what they are; "-" for none.
    :param is_ours: Whether an existing file may be replaced.
    :raises ValueError: If it may not.
    """
    if output.is_dir():
        raise ValueError(f"--output {output} is a folder; name a file.")
    for kind, name in inputs.items():
        if name != "-" and output.exists() and Path(name).exists() and output.samefile(name):
            raise ValueError(f"--output {output} is the {kind} itself; name another file.")
    if output.is_file() and output.stat().st_size and not is_ours(output):
        raise ValueError(
            f"--output {output} exists and is not what this command writes; name another file, or "
            "remove that one."
        )


def is_model(path: Path) -> bool:
    """Whether a file is a model, of any version."""
    try:
        return read_tensors(path, "model")["format"].startswith("pyro_dgp model")
    except ValueError:
        return False


def are_predictions(path: Path, target: str) -> bool:
    """Whether a file has predictions of a target."""
    from pyro_dgp.table.packages import pd

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return f"{target}_mean" in pd.read_parquet(path).columns
        return f"{target}_mean" in pd.read_csv(path, nrows=0).columns
    except Exception:  # whatever a parser says of a file of another kind
        return False
