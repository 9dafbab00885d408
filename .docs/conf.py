"""Sphinx's configuration: pages in Markdown, notebooks, and a reference made of docstrings."""

import re
import shutil
from pathlib import Path

from pyro_dgp import __version__

project = "pyro_dgp"
author = "the authors of pyro_dgp"
copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
html_theme = "furo"
html_title = "pyro_dgp"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"

# Sphinx reads nothing outside of its folder.
_HERE = Path(__file__).parent
shutil.rmtree(_HERE / "tutorials", ignore_errors=True)
shutil.copytree(
    _HERE.parent / "tutorials", _HERE / "tutorials", ignore=shutil.ignore_patterns("*.md")
)

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
autoclass_content = "class"

_PARTS = ("gp", "gp.likelihoods", "infer", "sklearn")


def _elsewhere(app, env, node, contnode):
    """Objects are documented once; docstrings may name them where they are imported from, too."""
    name = node.get("reftarget", "").removeprefix("pyro_dgp.")
    if node.get("refdomain") != "py" or not name:
        return None
    domain = env.get_domain("py")
    last = name.rsplit(".", 1)[-1]
    candidates = (name, *(f"{part}.{n}" for part in _PARTS for n in (name, last)))
    for full in (f"pyro_dgp.{n}" for n in candidates):
        if full in domain.objects:
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], full, node, contnode
            )
    return None


def _copied(app, docname, source):
    """Links between pages and notebooks, which are right on GitHub, lead to the copies."""
    text = re.sub(r"\]\(((?:\.\./)*)\.\./tutorials/", r"](\1tutorials/", source[0])
    source[0] = text.replace("](../.docs/", "](../")


def setup(app):
    app.connect("source-read", _copied)
    app.connect("missing-reference", _elsewhere)
