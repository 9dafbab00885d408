"""Files that are always whole."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["write_json", "written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[str]:
    """Gives the name of a temporary file, which becomes ``path`` if all goes well.

    Whenever the process is killed, ``path`` is the old file or the new one. Makes the folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(record: dict, path: Path) -> None:
    """Writes a record as JSON, see :func:`written_whole`."""
    with written_whole(path) as temporary, open(temporary, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
