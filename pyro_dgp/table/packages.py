"""Packages that tables need besides the core, with an error that says how to install them."""

try:
    import pandas as pd
    import sklearn.preprocessing  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Tables need pandas and scikit-learn: pip install 'pyro_dgp[table]'."
    ) from error

__all__ = ["pd"]
