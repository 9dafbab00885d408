"""The latent-variable deep GP as a scikit-learn regressor and classifier.

Needs scikit-learn: ``pip install 'pyro_dgp[sklearn]'``.
"""

try:
    import sklearn.utils.validation

    sklearn.utils.validation.validate_data  # noqa: B018
except (ImportError, AttributeError) as error:
    raise ImportError(
        "pyro_dgp.sklearn needs scikit-learn 1.6 or newer: pip install 'pyro_dgp[sklearn]'."
    ) from error

from pyro_dgp.sklearn.classifier import LatentDGPClassifier
from pyro_dgp.sklearn.regressor import LatentDGPRegressor

__all__ = ["LatentDGPClassifier", "LatentDGPRegressor"]
