"""The common base of regressor and classifier: training and model files."""

import glob
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from pyro_dgp import __version__
from pyro_dgp._files import read_tensors, write_tensors
from pyro_dgp.gp import LatentDGP, PredictiveMixture
from pyro_dgp.gp.likelihoods import LIKELIHOODS, Likelihood, described, rebuilt
from pyro_dgp.infer import TrainingHistory
from pyro_dgp.sklearn.arrays import check_kind, check_unmasked
from pyro_dgp.sklearn.classes import ClassPool
from pyro_dgp.sklearn.members import Fold, Member, Recipe
from pyro_dgp.sklearn.parameters import Parameters
from pyro_dgp.sklearn.pool import HeldOut, Pool
from pyro_dgp.sklearn.scaling import fitted_scaler, numbers, scaler_of, transformed
from pyro_dgp.sklearn.schedule import Schedule, fit_all

__all__ = ["LatentDGPEstimator", "counting"]

_Model = TypeVar("_Model", bound="LatentDGPEstimator")

_FORMAT = "pyro_dgp model 4"
# Least numbers of rows for holding rows out, and for a pool.
_LEAST_TO_SPLIT, _LEAST_TO_POOL = 30, 20
# With more training rows than this, the number of steps is doubled.
_MANY_ROWS = 5000
# Most training rows for several processes by default.
_MOST_ROWS_BY_PROCESSES = 50_000
# Most rows held out; more make a score slower and hardly more precise.
_MOST_HELD_OUT = 2000


class LatentDGPEstimator(Parameters):
    """An estimator made of :class:`~pyro_dgp.sklearn.members.Member` and a pool.

    A subclass checks targets, transforms them to the scale of training and back, and defines how
    distributions are pooled.
    """

    # The class of the pool.
    _pool_class: type[Pool] | type[ClassPool]

    # What ``fit`` and ``load`` set.
    n_features_in_: int
    feature_names_in_: np.ndarray
    members_: list[Member]
    likelihood_: str
    num_steps_: int
    extra_: dict[str, Any]
    _pool: Pool | ClassPool
    _x_scaler: StandardScaler
    _dgp_options: dict[str, Any]
    _num_rows: int
    _seed: int

    def _fit(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, start: float) -> None:
        """
        :param numpy.ndarray X: Inputs, checked, [N, D].
        :param numpy.ndarray y: Targets, checked, [N] or [N, P], in the units of the user.
        :param weights: Weights of the rows, positive, [N], or None.
        :param float start: Start of the time limit, as of ``time.monotonic``, in seconds.
        """
        self.extra_ = {}
        seed = int(check_random_state(self.random_state).randint(2**31))
        order = np.random.default_rng(seed).permutation(len(X))
        # At least two rows are left for training.
        held_out = min(round(self.validation_fraction * len(X)), _MOST_HELD_OUT, len(X) - 2)
        if len(X) < _LEAST_TO_SPLIT:
            held_out = 0
        # Sorted, as training shuffles rows.
        test, train = np.sort(order[:held_out]), np.sort(order[held_out:])
        w = None if weights is None else weights[train]
        self._x_scaler = fitted_scaler("X", X[train], w)
        self._fit_target_scale(y[train], w)
        self._num_rows, self._seed = len(train), seed
        rows = Fold(transformed("X", self._x_scaler, X), self._scaled_targets(y), weights)
        recipe = self._recipe(self._start_likelihood(rows.y, train))
        self.likelihood_ = _name(recipe.likelihood)
        wanted = self.num_steps or (2000 if len(train) <= _MANY_ROWS else 4000)
        pooled = self.pool and self._can_pool(recipe.likelihood) and len(train) >= _LEAST_TO_POOL
        fits = fit_all(
            recipe,
            rows[train],
            seed=seed,
            held_out=rows[test] if held_out else None,
            schedule=Schedule(
                num_steps=wanted,
                num_members=self.n_estimators,
                pooled=pooled,
                deadline=None if self.time_limit is None else start + self.time_limit,
                n_jobs=self._num_jobs(),
                progress=self.verbose,
                checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
            ),
        )
        self.members_, self.num_steps_ = fits.members, fits.num_steps
        self._dgp_options = recipe.model
        self._pool = self._pool_of(fits.held_out, rows[train])
        if (fits.num_steps < wanted or fits.num_late) and not self.history_.interrupted:
            limit, plan = f"time_limit={self.time_limit}", f"{fits.num_steps} of {wanted} steps"
            told = f"{limit} leaves time for {plan}"
            if fits.resumed and fits.num_steps < wanted:  # its rates fall to 0 at the plan's end
                told = (
                    f"The fit that checkpoint={str(self.checkpoint)!r} continues had planned "
                    f"{plan}, which stays so, whatever the limit: remove its files to plan anew"
                )
            late = f"; {limit} ended {fits.num_late} fits before that" if fits.num_late else ""
            warnings.warn(
                f"{told}{late}; it took {time.monotonic() - start:.0f} s.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _num_jobs(self) -> int:
        """The number of processes asked for.

        By default, several processes do not share one GPU, nor hold many rows and their trees each.
        """
        if self.n_jobs is not None:
            return self.n_jobs
        shared = torch.device(self.device).type != "cpu" or self._num_rows > _MOST_ROWS_BY_PROCESSES
        return 1 if shared else -1

    def _fit_target_scale(self, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Fits the transformation of :meth:`_scaled_targets` to the training targets."""

    def _scaled_targets(self, y: np.ndarray) -> np.ndarray:
        """Targets on the scale of training."""
        return y

    @property
    def _num_outputs(self) -> int:
        """Number P of targets."""
        return 1

    def _start_likelihood(self, y: np.ndarray, train: np.ndarray) -> Likelihood:
        """The initial likelihood, for targets on the scale of training.

        :param numpy.ndarray y: Targets of all rows.
        :param numpy.ndarray train: Indices of the training rows.
        """
        raise NotImplementedError

    def _can_pool(self, likelihood: Likelihood) -> bool:
        raise NotImplementedError

    def _pool_of(self, parts: list[HeldOut], data: Fold) -> Pool | ClassPool:
        """A pool fitted on held-out rows; the deep GP alone if there are none."""
        raise NotImplementedError

    def _target_state(self) -> dict:
        """The state of the targets for a file: tensors and plain data."""
        raise NotImplementedError

    def _load_targets(self, state: dict) -> None:
        raise NotImplementedError

    @staticmethod
    def _columns(y: np.ndarray, likelihood: Likelihood) -> np.ndarray:
        """Targets as numbers, [N, Q], to which features are fitted."""
        return y.reshape(len(y), -1)

    @staticmethod
    def _score(p: PredictiveMixture, y: Tensor) -> Tensor:
        """The score that is minimised on held-out rows, [N] or [N, P]."""
        raise NotImplementedError

    @property
    def dgp_(self) -> LatentDGP:
        """The first member's deep GP, on the standardised scale."""
        return self.members_[0].dgp

    @property
    def history_(self) -> TrainingHistory:
        """The training history of the first member."""
        return self.members_[0].history

    @property
    def validation_steps_(self) -> np.ndarray:
        """Steps at which the first member was scored on held-out rows."""
        return np.array(self.members_[0].steps)

    @property
    def pool_weights_(self) -> dict[str, float]:
        """Weights of the deep GP ("dgp"), the trees ("trees") and the targets' own distribution
        ("marginal")."""
        return dict(self._pool.weights)

    @property
    def latent_prior_(self) -> str:
        """The prior of z in predictions: "fitted" to the data, or "normal" as in training."""
        fitted = any(getattr(layer, "prior_shares", None) is not None for layer in self.dgp_.layers)
        return "fitted" if fitted else "normal"

    @property
    def exponent_(self) -> float:
        """Exponent of the pool's recalibration; 1 for none."""
        return self._pool.exponent

    def checkpoints(self) -> list[Path]:
        """Files that ``fit`` has written at ``checkpoint``, which may be removed afterwards."""
        if self.checkpoint is None:
            return []
        first = Path(self.checkpoint)
        others = first.parent.glob(f"{glob.escape(first.name)}.*")
        mine = (p for p in others if p.suffix[1:].isdigit() or p.suffix == ".plan")
        return [first, *mine]

    def save(self, path: str | Path, **extra: Any) -> None:
        """Writes the fitted model to one file, which :meth:`load` reads without running code.

        :param path: File to write; if the process is killed, it is either the old or the new one.
        :param extra: More to keep: numbers, strings, lists and dicts; ``extra_`` of a loaded model.
        :raises NotFittedError: If it has not been fitted.
        :raises ValueError: If ``features`` is an estimator, or the likelihood has no name.
        """
        check_is_fitted(self)
        self._check_parameters()  # changed after fit: the file could not be read
        likelihood = described(self.dgp_.likelihood)
        parameters = self.get_params(deep=False) | {"checkpoint": None, "device": str(self.device)}
        if not isinstance(self.likelihood, str):
            parameters["likelihood"] = likelihood["name"]
        if not isinstance(self.random_state, int | np.integer | None):
            parameters["random_state"] = None  # a generator; the seed drawn from it is kept below
        names = getattr(self, "feature_names_in_", None)
        if not all(isinstance(source, str) for source in self._sources()):
            parameters["features"] = None  # changed after fit
        fitted = {
            "n_features_in_": self.n_features_in_,
            "feature_names": None if names is None else names.tolist(),
            "seed": self._seed,
            "dgp": self._dgp_options,
            "num_rows": self._num_rows,
            "num_steps": self.num_steps_,
            "likelihood": likelihood,
            "history": [vars(member.history) for member in self.members_],
            "validation": [[member.steps, member.scores] for member in self.members_],
            "extra": extra or self.extra_,
        }
        state = {
            "format": _FORMAT,
            "class": type(self).__name__,
            "pyro_dgp": __version__,
            # JSON, so that reading gives plain data only.
            "parameters": json.dumps(parameters, default=_plain_number),
            "fitted": json.dumps(fitted, default=_plain_number),
            "scaler": numbers(self._x_scaler),
            "targets": self._target_state(),
            "pool": self._pool.state(),
            "members": [member.state() for member in self.members_],
        }
        write_tensors(state, Path(path))

    @classmethod
    def load(
        cls: type[_Model], path: str | Path, device: str | None = None, dtype: str | None = None
    ) -> _Model:
        """Reads a file of :meth:`save`. Predictions are the same, to the last bit on one machine.

        Waits while another thread fits.

        :param path: File to read.
        :param device: Torch device; None for the one the model was trained on.
        :param dtype: Dtype, "float32" or "float64"; None for the one of training.
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
        if state["class"] != cls.__name__:
            raise ValueError(f"{path} is a {state['class']}, which {state['class']}.load reads.")
        parameters, fitted = json.loads(state["parameters"]), json.loads(state["fitted"])
        parameters["device"] = device or parameters["device"]
        parameters["dtype"] = dtype or parameters["dtype"]
        if isinstance(parameters["features"], list):  # JSON has no tuples
            parameters["features"] = tuple(parameters["features"])
        model = cls(**parameters)
        model._check_parameters()
        model.n_features_in_ = fitted["n_features_in_"]
        if fitted["feature_names"] is not None:
            model.feature_names_in_ = np.array(fitted["feature_names"], dtype=object)
        model._seed, model._num_rows = fitted["seed"], fitted["num_rows"]
        model.num_steps_, model.likelihood_ = fitted["num_steps"], fitted["likelihood"]["name"]
        model._x_scaler = scaler_of(**state["scaler"])
        model._load_targets(state["targets"])
        model._pool = model._pool_class.from_state(state["pool"])
        model.extra_, model._dgp_options = fitted["extra"], fitted["dgp"]
        # Parameters may have been changed after fit.
        recipe = replace(model._recipe(rebuilt(fitted["likelihood"])), model=fitted["dgp"])
        sizes = model.n_features_in_, model._num_outputs, model._num_rows
        model.members_ = [Member.from_state(part, recipe, *sizes) for part in state["members"]]
        histories = zip(model.members_, fitted["history"], fitted["validation"], strict=True)
        for member, history, (steps, scores) in histories:
            member.history = TrainingHistory(**history)
            member.steps, member.scores = steps, scores
        return model

    def _recipe(self, likelihood: Likelihood) -> Recipe:
        model = {
            "num_layers": self.num_layers, "latent_dim": self.latent_dim, "kernel": self.kernel,
            "num_inducing": self.num_inducing,
        }  # fmt: skip
        return Recipe(
            model, likelihood, self._sources(), self._columns, self._score, self.K, self.batch_size,
            self.lr, self.patience, self.dtype, self.device,
        )  # fmt: skip

    def _generator(self) -> torch.Generator:
        """A generator with the same state for every prediction."""
        return torch.Generator(self.device).manual_seed(self._seed)

    def _drawing(self, number: int) -> Iterator[tuple[Member, int, torch.Generator]]:
        """Members, the number of mixture components of each, and generators for their draws."""
        edges = np.linspace(0, number, len(self.members_) + 1).round().astype(int)
        for member, count in zip(self.members_, np.diff(edges).tolist(), strict=True):
            if count:
                yield member, count, self._generator()

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "members_")

    def _check_inputs(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        check_kind("X", X)
        X = validate_data(self, X, dtype=np.float64, reset=False)  # pyright: ignore[reportArgumentType]
        return np.asarray(X)

    def _check_pair(
        self, X: ArrayLike, y: ArrayLike, **options: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets; ``options`` are those of scikit-learn's ``validate_data``."""
        if options.get("reset", True):  # no old members between the new scales of a fit that fails
            vars(self).pop("members_", None)
        of_numbers = options.get("y_numeric", False)
        check_kind("X", X)
        (check_kind if of_numbers else check_unmasked)("y", y)
        X, y = validate_data(self, X, y, dtype=np.float64, **options)  # pyright: ignore[reportArgumentType]
        X, y = np.asarray(X), np.asarray(y)
        if of_numbers:
            y = y.astype(np.float64, copy=False)
            assert_all_finite(y, input_name="y")  # objects, such as None, are only now NaN
        return X, y


def counting(
    X: np.ndarray, y: np.ndarray, sample_weight: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The rows with a positive weight, and their weights; None for equal ones."""
    if sample_weight is None:
        return X, y, None
    check_unmasked("sample_weight", sample_weight)
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    some = weights > 0
    if some.sum() < 2:
        raise ValueError("sample_weight must be positive for two rows at least.")
    weights = weights[some] / weights[some].mean()
    return X[some], y[some], None if np.allclose(weights, 1.0) else weights


def _name(likelihood: Likelihood) -> str:
    names = [name for name, cls in LIKELIHOODS.items() if type(likelihood) is cls]
    return names[0] if names else type(likelihood).__name__


def _plain_number(value: np.generic) -> Any:
    """A scalar of NumPy as a number of Python, for JSON."""
    return value.item()
