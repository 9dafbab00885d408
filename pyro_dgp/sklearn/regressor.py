"""The latent-variable deep GP as a scikit-learn regressor of predictive densities."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeGuard, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.distributions import constraints

from pyro_dgp._checks import check_integer
from pyro_dgp.gp import Exponentiated, PredictiveMixture
from pyro_dgp.gp.likelihoods import (
    LIKELIHOODS,
    GaussianLikelihood,
    HeteroscedasticGaussian,
    Likelihood,
    Rounded,
    StudentT,
    likelihood_for,
)
from pyro_dgp.gp.predictive.recalibration import Recalibrated
from pyro_dgp.sklearn.base import LatentDGPEstimator, counting
from pyro_dgp.sklearn.features import NUM_TREES
from pyro_dgp.sklearn.members import Fold, isolated
from pyro_dgp.sklearn.pool import HeldOut, Pool, kernels
from pyro_dgp.sklearn.scaling import (
    fitted_scaler,
    mean_and_scale,
    numbers,
    scaler_of,
    transformed,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LatentDGPRegressor", "Predictive"]

#: What :meth:`LatentDGPRegressor.predictive` gives.
Predictive = PredictiveMixture | Recalibrated | Exponentiated
_AsLikelihood = str | type[Likelihood] | Likelihood

# Most numbers in one predictive distribution: 2^22 doubles are 32 MiB.
_CHUNK = 2**22
# Targets on a lattice of at most this many points are modelled as rounded ones.
_MOST_POINTS = 100
# Likelihoods of the real line, or of a lattice on it, whose distributions can be pooled.
_POOLED = (GaussianLikelihood, HeteroscedasticGaussian, StudentT, Rounded)


class LatentDGPRegressor(MultiOutputMixin, RegressorMixin, LatentDGPEstimator):
    r"""Regression that predicts a density, which may be skewed, bimodal or heteroscedastic.

    A :class:`~pyro_dgp.gp.LatentDGP` trained with doubly reparameterised gradients, on the inputs
    and on out-of-bag or cross-fitted predictions of trees; its density is pooled with that of a
    forest and with the marginal distribution of the targets, with weights chosen on held-out rows.
    Inputs and targets may have any units: they are standardised internally, and all results are in
    units of the targets, densities included.

    >>> model = LatentDGPRegressor(random_state=0).fit(X, y)
    >>> model.predict_quantiles(X_new, [0.05, 0.5, 0.95])

    Sources: Rudner et al. (2021) for the model; :mod:`~pyro_dgp.sklearn.features` and
    :mod:`~pyro_dgp.sklearn.pool` for features and pool.

    :param likelihood: Likelihood of the targets: a name of
        :data:`~pyro_dgp.gp.likelihoods.LIKELIHOODS`, a class or an instance (on the
        standardised scale; targets that cannot be standardised, such as counts, are used as they
        are). "auto" means "rounded" if the targets lie on a lattice of at most 100 points, with two
        rows per point on average, and "heteroscedastic" otherwise. With "rounded", ``log_density``
        gives logarithms of probabilities.
    :param str target_transform: Transformation of the targets: "log" to model the logarithm of
        positive targets with a long tail, such as prices, sizes and durations; then no interval
        reaches below 0. None for none. Densities, scores and all other results are in the original
        units of the targets.
    :param features: Further inputs: "trees" for mean and log standard deviation over 200 extra
        trees, out of bag for training rows; "boosting" for cross-fitted predictions of gradient
        boosting; a scikit-learn regressor, for its cross-fitted predictions; several of these in a
        tuple; None for none. "auto" means trees and boosting.
    :param bool pool: Whether to pool the density with those of the trees and of all targets.
        Weights and an exponent of recalibration are chosen on held-out rows: four folds up to 5000
        rows, otherwise one of a fifth of the rows, at most 2000. Each fold takes a fit of 40% of
        the steps. Only with "gaussian", "heteroscedastic", "student_t" and "rounded", and 20 rows
        or more.
    :param int n_estimators: Number of members with different seeds; their mixture is the
        prediction.
    :param int num_layers: Number of GP layers; 1 is a shallow GP with a latent input.
    :param int latent_dim: Dimension of the latent input z; 0 for none. Its prior is fitted to the
        data after training (:meth:`~pyro_dgp.LatentDGP.fit_latent_prior`); with a pool, only if
        that is better on held-out rows, by more than a standard error (``latent_prior_``).
    :param str kernel: Kernel of all layers: "rbf", "matern12", "matern32" or "matern52".
    :param int num_inducing: Number of inducing inputs per layer, at most that of training rows.
    :param int K: Number of importance samples in training.
    :param int num_steps: Largest number of gradient steps of a fit; None for 2000, or 4000 for more
        than 5000 training rows.
    :param int batch_size: Number of rows per step.
    :param float lr: Largest learning rate of Adam; it falls to 0 along half a cosine.
    :param float time_limit: Approximate time for ``fit`` in seconds; None for no limit. Steps are
        timed, and if necessary fewer are planned, with a warning. Growing trees is not cut short.
    :param float validation_fraction: Share of the rows, at most 2000 of them, that is held out to
        select the parameters with the best CRPS; 0 for none: all rows are used for training, and
        the last parameters are kept.
    :param int patience: Number of held-out scores, of 50 in all, without an improvement after which
        training ends; None for no limit.
    :param int num_samples: Number of components of the predictive mixture.
    :param int n_jobs: Number of processes, of one thread each, for the fits, which are members and
        folds; -1 for one per core, None for that on the CPU with at most 50,000 rows and otherwise
        for 1. Where starting processes would take longer, and in a worker process of another pool,
        there is one.
    :param str dtype: Dtype of the deep GP, "float32" or "float64".
    :param str device: Torch device of the deep GP.
    :param checkpoint: File that ``fit`` writes, with others of the same name and a number, and from
        which an interrupted ``fit`` continues; needs an integer ``random_state``. None for none.
        See :func:`~pyro_dgp.infer.fit`.
    :param random_state: Seed: an integer for reproducible results, a
        ``numpy.random.RandomState``, or None.
    :param bool verbose: Whether to show a progress bar.

    After ``fit``, ``members_`` are the trained models, ``dgp_`` the first one's deep GP, on the
    standardised scale; ``likelihood_`` is the name of the likelihood; ``pool_weights_`` and
    ``exponent_`` describe the pool; ``num_steps_`` is the number of steps planned; ``history_`` is
    the :class:`~pyro_dgp.infer.TrainingHistory` of the first member (``interrupted`` after Ctrl-C;
    the model is usable), ``validation_steps_`` and ``validation_crps_`` are its held-out scores in
    standard deviations of y; ``n_features_in_`` and, for data frames, ``feature_names_in_``
    describe X.
    """

    _likelihoods = ("auto", *(n for n in LIKELIHOODS if n not in ("binomial", "categorical")))
    _pool: Pool
    _pool_class = Pool
    _transforms = (None, "log")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.target_transform is not None and not _is_real(self.likelihood):
            raise ValueError(
                f"target_transform={self.target_transform!r} needs a likelihood of real numbers, "
                f"such as 'heteroscedastic', but it is {self.likelihood!r}."
            )

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "LatentDGPRegressor":
        """
        :param X: Inputs, [N, D]: an array or a data frame of numbers.
        :param y: Targets, [N] or [N, P].
        :param sample_weight: Relative weights of the rows, [N]: rows are drawn in proportion to
            them in training, and those of weight 0 never.
        :raises ValueError: If the data contain NaN or infinity, there is one row only, a target is
            constant or one that the likelihood or the transform does not accept, or a parameter is
            out of range.
        :raises NonFiniteError: If training diverged.
        :raises CholeskyError: If it diverged so that a kernel matrix has no factor.
        """
        start = time.monotonic()
        self._check_parameters()
        inputs, targets = self._check_pair(
            X, y, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        self._one_column = targets.ndim == 2 and targets.shape[1] == 1  # it comes back as one, too
        if self._one_column:
            targets = targets[:, 0]
        self._y_ndim = targets.ndim
        if self.target_transform == "log":
            targets = _logarithms(targets)
        self._fit(*counting(inputs, targets, sample_weight), start)
        self._fitted_transform = self.target_transform
        return self

    @property
    def validation_crps_(self) -> np.ndarray:
        """Mean CRPS of the first member on held-out rows, in standard deviations of y."""
        return np.array(self.members_[0].scores)

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predictive means.

        :param X: Inputs, [N, D].
        :param bool return_std: Whether to return standard deviations, too.
        :returns: [N] or [N, P], or two such arrays.
        """
        parts = [(p.mean, p.stddev) for p in self._predictions(self._check_inputs(X))]
        mean, std = (self._column(torch.cat(part).numpy()) for part in zip(*parts, strict=True))
        return (mean, std) if return_std else mean

    def predict_quantiles(
        self, X: "ArrayLike | pd.DataFrame", quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> "np.ndarray | pd.DataFrame":
        """Quantiles of the predictive densities.

        :param X: Inputs, [N, D].
        :param quantiles: Probabilities, strictly between 0 and 1, [Q].
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
        if self._y_ndim == 1 and _is_frame(X):
            return type(X)(found, index=X.index, columns=[f"{p:g}" for p in q.tolist()])
        return found[..., None] if self._one_column else found

    def sample(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = None,
    ) -> np.ndarray:
        """Draws of targets. Waits while another thread fits, as other predictions do not.

        :param X: Inputs, [N, D].
        :param int n_samples: Number of draws per row.
        :param random_state: Seed, as that of the class.
        :returns: [N, n_samples], or [N, n_samples, P] for several targets.
        """
        n_samples = check_integer("n_samples", n_samples, 1)
        seed = int(check_random_state(random_state).randint(2**31))
        inputs = self._check_inputs(X)
        with isolated(seed):
            parts = [p.sample((n_samples,)).transpose(0, 1) for p in self._predictions(inputs)]
        draws = torch.cat(parts).numpy()
        return draws[..., None] if self._one_column else draws

    def log_density(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Logarithms of the predictive densities at targets, per unit of y; jointly if several.

        :param X: Inputs, [N, D].
        :param y: Targets, [N] or [N, P].
        :returns: [N].
        """
        return self._compare(X, y, lambda p, target: p.log_prob(target))

    def crps(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability scores of targets, in units of y; smaller is better.

        :param X: Inputs, [N, D].
        :param y: Targets, [N] or [N, P]; a column [N, 1] will do for [N].
        :returns: The shape of y.
        """
        return self._compare(X, y, lambda p, target: p.crps(target)).reshape(np.shape(y))

    def cdf(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """P(target <= y) for each target.

        Uniform in (0, 1) if the model is calibrated and targets are continuous; see
        :func:`~pyro_dgp.experiments.metrics.pit_bounds` for those that are not.

        :param X: Inputs, [N, D].
        :param y: Targets, [N] or [N, P]; a column [N, 1] will do for [N].
        :returns: The shape of y.
        """
        return self._compare(X, y, lambda p, target: p.cdf(target)).reshape(np.shape(y))

    def predictive(self, X: ArrayLike, z: ArrayLike | None = None) -> Predictive:
        """The predictive distribution, in units of y and double precision.

        :param X: Inputs, [N, D]; the distribution holds ``2 * num_samples * N * P`` numbers.
        :param z: Fixed value of the latent input, [latent_dim], to see its effect; the distribution
            is then that of the first member's deep GP, without the pool.
        """
        return self._predict(self._check_inputs(X), z)

    def predictives(self, X: ArrayLike) -> Iterator[Predictive]:
        """:meth:`predictive` for chunks of rows, in order and in bounded memory.

        Use it to compute several quantities from each distribution.

        :param X: Inputs, [N, D].
        """
        return self._predictions(self._check_inputs(X))

    def _fit_target_scale(self, y: np.ndarray, weights: np.ndarray | None) -> None:
        self._y_scaler = fitted_scaler("y", y.reshape(len(y), -1), weights)
        # Weighted variances of equal numbers need not be 0.
        if np.asarray(self._y_scaler.var_).min() == 0 or np.ptp(y, axis=0).min() == 0:
            raise ValueError("y is constant in the training rows: there is no density to learn.")
        if not _scales(self.likelihood):
            zero = torch.zeros(self._num_outputs, dtype=torch.float64)
            self._y_scaler = scaler_of(zero, zero + 1)

    def _scaled_targets(self, y: np.ndarray) -> np.ndarray:
        return transformed("y", self._y_scaler, y.reshape(len(y), -1)).reshape(y.shape)

    @property
    def _num_outputs(self) -> int:
        return len(mean_and_scale(self._y_scaler)[0])

    def _start_likelihood(self, y: np.ndarray, train: np.ndarray) -> Likelihood:
        y = y[train]
        targets = torch.as_tensor(y)  # in double precision, for lattices and values as written
        if not isinstance(self.likelihood, str) or self.likelihood != "auto":
            return likelihood_for(targets, self.likelihood)
        if self.target_transform is not None:
            return HeteroscedasticGaussian.for_targets(targets)
        # Several outputs, each standardised, have no lattice in common.
        if y.ndim == 1 and len(np.unique(y)) <= min(_MOST_POINTS, y.size / 2):
            try:
                rounded = Rounded.for_targets(targets)
            except ValueError:  # no lattice
                return HeteroscedasticGaussian.for_targets(targets)
            if np.ptp(y) < _MOST_POINTS * rounded.width:
                return rounded
        return HeteroscedasticGaussian.for_targets(targets)

    def _can_pool(self, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, _POOLED)

    def _pool_of(self, parts: list[HeldOut], data: Fold) -> Pool:
        if not parts:
            return Pool()
        rng = np.random.default_rng(self._seed)
        return Pool.fitted(parts, data, self.dgp_.likelihood.lattice(), rng)

    @staticmethod
    def _score(p: PredictiveMixture, y: Tensor) -> Tensor:
        """CRPS."""
        return p.crps(y)

    def _target_state(self) -> dict:
        scaler = numbers(self._y_scaler)
        return {
            "scaler": scaler, "ndim": self._y_ndim, "one_column": self._one_column,
            "transform": self._fitted_transform or "",
        }  # fmt: skip

    def _load_targets(self, state: dict) -> None:
        self._y_scaler = scaler_of(**state["scaler"])
        self._y_ndim, self._one_column = state["ndim"], state["one_column"]
        self._fitted_transform = state.get("transform", self.target_transform) or None

    def _predict(self, X: np.ndarray, z: ArrayLike | None = None) -> Predictive:
        """Predictive distribution of checked inputs, in units of y, always with the same draws."""
        p = self._predict_transformed(X, z)
        return p if self._fitted_transform is None else Exponentiated(p)

    def _predict_transformed(
        self, X: np.ndarray, z: ArrayLike | None
    ) -> PredictiveMixture | Recalibrated:
        X = transformed("X", self._x_scaler, X)
        mean, scale = (
            torch.as_tensor(v if self._y_ndim == 2 else v[0], dtype=torch.float64)
            for v in mean_and_scale(self._y_scaler)
        )
        if z is not None:
            fixed = torch.as_tensor(np.atleast_1d(z)).to(next(self.dgp_.parameters()))
            p = self.members_[0].predict(X, self.num_samples, self._generator(), fixed)
            return p.to(torch.float64).affine(mean, scale)
        counts, P = self._pool.counts(self.num_samples), self._num_outputs
        parts = [
            part
            for member, count, generator in self._drawing(counts["dgp"])
            for part in member.predict(X, count, generator).to(torch.float64).parts
        ]
        lattice = self.dgp_.likelihood.lattice()
        for name, number in counts.items():
            if name == "dgp" or not number:
                continue
            if name == "trees":
                sample = self.members_[0].features.samples(X)
            else:
                centres = {"marginal": self._pool.targets, "normal": np.zeros((1, P))}[name]
                sample = np.broadcast_to(centres[:, None], (len(centres), len(X), P))
            if sample is None:
                raise ValueError("The pool has trees, but the model has no features of trees.")
            # Evenly spaced ones: trees are exchangeable, and targets are sorted.
            some = np.floor((np.arange(number) + 0.5) * len(sample) / number).astype(int)
            sample = sample[some] if self._y_ndim == 2 else sample[some, :, 0]
            parts.append(kernels(sample, self._pool.widths.get(name, 1.0), lattice))
        p = PredictiveMixture(parts, self._y_ndim - 1).affine(mean, scale)
        return p if self._pool.exponent == 1 else Recalibrated(p, self._pool.exponent)

    def _predictions(self, X: np.ndarray) -> Iterator[Predictive]:
        """Predictive distributions of checked inputs, in chunks of rows."""
        # All trees are evaluated, whatever num_samples.
        components = max(self.num_samples, NUM_TREES)
        rows = max(1, _CHUNK // (components * self._num_outputs))
        for start in range(0, len(X), rows):
            yield self._predict(X[start : start + rows])

    def _compare(
        self, X: ArrayLike, y: ArrayLike, value: Callable[[Predictive, Tensor], Tensor]
    ) -> np.ndarray:
        check_is_fitted(self)
        inputs, targets = self._check_pair(X, y, multi_output=True, y_numeric=True, reset=False)
        target = torch.as_tensor(np.array(targets))  # a copy: it may be read-only
        outputs = () if self._y_ndim == 1 else (self._num_outputs,)
        if not outputs and target.shape[1:] == (1,):
            target = target[:, 0]
        if target.shape[1:] != outputs:
            wanted = ", ".join(map(str, ("N", *outputs)))
            raise ValueError(
                f"y has shape {tuple(target.shape)}, but the model has targets of shape [{wanted}]."
            )
        found, start = [], 0
        for p in self._predictions(inputs):
            stop = start + len(p.mean)
            found.append(value(p, target[start:stop]))
            start = stop
        return torch.cat(found).numpy()

    def _column(self, values: np.ndarray) -> np.ndarray:
        return values[:, None] if self._one_column else values


def _logarithms(y: np.ndarray) -> np.ndarray:
    if not (y > 0).all():
        raise ValueError(
            f"target_transform='log' is for positive targets, but {int((y <= 0).sum())} of "
            f"{y.size} are not (the smallest is {y.min():g}): use target_transform=None, or leave "
            "them out."
        )
    return np.log(y)


def _is_frame(X: object) -> "TypeGuard[pd.DataFrame]":
    """Whether it is a data frame; without pandas, which may be missing."""
    return hasattr(X, "iloc")


def _scales(likelihood: _AsLikelihood) -> bool:
    """Whether targets can be standardised: real numbers, or those of a lattice."""
    return _is_real(likelihood) or issubclass(_kind(likelihood), Rounded)


def _is_real(likelihood: _AsLikelihood) -> bool:
    """Whether targets are any real numbers."""
    kind = _kind(likelihood)
    return kind.support is constraints.real and not kind.discrete


def _kind(likelihood: _AsLikelihood) -> type[Likelihood]:
    if isinstance(likelihood, str):
        likelihood = LIKELIHOODS.get(likelihood, HeteroscedasticGaussian)
    return likelihood if isinstance(likelihood, type) else type(likelihood)
