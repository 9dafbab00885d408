"""The latent-variable deep GP as a scikit-learn regressor of predictive densities."""

import copy
import glob
import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch.distributions import Distribution, constraints

from pyro_dgp import __version__
from pyro_dgp._checks import check_device, check_integer
from pyro_dgp._files import read_tensors, write_tensors
from pyro_dgp.gp import LatentDGP, PredictiveMixture
from pyro_dgp.gp.kernels import KERNELS
from pyro_dgp.gp.likelihoods import (
    LIKELIHOODS,
    GaussianLikelihood,
    HeteroscedasticGaussian,
    Likelihood,
    Rounded,
    StudentT,
    described,
    likelihood_for,
    rebuilt,
)
from pyro_dgp.gp.recalibration import Recalibrated
from pyro_dgp.infer import TrainingHistory
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.sklearn.features import NoFeatures, TreeFeatures
from pyro_dgp.sklearn.members import Fold, Member, Recipe, isolated
from pyro_dgp.sklearn.pool import Pool, kernels, spread
from pyro_dgp.sklearn.scaling import fitted_scaler, scaler_of, transformed
from pyro_dgp.sklearn.schedule import Schedule, fit_all

__all__ = ["LatentDGPRegressor"]

_FORMAT = "pyro_dgp model 2"
# Numbers that one predictive distribution may hold: 2^22 doubles are 32 MiB.
_CHUNK = 2**22
# Fewer rows than this are too few to hold some out.
_LEAST_TO_SPLIT = 30
# More training rows than this take twice the steps.
_MANY_ROWS = 5000
# More rows would make a score slower, and hardly better.
_MOST_HELD_OUT = 2000
# Targets on a lattice of at most so many points are taken for rounded ones.
_MOST_POINTS = 100
# Likelihoods of the real line, or of a lattice on it, whose distributions can be pooled.
_POOLED = (GaussianLikelihood, HeteroscedasticGaussian, StudentT, Rounded)


class LatentDGPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    r"""Regression that predicts a density: skewed, bimodal, heteroscedastic as the data ask for.

    A :class:`~pyro_dgp.gp.LatentDGP` trained with doubly reparameterised gradients, on the inputs
    and what a forest that has not seen the row says of it; its density is pooled with the forest's
    own and with the targets' distribution, as far as that helps on rows held out. Inputs and
    targets may have any units: they are standardised inside, and answers come in the targets'
    units, densities included.

    >>> model = LatentDGPRegressor(random_state=0).fit(X, y)
    >>> model.predict_quantiles(X_new, [0.05, 0.5, 0.95])

    Sources: Rudner et al. (2021) for the model; :mod:`~pyro_dgp.sklearn.features` and
    :mod:`~pyro_dgp.sklearn.pool` for what stands beside it.

    :param likelihood: What noise the targets have: a name of
        :data:`~pyro_dgp.gp.likelihoods.LIKELIHOODS`, a class or an instance (on the
        standardised scale; targets that cannot be standardised, such as counts, are left alone).
        "auto" takes "rounded" where the targets lie on a lattice of at most 100 points, each of
        them twice on average, and else "heteroscedastic". With "rounded", ``log_density`` gives
        logarithms of probabilities.
    :param features: Further inputs: "trees" for mean and log standard deviation over 200 extra
        trees, out of bag for training rows; a scikit-learn regressor, for its cross-fitted
        predictions; None for none.
    :param bool pool: Pool the density with the trees' and the targets' own, by weights (and an
        exponent of recalibration) that are chosen on held-out rows: four folds up to 5000 rows,
        else one of a fifth of them, at most 2000. Each takes a fit of 40% of the steps. Only with
        "gaussian", "heteroscedastic", "student_t" and "rounded", and 20 rows or more.
    :param int n_estimators: Fits from different random numbers, whose mixture predicts.
    :param int num_layers: GP layers; 1 is a shallow GP with a latent input.
    :param int latent_dim: Dimension of the latent input; 0 for none.
    :param str kernel: "rbf", "matern12", "matern32" or "matern52".
    :param int num_inducing: Inducing inputs a layer, at most the number of training rows is used.
    :param int K: Importance samples in training.
    :param int num_steps: Most gradient steps of a fit; None for 2000, or 4000 for more than 5000
        training rows.
    :param int batch_size: Rows a step.
    :param float lr: Adam's largest learning rate; it falls to 0 along half a cosine.
    :param float time_limit: Seconds that ``fit`` may take, about; None for no limit. Steps are
        timed, and fewer of them planned where the limit asks for it, with a warning. Growing trees
        is not cut short.
    :param float validation_fraction: Share of the rows, at most 2000, that is held out to keep the
        parameters with the best CRPS on them; 0 for none: all rows train, to the end.
    :param int patience: Training ends after so many held-out scores, of which there are 50, without
        a better one; None for never.
    :param int num_samples: Components of a predictive mixture.
    :param int n_jobs: Processes that share the fits; None for 1, -1 for one a core. In one process
        Ctrl-C leaves a usable model.
    :param str dtype: "float32" or "float64".
    :param str device: A torch device.
    :param checkpoint: File from which an interrupted ``fit`` goes on, and that it writes, beside
        others of the same name and a number; needs an integer ``random_state``. None for none. See
        :func:`~pyro_dgp.infer.fit`.
    :param random_state: An integer for the same result every time, a ``numpy.random.RandomState``,
        or None.
    :param bool verbose: Show a progress bar.

    After ``fit``, ``members_`` are the trained models, ``dgp_`` the first one's deep GP, on the
    standardised scale; ``likelihood_`` the name of the likelihood; ``pool_weights_`` and
    ``exponent_`` say what was pooled; ``num_steps_`` the steps planned; ``history_`` is the first
    fit's :class:`~pyro_dgp.infer.TrainingHistory` (``interrupted`` after Ctrl-C; the model is
    usable), ``validation_steps_`` and ``validation_crps_`` its held-out scores in standard
    deviations of y, ``n_features_in_`` and, for data frames, ``feature_names_in_`` what X looked
    like.
    """

    def __init__(
        self,
        *,
        likelihood="auto",
        features="trees",
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
        random_state=None,
        verbose: bool = False,
    ) -> None:
        self.likelihood = likelihood
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

    def fit(self, X, y, sample_weight=None) -> "LatentDGPRegressor":
        """
        :param X: Inputs, [N, D]: an array or a data frame of numbers.
        :param y: Targets, [N] or [N, P].
        :param sample_weight: How much rows count, relative to one another, [N]: training meets
            rows in proportion, and those of weight 0 not at all.
        :raises ValueError: If the data hold NaN or infinity, there is one row only, a target is
            constant or one that the likelihood does not accept, or a parameter is out of range.
        :raises NonFiniteError: If training diverged.
        """
        start = time.perf_counter()
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
        X, y, weights = _counting(X, y, sample_weight)
        seed = int(check_random_state(self.random_state).randint(2**31))
        order = np.random.default_rng(seed).permutation(len(X))
        held_out = min(round(self.validation_fraction * len(X)), _MOST_HELD_OUT)
        if len(X) < _LEAST_TO_SPLIT:
            held_out = 0
        # Sorted: training shuffles rows by itself.
        test, train = np.sort(order[:held_out]), np.sort(order[held_out:])
        w = None if weights is None else weights[train]
        self._x_scaler = fitted_scaler("X", X[train], w)
        self._y_scaler = fitted_scaler("y", y[train].reshape(len(train), -1), w)
        if self._y_scaler.var_.min() == 0:
            raise ValueError("y is constant in the training rows: there is no density to learn.")
        if not _scales(self.likelihood):
            zero = torch.zeros(len(self._y_scaler.mean_), dtype=torch.float64)
            self._y_scaler = scaler_of(zero, zero + 1)
        self._y_ndim, self._num_rows, self._seed = y.ndim, len(train), seed
        X, y = transformed("X", self._x_scaler, X), self._scaled_targets(y)
        recipe = self._recipe(self._start_likelihood(y[train]))
        self.likelihood_ = _name(recipe.likelihood)
        wanted = self.num_steps or (2000 if len(train) <= _MANY_ROWS else 4000)
        pooled = self.pool and isinstance(recipe.likelihood, _POOLED) and len(train) >= 20
        fits = fit_all(
            recipe,
            Fold(X[train], y[train], w),
            seed=seed,
            held_out=Fold(X[test], y[test], None if weights is None else weights[test])
            if held_out
            else None,
            schedule=Schedule(
                num_steps=wanted,
                num_members=self.n_estimators,
                pooled=pooled,
                deadline=None if self.time_limit is None else start + self.time_limit,
                n_jobs=self.n_jobs,
                progress=self.verbose,
                checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
            ),
        )
        self.members_, self.num_steps_ = fits.members, fits.num_steps
        self._pool = Pool()
        if fits.held_out:
            targets = spread(y[train].reshape(len(train), -1), w, np.random.default_rng(seed))
            self._pool = Pool.fitted(fits.held_out, targets, self.dgp_.likelihood.lattice())
        if fits.num_steps < wanted:
            warnings.warn(
                f"time_limit={self.time_limit} leaves time for {fits.num_steps} of {wanted} "
                f"steps; it took {time.perf_counter() - start:.0f} s.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    @property
    def dgp_(self) -> LatentDGP:
        """The first member's deep GP, on the standardised scale."""
        return self.members_[0].dgp

    @property
    def history_(self) -> TrainingHistory:
        """The first member's."""
        return self.members_[0].history

    @property
    def validation_steps_(self) -> np.ndarray:
        """Steps at which the first member was scored on held-out rows."""
        return np.array(self.members_[0].steps)

    @property
    def validation_crps_(self) -> np.ndarray:
        """Its scores there."""
        return np.array(self.members_[0].scores)

    @property
    def pool_weights_(self) -> dict[str, float]:
        """Weights of the deep GP ("dgp"), the trees and the targets' own distribution."""
        return dict(self._pool.weights)

    @property
    def exponent_(self) -> float:
        """By which the log odds of the pool's distribution function are multiplied."""
        return self._pool.exponent

    def checkpoints(self) -> list[Path]:
        """Files that ``fit`` has written at ``checkpoint``, to be removed when it is done."""
        if self.checkpoint is None:
            return []
        first = Path(self.checkpoint)
        others = (p for p in first.parent.glob(f"{glob.escape(first.name)}.*"))
        return [p for p in (first, *others) if p == first or p.suffix[1:].isdigit()]

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

    def predictive(self, X, z=None) -> PredictiveMixture | Recalibrated:
        """The predictive distribution, in units of y and double precision.

        :param X: [N, D]; the distribution holds ``2 * num_samples * N * P`` numbers.
        :param z: Fix the latent input, [latent_dim], to see what it does: the distribution is then
            the first member's deep GP's, without the pool.
        """
        return self._predict(self._check_inputs(X), z)

    def save(self, path: str | Path, **extra) -> None:
        """Writes the fitted model to one file, which :meth:`load` reads without running code.

        :param path: File to write; it is the old one or the new one whenever the process is killed.
        :param extra: More to keep: numbers, strings, lists and dicts, the ``extra_`` of a loaded
            model.
        :raises NotFittedError: If it has not been fitted.
        :raises ValueError: If ``features`` is a regressor, or the likelihood has no name.
        """
        check_is_fitted(self)
        likelihood = described(self.dgp_.likelihood)
        parameters = self.get_params(deep=False) | {"checkpoint": None, "device": str(self.device)}
        if not isinstance(self.likelihood, str):
            parameters["likelihood"] = likelihood["name"]
        if not isinstance(self.random_state, int | np.integer | None):
            parameters["random_state"] = None  # a generator, whose number is kept below
        names = getattr(self, "feature_names_in_", None)
        members = [
            {
                "features": member.features.state(),
                "scaler": _numbers(member.scaler) if member.num_features else {},
                "state": member.dgp.state_dict(),
            }
            for member in self.members_
        ]
        if not isinstance(self.features, str | None):
            parameters["features"] = None
        fitted = {
            "n_features_in_": self.n_features_in_,
            "feature_names": None if names is None else names.tolist(),
            "seed": self._seed,
            "num_rows": self._num_rows,
            "num_steps": self.num_steps_,
            "y_ndim": self._y_ndim,
            "one_column": self._one_column,
            "likelihood": likelihood,
            "history": [vars(member.history) for member in self.members_],
            "validation": [[member.steps, member.scores] for member in self.members_],
            "pool": [self._pool.weights, self._pool.widths, self._pool.exponent],
            "extra": extra or getattr(self, "extra_", {}),
        }
        state = {
            "format": _FORMAT,
            "pyro_dgp": __version__,
            # JSON, so that what is read is plain data whatever the file says.
            "parameters": json.dumps(parameters, default=_plain_number),
            "fitted": json.dumps(fitted, default=_plain_number),
            "scalers": [_numbers(self._x_scaler), _numbers(self._y_scaler)],
            "targets": torch.as_tensor(self._pool.targets),
            "members": members,
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
        :raises ValueError: If the file is no model, damaged, or of another version.
        :raises OSError: If it cannot be read.
        """
        state = read_tensors(Path(path), "model of pyro_dgp")
        if state["format"] != _FORMAT:
            kind, _, number = state["format"].rpartition(" ")
            if kind == _FORMAT.rpartition(" ")[0] and number.isdigit():
                raise ValueError(
                    f"{path} was written by another version of pyro_dgp "
                    f"({state.get('pyro_dgp', 'unknown')}; this is {__version__}). Fit it anew, or "
                    "use that version."
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
        model.num_steps_, model.likelihood_ = fitted["num_steps"], fitted["likelihood"]["name"]
        model._x_scaler, model._y_scaler = (scaler_of(**scaler) for scaler in state["scalers"])
        weights, widths, exponent = fitted["pool"]
        model._pool = Pool(weights, widths, exponent, state["targets"].numpy())
        model.extra_ = fitted["extra"]
        recipe = model._recipe(rebuilt(fitted["likelihood"]))
        parts = zip(state["members"], fitted["history"], fitted["validation"], strict=True)
        model.members_ = [
            model._loaded_member(recipe, part, TrainingHistory(**history), *scores)
            for part, history, scores in parts
        ]
        return model

    def _loaded_member(self, recipe: Recipe, part: dict, history, steps, scores) -> Member:
        features = (TreeFeatures if part["features"] else NoFeatures).from_state(part["features"])
        scaler = scaler_of(**part["scaler"]) if part["scaler"] else None
        num_inputs = self.n_features_in_ + (0 if scaler is None else len(scaler.mean_))
        # Any data of the right shape, and that the likelihood accepts, make a model like it.
        A = recipe.tensor(np.zeros((2, num_inputs)))
        columns = recipe.likelihood.num_functions * len(self._y_scaler.mean_)
        f = torch.zeros(2, columns)
        with isolated(0):
            y = recipe.likelihood.predictive(f, f + 1).sample().to(A.dtype)
            options = recipe.model | {
                "num_inducing": min(self.num_inducing, self._num_rows),
                "likelihood": copy.deepcopy(recipe.likelihood),
            }
            dgp = LatentDGP.from_data(A, y, **options)
            for name, p in dgp.named_parameters():
                # Noise variances and intercepts may be one, or one per output.
                p.data = p.new_empty(part["state"][name].shape)
            dgp.load_state_dict(part["state"])
        dgp.num_data = self._num_rows
        return Member(features, scaler, dgp, history, steps, scores)

    def _check_parameters(self) -> None:
        for name, least in (
            ("num_layers", 1), ("latent_dim", 0), ("num_inducing", 1), ("K", 1), ("batch_size", 1),
            ("num_samples", 1), ("n_estimators", 1),
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
        for name in ("lr", "time_limit"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, but it is {value}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be float32 or float64, but it is {self.dtype!r}.")
        if not (
            self.features is None
            or (isinstance(self.features, str) and self.features == "trees")
            or (hasattr(self.features, "fit") and hasattr(self.features, "predict"))
        ):
            raise ValueError(
                "features must be 'trees', None or a scikit-learn regressor, but it is "
                f"{self.features!r}."
            )
        if self.kernel not in KERNELS:
            raise ValueError(
                f"kernel must be one of {', '.join(KERNELS)}, but it is {self.kernel!r}."
            )
        if isinstance(self.likelihood, str) and self.likelihood not in ("auto", *LIKELIHOODS):
            raise ValueError(
                f"likelihood must be auto or one of {', '.join(LIKELIHOODS)}, but it is "
                f"{self.likelihood!r}."
            )
        check_device(self.device)

    def _recipe(self, likelihood: Likelihood) -> Recipe:
        model = {
            "num_layers": self.num_layers, "latent_dim": self.latent_dim, "kernel": self.kernel,
            "num_inducing": self.num_inducing,
        }  # fmt: skip
        return Recipe(
            model, likelihood, self.features, self.K, self.batch_size, self.lr, self.patience,
            self.dtype, self.device,
        )  # fmt: skip

    def _start_likelihood(self, y: np.ndarray) -> Likelihood:
        """For standardised targets."""
        targets = torch.as_tensor(y, dtype=getattr(torch, self.dtype))
        if not isinstance(self.likelihood, str) or self.likelihood != "auto":
            return likelihood_for(targets, self.likelihood)
        if len(np.unique(y)) <= min(_MOST_POINTS, y.size / 2):
            try:
                rounded = Rounded.for_targets(targets)
            except ValueError:  # no lattice
                return HeteroscedasticGaussian.for_targets(targets)
            if np.ptp(y) < _MOST_POINTS * rounded.width:
                return rounded
        return HeteroscedasticGaussian.for_targets(targets)

    def _generator(self) -> torch.Generator:
        """The same draws for every prediction."""
        return torch.Generator(self.device).manual_seed(self._seed)

    def _check_inputs(self, X) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _scaled_targets(self, y: np.ndarray) -> np.ndarray:
        return transformed("y", self._y_scaler, y.reshape(len(y), -1)).reshape(y.shape)

    def _predict(self, X: np.ndarray, z=None) -> PredictiveMixture | Recalibrated:
        """Of checked inputs, in units of y; with the same draws every time."""
        X = transformed("X", self._x_scaler, X)
        mean, scale = (
            torch.as_tensor(v if self._y_ndim == 2 else v[0], dtype=torch.float64)
            for v in (self._y_scaler.mean_, self._y_scaler.scale_)
        )
        if z is not None:
            z = torch.as_tensor(np.atleast_1d(z)).to(next(self.dgp_.parameters()))
            parts = self._dgp_parts(self.members_[:1], X, self.num_samples, z)
            return PredictiveMixture(parts, self._y_ndim - 1).affine(mean, scale)
        counts = self._pool.counts(self.num_samples)
        parts = self._dgp_parts(self.members_, X, counts["dgp"])
        lattice = self.dgp_.likelihood.lattice()
        for name, number in counts.items():
            if name == "dgp" or not number:
                continue
            if name == "trees":
                sample = self.members_[0].features.samples(X)
            else:
                sample = np.broadcast_to(self._pool.targets[:, None], (
                    len(self._pool.targets), len(X), self._pool.targets.shape[1]
                ))  # fmt: skip
            # Trees are alike, and targets in order: every so many of them.
            some = np.floor((np.arange(number) + 0.5) * len(sample) / number).astype(int)
            sample = sample[some] if self._y_ndim == 2 else sample[some, :, 0]
            parts.append(kernels(sample, self._pool.widths[name], lattice))
        p = PredictiveMixture(parts, self._y_ndim - 1).affine(mean, scale)
        return p if self._pool.exponent == 1 else Recalibrated(p, self._pool.exponent)

    def _dgp_parts(
        self, members: Sequence[Member], X: np.ndarray, number: int, z=None
    ) -> list[Distribution]:
        edges = np.linspace(0, number, len(members) + 1).round().astype(int)
        return [
            part
            for member, count in zip(members, np.diff(edges).tolist(), strict=True)
            if count
            for part in member.predict(X, count, self._generator(), z).to(torch.float64).parts
        ]

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


def _counting(
    X: np.ndarray, y: np.ndarray, sample_weight
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The rows that count, and how much."""
    if sample_weight is None:
        return X, y, None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    some = weights > 0
    if some.sum() < 2:
        raise ValueError("sample_weight must be positive for two rows at least.")
    weights = weights[some] / weights[some].mean()
    return X[some], y[some], None if np.allclose(weights, 1.0) else weights


def _scales(likelihood) -> bool:
    """Whether targets are real numbers, or a lattice of them, which standardising leaves so."""
    if isinstance(likelihood, str):
        likelihood = LIKELIHOODS.get(likelihood, HeteroscedasticGaussian)
    kind = likelihood if isinstance(likelihood, type) else type(likelihood)
    return kind.support is constraints.real and (not kind.discrete or issubclass(kind, Rounded))


def _name(likelihood: Likelihood) -> str:
    names = [name for name, cls in LIKELIHOODS.items() if type(likelihood) is cls]
    return names[0] if names else type(likelihood).__name__


def _numbers(scaler) -> dict[str, torch.Tensor]:
    return {"mean": torch.as_tensor(scaler.mean_), "scale": torch.as_tensor(scaler.scale_)}


def _plain_number(value):
    """NumPy's scalars, for JSON."""
    return value.item()
