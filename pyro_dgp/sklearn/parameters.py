"""The parameters of regressor and classifier, and checks of them."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, is_classifier

from pyro_dgp._checks import check_device, check_integer, check_jobs
from pyro_dgp.gp.kernels import KERNELS
from pyro_dgp.gp.likelihoods import Likelihood
from pyro_dgp.sklearn.features import SOURCES, Estimator

__all__ = ["Parameters"]

#: A name of :data:`~pyro_dgp.sklearn.features.SOURCES`, or an estimator.
FeatureSource = str | Estimator


class Parameters(BaseEstimator):
    """The parameters; a subclass says which likelihoods, transforms and features there are."""

    # Names of likelihoods that are allowed.
    _likelihoods: tuple[str, ...]
    # Allowed values of ``target_transform``.
    _transforms: tuple[str | None, ...] = (None,)
    # The kind of estimators that may be features, and the features of "auto".
    _base = "regressor"
    _auto_features: tuple[str, ...] = ("trees", "boosting")

    def __init__(
        self,
        *,
        likelihood: str | type[Likelihood] | Likelihood = "auto",
        target_transform: str | None = None,
        features: FeatureSource | Sequence[FeatureSource] | None = "auto",
        pool: bool = True,
        n_estimators: int = 1,
        num_layers: int = 2,
        latent_dim: int = 1,
        kernel: str = "rbf",
        num_inducing: int = 128,
        K: int = 10,
        num_steps: int | None = None,
        batch_size: int = 64,
        lr: float = 0.02,
        time_limit: float | None = None,
        validation_fraction: float = 0.0,
        patience: int | None = 15,
        num_samples: int = 500,
        n_jobs: int | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        checkpoint: str | Path | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.likelihood = likelihood
        self.target_transform = target_transform
        self.features = features
        self.pool = pool
        self.n_estimators = n_estimators
        self.num_layers = num_layers
        self.latent_dim = latent_dim
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.K = K
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.lr = lr
        self.time_limit = time_limit
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.num_samples = num_samples
        self.n_jobs = n_jobs
        self.dtype = dtype
        self.device = device
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self) -> None:
        for name, least in (
            ("num_layers", 1), ("latent_dim", 0), ("num_inducing", 1), ("K", 1), ("batch_size", 1),
            ("num_samples", 1), ("n_estimators", 1),
        ):  # fmt: skip
            check_integer(name, getattr(self, name), least)
        for name in ("num_steps", "patience"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if self.n_jobs is not None:
            check_jobs("n_jobs", self.n_jobs)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                "validation_fraction must be at least 0 and below 1, but it is "
                f"{self.validation_fraction}."
            )
        positive = {"lr": self.lr}
        if self.time_limit is not None:
            positive["time_limit"] = self.time_limit
        for name, value in positive.items():
            if value is None or not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, but it is {value}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be float32 or float64, but it is {self.dtype!r}.")
        self._check_features()
        if self.kernel not in KERNELS:
            raise ValueError(
                f"kernel must be one of {', '.join(KERNELS)}, but it is {self.kernel!r}."
            )
        if isinstance(self.likelihood, str) and self.likelihood not in self._likelihoods:
            raise ValueError(
                f"likelihood must be one of {', '.join(self._likelihoods)}, but it is "
                f"{self.likelihood!r}."
            )
        if self.target_transform not in self._transforms:
            names = " or ".join(map(repr, self._transforms))
            raise ValueError(
                f"target_transform must be {names}, but it is {self.target_transform!r}."
            )
        check_device(self.device)
        if self.checkpoint is not None and not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                "checkpoint needs an integer random_state: the run that goes on must be the same."
            )

    def _sources(self) -> Sequence[FeatureSource]:
        """The sources of features."""
        if self.features is None:
            return ()
        if isinstance(self.features, str):
            return self._auto_features if self.features == "auto" else (self.features,)
        return self.features if isinstance(self.features, Sequence) else (self.features,)

    def _check_features(self) -> None:
        names = [source for source in self._sources() if isinstance(source, str)]
        for source in self._sources():
            known = (
                source in SOURCES if isinstance(source, str) else _is_estimator(source, self._base)
            )
            if not known:
                raise ValueError(
                    f"features must be 'auto', None, or of {', '.join(map(repr, SOURCES))} and "
                    f"scikit-learn {self._base}s, one or several in a tuple, but there is "
                    f"{source!r}."
                )
        if len(set(names)) < len(names):
            raise ValueError(f"features={self.features!r} names a source twice.")


def _is_estimator(features: object, kind: str) -> bool:
    if isinstance(features, type) or not hasattr(features, "fit"):
        return False
    if kind == "classifier":
        return hasattr(features, "predict_proba")
    return hasattr(features, "predict") and not is_classifier(features)
