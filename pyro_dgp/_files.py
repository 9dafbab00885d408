"""Files that are always whole."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's are for their owner alone
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def write_json(record: dict, path: Path) -> None:
    """Writes a record as JSON, see :func:`written_whole`."""
    with written_whole(path) as temporary, open(temporary, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
