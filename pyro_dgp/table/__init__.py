"""One's own table: reading it, a report on held-out rows, and the commands that do so."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyro_dgp.table.columns import Columns

__all__ = ["Columns"]


def __getattr__(name: str):
    # At its first use: it needs pandas, which the command line does without until a table comes.
    if name == "Columns":
        from pyro_dgp.table.columns import Columns

        return Columns
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
