"""Tables in files: reading, reports on held-out rows, and the commands of ``pyro-dgp``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyro_dgp.table.columns import Columns

__all__ = ["Columns"]


def __getattr__(name: str) -> type:
    # Imported at its first use, as it needs pandas, which most commands do not.
    if name == "Columns":
        from pyro_dgp.table.columns import Columns

        return Columns
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
