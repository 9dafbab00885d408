"""Files that are always whole."""

import json
import os
import tempfile
from pathlib import Path

__all__ = ["write_json"]


def write_json(record: dict, path: Path) -> None:
    """Writes a record so that a file of that name is always whole; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
