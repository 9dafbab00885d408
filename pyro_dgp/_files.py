"""Files that are written atomically."""

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["read_tensors", "write_json", "write_tensors", "written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[str]:
    """Yields a temporary file name, with the same suffix, which replaces ``path`` at the end.

    If the process is killed, ``path`` is either the old or the new file. The folder is created. A
    link is kept and its target replaced. What is no regular file, such as a device, is written
    directly.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        yield str(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix
        )
    except OSError as error:
        error.filename = str(path)  # the one that was asked for
        raise
    os.close(handle)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp gives access to the owner only
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def write_json(record: dict, path: Path) -> None:
    """Writes a record as JSON, see :func:`written_whole`."""
    with written_whole(path) as temporary, open(temporary, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


def write_tensors(state: dict, path: Path) -> None:
    """Writes tensors, numbers, strings, lists and dicts for :func:`read_tensors`."""
    content = io.BytesIO()  # torch's own writer hides the OSError of a full disk
    torch.save(_plain(state), content)
    with written_whole(path) as temporary, open(temporary, "wb") as file:
        file.write(content.getbuffer())


def read_tensors(path: Path, what: str) -> dict:
    """Reads the dict of :func:`write_tensors`, without running code from the file.

    :param Path path: File to read.
    :param str what: Description of the expected file, for error messages.
    :raises ValueError: If the file is something else, or damaged.
    :raises OSError: If it cannot be read.
    """
    content = io.BytesIO(path.read_bytes())
    try:
        if zipfile.ZipFile(content).testzip() is not None:  # torch does not check checksums
            raise ValueError("a checksum is wrong")
        content.seek(0)
        state = torch.load(content, map_location="cpu", weights_only=True)
        if not isinstance(state["format"], str):
            raise ValueError("it names no format")
        return state
    except Exception as error:  # of many kinds; torch's messages suggest unsafe loading
        raise ValueError(
            f"{path} is no {what}, or a damaged one. Give another file name."
        ) from error


def _plain(state: Any) -> Any:
    """Numbers and tensors in place of NumPy's, which ``weights_only`` refuses to load."""
    if isinstance(state, dict):
        return {_plain(key): _plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_plain(value) for value in state)
    if isinstance(state, np.ndarray):
        return torch.as_tensor(state.astype(np.int64) if state.dtype == np.uint32 else state)
    return state.item() if isinstance(state, np.generic) else state
