"""Files of the UCI sets: those that come with the package, and those that are downloaded.

Each is a gzipped CSV file whose contents are checked by their SHA-256: the published splits are
permutations of row numbers, so another order of the same rows would give other splits.
"""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io

from pyro_dgp._files import written_whole

__all__ = ["fetch", "find", "folders", "manifest", "read"]


def manifest() -> dict[str, dict]:
    """Size, checksum, source, licence and a note of each set, by name."""
    return json.loads(_packaged("uci.json").read_text())


def folders() -> list[Path]:
    """Folders that are searched in order before the package: ``$PYRO_DGP_DATA`` and the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyro_dgp"
    named = os.environ.get("PYRO_DGP_DATA")
    return [Path(named), cache] if named else [cache]


def find(name: str) -> Path | None:
    """The file of a set, or None.

    :param str name: A name of :func:`manifest`.
    """
    places = [*(folder / f"{name}.csv.gz" for folder in folders()), _packaged(f"{name}.csv.gz")]
    return next((place for place in places if place.is_file()), None)


def read(name: str) -> np.ndarray:
    """The rows of a set, inputs and target, [N, D + 1].

    :param str name: A name of :func:`manifest`.
    :raises FileNotFoundError: If there is no file; says how to get it.
    :raises ValueError: If the file is not the right one.
    """
    place, entry = find(name), manifest()[name]
    if place is None:
        where = " or ".join(str(folder) for folder in folders())
        unset = "" if os.environ.get("PYRO_DGP_DATA") else " (PYRO_DGP_DATA is not set)"
        raise FileNotFoundError(
            f"Data set '{name}': no file {name}.csv.gz in {where}{unset}. `pyro-dgp data {name}` "
            f"makes it from {entry['source']}, with `--from FOLDER` of a copy of that file."
        )
    return _rows(_checked(name, place.read_bytes(), str(place)))


def fetch(name: str, source: str | Path | None = None, progress: bool = True) -> Path:
    """Creates the file of a set in the first of :func:`folders`, from its original or the package.

    :param str name: A name of :func:`manifest`.
    :param source: Folder with the original, or with the file itself; None to download the original
        of a set that does not come with the package.
    :param bool progress: Whether to show a progress bar.
    :returns: The file.
    :raises ValueError: If what was found does not give the published rows.
    :raises FileNotFoundError: If the folder has neither file.
    :raises ImportError: If pooch, which downloads, is missing.
    """
    entry = manifest()[name]
    target = folders()[0] / f"{name}.csv.gz"
    if source is not None and (Path(source) / target.name).is_file():
        content = (Path(source) / target.name).read_bytes()
    elif name not in _CONVERTERS:
        if source is not None:
            raise FileNotFoundError(
                f"There is no {Path(source) / target.name}. '{name}' comes with the package: leave "
                "out --from."
            )
        content = _packaged(target.name).read_bytes()
    else:
        original = _original(entry["source"], source, progress)
        try:
            text = _csv(_CONVERTERS[name](original))
        except Exception as error:  # each reader has its own for a damaged file
            raise ValueError(f"{original} is not the original of '{name}' ({error}).") from error
        content = gzip.compress(text, mtime=0)
    _checked(name, content, str(source or entry["source"]))
    with written_whole(target) as temporary:
        Path(temporary).write_bytes(content)
    return target


def _packaged(name: str) -> Path:
    return Path(__file__).parent / "data" / name


def _checked(name: str, content: bytes, where: str) -> bytes:
    """The text of a file, after a check that it is the published one."""
    try:
        text = gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{where} is not a complete gzip file ({error}).") from error
    digest, expected = hashlib.sha256(text).hexdigest(), manifest()[name]["csv_sha256"]
    if digest != expected:
        raise ValueError(
            f"{where} is not the published data set '{name}': the SHA-256 of its contents is "
            f"{digest}, not {expected}. Replace it."
        )
    return text


def _rows(text: bytes) -> np.ndarray:
    return np.loadtxt(io.BytesIO(text), delimiter=",", skiprows=1, ndmin=2)


def _csv(rows: np.ndarray) -> bytes:
    """CSV text with all digits of doubles, and without decimals for whole numbers."""
    head = ",".join([*(f"x{i}" for i in range(rows.shape[1] - 1)), "y"])
    lines = [",".join(repr(int(v)) if v == int(v) else repr(v) for v in row) for row in
             rows.tolist()]  # fmt: skip
    return ("\n".join([head, *lines]) + "\n").encode()


def _original(source: str, folder: str | Path | None, progress: bool) -> Path:
    """The original file of a set: in a folder, or downloaded."""
    where, _, path = source.partition(":")
    if folder is not None:
        found = Path(folder) / Path(path).name
        if not found.is_file():
            raise FileNotFoundError(f"There is no {found}; it is {source}.")
        return found
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            f"Downloads need pooch: pip install 'pyro_dgp[data]'. Or get {source}, and give its "
            "folder by --from."
        ) from error
    url = f"https://raw.githubusercontent.com/{where.replace('@', '/')}/{path}"
    name = url.replace("/", "_").replace(":", "")
    return Path(
        pooch.retrieve(
            url, None, fname=name, path=folders()[-1] / "originals", progressbar=progress
        )
    )


def _target_first(rows: np.ndarray) -> np.ndarray:
    return np.column_stack([rows[:, 1:], rows[:, 0]])


def _compressor(rows: np.ndarray) -> np.ndarray:
    """The inputs without the two constant ones, and the first of two targets."""
    return np.column_stack([np.delete(rows[:, :-2], [8, 11], axis=1), rows[:, -2]])


#: Functions from the original file to rows, for sets that do not come with the package.
_CONVERTERS: dict[str, Callable[[Path], np.ndarray]] = {
    "pol": lambda path: scipy.io.loadmat(path)["data"].astype(float),
    "boston": np.loadtxt,
    "kin8nm": np.loadtxt,
    "naval": lambda path: _compressor(np.loadtxt(path)),
    "protein": lambda path: _target_first(np.loadtxt(path)),
}
