"""The latent-variable deep GP as a scikit-learn regressor of predictive densities.

Needs scikit-learn: ``pip install 'pyro_dgp[sklearn]'``.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyro
import torch

from pyro_dgp import __version__
from pyro_dgp._checks import check_device, check_integer
from pyro_dgp._files import read_tensors, write_tensors
from pyro_dgp.gp import LatentDGP, PredictiveMixture
from pyro_dgp.infer import DRegIWELBO, TrainingHistory, fit
from pyro_dgp.infer.callbacks import EarlyStopping
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.training import annealed_adam

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "LatentDGPRegressor needs scikit-learn 1.6 or newer: pip install 'pyro_dgp[sklearn]'."
    ) from error

__all__ = ["LatentDGPRegressor"]

_FORMAT = "pyro_dgp model 1"
# Numbers that one predictive distribution may hold: 2^22 doubles are 32 MiB.
_CHUNK = 2**22
# Held-out scores in training, and the samples that each is made of.
_NUM_SCORES = 50
_SCORE_SAMPLES = 200
# Fewer rows than this are too few to hold some out.
_LEAST_TO_SPLIT = 30
# More training rows than this take twice the steps.
_MANY_ROWS = 5000
# More rows would make a score slower, and hardly better.
_MOST_HELD_OUT = 2000


class LatentDGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    r"""Regression that predicts a density: skewed, bimodal, heteroscedastic as the data ask for.

    A :class:`~pyro_dgp.gp.LatentDGP` trained with doubly reparameterised gradients. Inputs and
    targets may have any units: they are standardised inside, by the rows that train, and answers
    come in the targets' units, densities included. Part of the rows is held out to keep the
    parameters that predict them best, by the CRPS.

    >>> model = LatentDGPRegressor(random_state=0).fit(X, y)
    >>> model.predict_quantiles(X_new, [0.05, 0.5, 0.95])

    Source: Rudner et al. (2021).

    :param int num_layers: GP layers; 1 is a shallow GP with a latent input.
    :param int latent_dim: Dimension of the latent input; 0 for normal predictive densities.
    :param int num_inducing: Inducing inputs a layer, at most the number of training rows is used.
    :param int K: Importance samples in training.
    :param int num_steps: Most gradient steps; None for 4000, or 8000 for more than 5000 training
        rows.
    :param int batch_size: Rows a step.
    :param float lr: Adam's largest learning rate; it falls to 0 along half a cosine.
    :param float validation_fraction: Share of the rows that is held out, at most 2000 of them;
        0 for none.
    :param int patience: Training ends after so many held-out scores, of which there are 50, without
        a better one; None for never.
    :param int num_samples: Components of a predictive mixture.
    :param str dtype: "float32" or "float64".
    :param str device: A torch device.
    :param checkpoint: File from which an interrupted ``fit`` goes on, and that it writes; needs an
        integer ``random_state``. None for none. See :func:`~pyro_dgp.infer.fit`.
    :param float noise_variance: Initial noise variance, in variances of y.
    :param random_state: An integer for the same result every time, a ``numpy.random.RandomState``,
        or None.
    :param bool verbose: Show a progress bar.

    After ``fit``, ``dgp_`` is the model on the standardised scale, ``history_`` the
    :class:`~pyro_dgp.infer.TrainingHistory` (``interrupted`` after Ctrl-C; the model is usable),
    ``validation_steps_`` and ``validation_crps_`` the held-out scores in standard deviations of y,
    ``n_features_in_`` and, for data frames, ``feature_names_in_`` what X looked like.
    """

    def __init__(
        self,
        *,
        num_layers: int = 2,
        latent_dim: int = 1,
        num_inducing: int = 128,
        K: int = 10,
        num_steps: int | None = None,
        batch_size: int = 128,
        lr: float = 0.03,
        noise_variance: float = 0.01,
        validation_fraction: float = 0.1,
        patience: int | None = 15,
        num_samples: int = 500,
        dtype: str = "float32",
        device: str = "cpu",
        checkpoint: str | Path | None = None,
        random_state=None,
        verbose: bool = False,
    ) -> None:
        self.num_layers = num_layers
        self.latent_dim = latent_dim
        self.num_inducing = num_inducing
        self.K = K
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.lr = lr
        self.noise_variance = noise_variance
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.num_samples = num_samples
        self.dtype = dtype
        self.device = device
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y) -> "LatentDGPRegressor":
        """
        :param X: Inputs, [N, D]: an array or a data frame of numbers.
        :param y: Targets, [N] or [N, P].
        :raises ValueError: If the data hold NaN or infinity, there is one row only, a target is
            constant, or a parameter is out of range.
        :raises NonFiniteError: If training diverged.
        """
        self._check_parameters()
        if self.checkpoint is not None and not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                "checkpoint needs an integer random_state: the run that goes on must be the same."
            )
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        y = np.asarray(y, dtype=np.float64)
        self._one_column = y.ndim == 2 and y.shape[1] == 1  # as a column it comes back, too
        if self._one_column:
            y = y[:, 0]
        seed = int(check_random_state(self.random_state).randint(2**31))
        order = np.random.default_rng(seed).permutation(len(X))
        held_out = min(round(self.validation_fraction * len(X)), _MOST_HELD_OUT)
        if len(X) < _LEAST_TO_SPLIT:
            held_out = 0
        # Sorted: training shuffles rows by itself.
        test, train = np.sort(order[:held_out]), np.sort(order[held_out:])
        self._x_scaler = _fitted_scaler("X", X[train])
        self._y_scaler = _fitted_scaler("y", y[train].reshape(len(train), -1))
        if self._y_scaler.var_.min() == 0:
            raise ValueError("y is constant in the training rows: there is no density to learn.")
        self._y_ndim, self._num_rows, self._seed = y.ndim, len(train), seed
        X_, y_ = self._scaled(X), self._scaled_targets(y)
        num_steps = self.num_steps or (4000 if len(train) <= _MANY_ROWS else 8000)
        with self._isolated(seed):
            self.dgp_ = self._new_model(X_[train], y_[train])
            stopping = EarlyStopping(
                self.dgp_,
                lambda: self._crps(X_[test], y_[test]),
                every=max(1, num_steps // _NUM_SCORES),
                patience=self.patience,
            )
            self.history_ = fit(
                self.dgp_.model,
                self.dgp_.guide,
                DRegIWELBO(K=self.K),
                (X_[train], y_[train]),
                num_steps=num_steps,
                batch_size=self.batch_size,
                optim=annealed_adam(self.lr, num_steps),
                seed=seed,
                progress=self.verbose,
                callback=stopping if held_out else None,
                checkpoint=self.checkpoint,
            )
            stopping.restore_best()
        self.validation_steps_ = np.array(stopping.steps)
        self.validation_crps_ = np.array(stopping.scores)
        return self

    def predict(self, X, return_std: bool = False):
        """Predictive means.

        :param X: [N, D].
        :param bool return_std: Return standard deviations, too.
        :returns: [N] or [N, P], or two such arrays.
        """
        parts = [(p.mean, p.stddev) for p in self._predictions(self._check_inputs(X))]
        mean, std = (self._column(torch.cat(part).numpy()) for part in zip(*parts, strict=True))
        return (mean, std) if return_std else mean

    def predict_quantiles(self, X, quantiles: Sequence[float] = (0.05, 0.5, 0.95)):
        """Quantiles of the predictive densities.

        :param X: [N, D].
        :param quantiles: Q probabilities, strictly between 0 and 1.
        :returns: [N, Q], or [N, Q, P] for several targets. For a data frame and one target, a data
            frame with its index and a column for each probability.
        :raises ValueError: If a probability is not strictly between 0 and 1.
        """
        q = torch.as_tensor(quantiles, dtype=torch.float64)
        if q.dim() != 1:
            raise ValueError(f"quantiles must be a list of probabilities, but it is {quantiles!r}.")
        inputs = self._check_inputs(X)
        parts = [p.quantile(q).transpose(0, 1) for p in self._predictions(inputs)]
        found = torch.cat(parts).numpy()
        if hasattr(X, "iloc") and self._y_ndim == 1:
            return type(X)(found, index=X.index, columns=[f"{p:g}" for p in q.tolist()])
        return found[..., None] if self._one_column else found

    def sample(self, X, n_samples: int = 1, random_state=None) -> np.ndarray:
        """Draws of targets.

        :param X: [N, D].
        :param int n_samples: Draws a row.
        :param random_state: As that of the class.
        :returns: [N, n_samples], or [N, n_samples, P] for several targets.
        """
        n_samples = check_integer("n_samples", n_samples, 1)
        seed = int(check_random_state(random_state).randint(2**31))
        inputs = self._check_inputs(X)
        with untouched_random_state():
            torch.manual_seed(seed)
            parts = [p.sample((n_samples,)).transpose(0, 1) for p in self._predictions(inputs)]
        draws = torch.cat(parts).numpy()
        return draws[..., None] if self._one_column else draws

    def log_density(self, X, y) -> np.ndarray:
        """Logarithms of the predictive densities at targets, per unit of y; jointly if several.

        :param X: [N, D].
        :param y: [N] or [N, P].
        :returns: [N].
        """
        return self._compare(X, y, lambda p, target: p.log_prob(target))

    def crps(self, X, y) -> np.ndarray:
        """Continuous ranked probability scores of targets, in units of y; smaller is better.

        :param X: [N, D].
        :param y: [N] or [N, P].
        :returns: The shape of y.
        """
        return self._column(self._compare(X, y, lambda p, target: p.crps(target)))

    def cdf(self, X, y) -> np.ndarray:
        """P(target <= y) for each target, uniform in (0, 1) if the model is calibrated.

        :param X: [N, D].
        :param y: [N] or [N, P].
        :returns: The shape of y.
        """
        return self._column(self._compare(X, y, lambda p, target: p.cdf(target)))

    def predictive(self, X, z=None) -> PredictiveMixture:
        """The predictive distribution, in units of y and double precision.

        :param X: [N, D]; the distribution holds ``2 * num_samples * N * P`` numbers.
        :param z: Fix the latent input, [latent_dim], to see what it does.
        """
        return self._predict(
            self._check_inputs(X), None if z is None else self._tensor(np.atleast_1d(z))
        )

    def save(self, path: str | Path, **extra) -> None:
        """Writes the fitted model to one file, which :meth:`load` reads without running code.

        :param path: File to write; it is the old one or the new one whenever the process is killed.
        :param extra: More to keep: numbers, strings, lists and dicts, the ``extra_`` of a loaded
            model.
        :raises NotFittedError: If it has not been fitted.
        """
        check_is_fitted(self)
        parameters = self.get_params() | {"checkpoint": None, "device": str(self.device)}
        if not isinstance(self.random_state, int | np.integer | None):
            parameters["random_state"] = None  # a generator, whose number is kept below
        names = getattr(self, "feature_names_in_", None)
        fitted = {
            "n_features_in_": self.n_features_in_,
            "feature_names": None if names is None else names.tolist(),
            "seed": self._seed,
            "num_rows": self._num_rows,
            "y_ndim": self._y_ndim,
            "one_column": self._one_column,
            "history": vars(self.history_),
            "validation_steps": self.validation_steps_.tolist(),
            "validation_crps": self.validation_crps_.tolist(),
            "extra": extra or getattr(self, "extra_", {}),
        }
        scalers = {
            f"{axis}_{name}": torch.as_tensor(getattr(scaler, name))
            for axis, scaler in (("x", self._x_scaler), ("y", self._y_scaler))
            for name in ("mean_", "scale_")
        }
        state = {
            "format": _FORMAT,
            "pyro_dgp": __version__,
            # JSON, so that what is read is plain data whatever the file says.
            "parameters": json.dumps(parameters, default=_plain_number),
            "fitted": json.dumps(fitted, default=_plain_number),
            "scalers": scalers,
            "state": self.dgp_.state_dict(),
        }
        write_tensors(state, Path(path))

    @classmethod
    def load(
        cls, path: str | Path, device: str | None = None, dtype: str | None = None
    ) -> "LatentDGPRegressor":
        """Reads what :meth:`save` wrote. Predictions are the same, to the last bit on one machine.

        :param path: File to read.
        :param device: Another torch device than the model was trained on.
        :param dtype: Another dtype, "float32" or "float64".
        :raises ValueError: If the file is no model, damaged, or of a newer version.
        :raises OSError: If it cannot be read.
        """
        state = read_tensors(Path(path), "model of pyro_dgp")
        if state["format"] != _FORMAT:
            kind, _, number = state["format"].rpartition(" ")
            if kind == _FORMAT.rpartition(" ")[0] and number.isdigit():
                raise ValueError(
                    f"{path} was written by another version of pyro_dgp "
                    f"({state.get('pyro_dgp', 'unknown')}; this is {__version__}). Update pyro_dgp."
                )
            raise ValueError(f"{path} is no model of pyro_dgp, but a {kind or state['format']}.")
        parameters, fitted = json.loads(state["parameters"]), json.loads(state["fitted"])
        parameters["device"] = device or parameters["device"]
        parameters["dtype"] = dtype or parameters["dtype"]
        model = cls(**parameters)
        model._check_parameters()
        model.n_features_in_ = fitted["n_features_in_"]
        if fitted["feature_names"] is not None:
            model.feature_names_in_ = np.array(fitted["feature_names"], dtype=object)
        model._seed, model._num_rows = fitted["seed"], fitted["num_rows"]
        model._y_ndim, model._one_column = fitted["y_ndim"], fitted["one_column"]
        model._x_scaler = _scaler(state["scalers"]["x_mean_"], state["scalers"]["x_scale_"])
        model._y_scaler = _scaler(state["scalers"]["y_mean_"], state["scalers"]["y_scale_"])
        model.history_ = TrainingHistory(**fitted["history"])
        model.validation_steps_ = np.array(fitted["validation_steps"])
        model.validation_crps_ = np.array(fitted["validation_crps"])
        model.extra_ = fitted["extra"]
        # Any data of the right shape make a model of the right shape.
        rows = np.zeros((2, model.n_features_in_)), np.zeros((2, len(model._y_scaler.mean_)))
        with model._isolated(0):
            model.dgp_ = model._new_model(
                model._tensor(rows[0]),
                model._tensor(rows[1] if model._y_ndim == 2 else rows[1][:, 0]),
            )
            model.dgp_.load_state_dict(state["state"])
        model.dgp_.num_data = model._num_rows
        return model

    def _check_parameters(self) -> None:
        for name, least in (
            ("num_layers", 1), ("latent_dim", 0), ("num_inducing", 1), ("K", 1), ("batch_size", 1),
            ("num_samples", 1),
        ):  # fmt: skip
            check_integer(name, getattr(self, name), least)
        for name in ("num_steps", "patience"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                "validation_fraction must be at least 0 and below 1, but it is "
                f"{self.validation_fraction}."
            )
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive and finite, but it is {self.lr}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be float32 or float64, but it is {self.dtype!r}.")
        check_device(self.device)

    def _new_model(self, X: torch.Tensor, y: torch.Tensor) -> LatentDGP:
        return LatentDGP.from_data(
            X,
            y,
            num_layers=self.num_layers,
            latent_dim=self.latent_dim,
            num_inducing=min(self.num_inducing, self._num_rows),
            noise_variance=self.noise_variance,
        )

    @contextmanager
    def _isolated(self, seed: int) -> Iterator[None]:
        """Neither Pyro's parameters nor the random state outside are touched."""
        with untouched_random_state(), pyro.get_param_store().scope():
            pyro.set_rng_seed(seed)
            yield

    def _crps(self, X: torch.Tensor, y: torch.Tensor) -> float:
        p = self.dgp_.predict(X, _SCORE_SAMPLES, shared_draws=True, generator=self._generator())
        return p.crps(y).mean().item()

    def _generator(self) -> torch.Generator:
        """The same draws for every prediction."""
        return torch.Generator(self.device).manual_seed(self._seed)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=getattr(torch, self.dtype), device=self.device)

    def _check_inputs(self, X) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _scaled(self, X: np.ndarray) -> torch.Tensor:
        return self._tensor(_transformed("X", self._x_scaler, X))

    def _scaled_targets(self, y: np.ndarray) -> torch.Tensor:
        scaled = _transformed("y", self._y_scaler, y.reshape(len(y), -1))
        return self._tensor(scaled.reshape(y.shape))

    def _predict(self, X: np.ndarray, z: torch.Tensor | None = None) -> PredictiveMixture:
        """Of checked inputs, in units of y; with the same draws every time."""
        x = self._scaled(X)
        p = self.dgp_.predict(
            x, self.num_samples, shared_draws=True, z=z, generator=self._generator()
        )
        mean, scale = (
            torch.as_tensor(v if self._y_ndim == 2 else v[0], dtype=torch.float64)
            for v in (self._y_scaler.mean_, self._y_scaler.scale_)
        )
        return p.to(torch.float64).affine(mean, scale)

    def _predictions(self, X: np.ndarray) -> Iterator[PredictiveMixture]:
        """Predictive distributions of checked inputs, some rows at a time."""
        rows = max(1, _CHUNK // (self.num_samples * len(self._y_scaler.mean_)))
        for start in range(0, len(X), rows):
            yield self._predict(X[start : start + rows])

    def _compare(self, X, y, value) -> np.ndarray:
        check_is_fitted(self)
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=False
        )
        y = torch.as_tensor(np.asarray(y, dtype=np.float64))
        outputs = () if self._y_ndim == 1 else (len(self._y_scaler.mean_),)
        if self._one_column and y.shape[1:] == (1,):
            y = y[:, 0]
        if y.shape[1:] != outputs:
            raise ValueError(f"y has shape {tuple(y.shape)}, but the model has targets {outputs}.")
        found, start = [], 0
        for p in self._predictions(X):
            stop = start + len(p.mean)
            found.append(value(p, y[start:stop]))
            start = stop
        return torch.cat(found).numpy()

    def _column(self, values: np.ndarray) -> np.ndarray:
        return values[:, None] if self._one_column else values


def _fitted_scaler(name: str, values: np.ndarray) -> StandardScaler:
    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(values)
    bad = ~(np.isfinite(scaler.mean_) & np.isfinite(scaler.scale_))
    if bad.any():
        raise ValueError(
            f"{name}, column {int(bad.argmax())}: the values are too large for a mean and a "
            "standard deviation in double precision. Change its unit."
        )
    return scaler


def _scaler(mean: torch.Tensor, scale: torch.Tensor) -> StandardScaler:
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = mean.numpy(), scale.numpy()
    scaler.var_, scaler.n_features_in_ = scaler.scale_**2, len(scaler.mean_)
    return scaler


def _transformed(name: str, scaler: StandardScaler, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        scaled = scaler.transform(values)
    # Beyond this, squares overflow in single precision.
    if not (np.abs(scaled) < 1e15).all():
        column = int((np.abs(scaled) < 1e15).all(0).argmin())
        raise ValueError(
            f"{name}, column {column}: a value is more than 1e15 standard deviations of the "
            "training rows away from their mean. Remove the outlier, or transform the column."
        )
    return scaled


def _plain_number(value):
    """NumPy's scalars, for JSON."""
    return value.item()
