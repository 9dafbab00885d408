"""Runs tutorials as notebooks, at full size: ``python .ci/notebooks.py first_steps ...``, or all.

Each .py in tutorials/ with a jupytext header becomes the .ipynb beside it, with outputs. A figure
of a cell with ``figure="NAME"`` goes to tutorials/figures/NAME.png, too, for pages that show it.
Needs the extras ``docs`` and ``test``.
"""

import base64
import os
import sys
from pathlib import Path

import jupytext
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[1] / "tutorials"


def run(path: Path) -> None:
    notebook = jupytext.read(path)
    where = {"metadata": {"path": str(TUTORIALS)}}
    client = NotebookClient(
        notebook, timeout=None, record_timing=False, coalesce_streams=True, resources=where
    )
    # No bars are shown, for which tqdm would like to have widgets.
    client.execute(env=os.environ | {"PYTHONWARNINGS": "ignore:IProgress"})
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"  # the same at every run
        if name := cell.metadata.get("figure"):
            (png,) = (o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {}))
            (TUTORIALS / "figures" / f"{name}.png").write_bytes(base64.b64decode(png))
    jupytext.write(notebook, path.with_suffix(".ipynb"))


if __name__ == "__main__":
    notebooks = {p.stem: p for p in sorted(TUTORIALS.glob("*.py")) if "jupytext:" in p.read_text()}
    for name in sys.argv[1:] or notebooks:
        run(notebooks[name])
