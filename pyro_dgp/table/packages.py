"""What tables need beside the core, or how to get it."""

try:
    import pandas as pd
    import sklearn.preprocessing  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Tables need pandas and scikit-learn: pip install 'pyro_dgp[table]'."
    ) from error

__all__ = ["pd"]
