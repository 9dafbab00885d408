"""A deep GP on standardised inputs and features of them: what is trained, and what predicts."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyro
import torch
from sklearn.preprocessing import StandardScaler

from pyro_dgp.gp import LatentDGP, PredictiveMixture
from pyro_dgp.gp.likelihoods import Likelihood
from pyro_dgp.infer import DRegIWELBO, TrainingHistory, fit
from pyro_dgp.infer.callbacks import EarlyStopping
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.training import annealed_adam
from pyro_dgp.sklearn.features import Features, features_of
from pyro_dgp.sklearn.scaling import mean_and_scale

__all__ = ["Fold", "Member", "Recipe", "isolated"]

# Held-out scores in training, and the samples that each is made of.
_NUM_SCORES = 50
_SCORE_SAMPLES = 200


@dataclass(frozen=True)
class Fold:
    """Rows that train: standardised X [N, D], y [N] or [N, P], and weights [N] or None."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None

    def __getitem__(self, rows: np.ndarray) -> "Fold":
        weights = None if self.weights is None else self.weights[rows]
        return Fold(self.X[rows], self.y[rows], weights)


@dataclass(frozen=True)
class Recipe:
    """How a member is made; the same for all of a model.

    :param dict model: Arguments of :meth:`~pyro_dgp.LatentDGP.from_data`.
    :param Likelihood likelihood: As training starts; it is copied.
    :param sources: See :func:`~pyro_dgp.sklearn.features.features_of`.
    :param columns: Of targets and the likelihood: targets as numbers, [N, Q].
    :param score: Of predictive distributions and targets; smaller is better.
    """

    model: dict
    likelihood: Likelihood
    sources: Sequence
    columns: Callable[[np.ndarray, Likelihood], np.ndarray]
    score: Callable[[PredictiveMixture, torch.Tensor], torch.Tensor]
    K: int
    batch_size: int
    lr: float
    patience: int | None
    dtype: str
    device: str

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=getattr(torch, self.dtype), device=self.device)

    def new_dgp(self, A: torch.Tensor, y: torch.Tensor) -> LatentDGP:
        options = {**self.model, "num_inducing": min(self.model["num_inducing"], len(A))}
        return LatentDGP.from_data(A, y, likelihood=copy.deepcopy(self.likelihood), **options)


@dataclass
class Member:
    """A trained deep GP with the features that it stands on.

    :param Features features: Of standardised inputs.
    :param StandardScaler scaler: Of the features; None without.
    :param LatentDGP dgp: On inputs and features.
    """

    features: Features
    scaler: StandardScaler | None
    dgp: LatentDGP
    history: TrainingHistory = field(default_factory=TrainingHistory)
    steps: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def num_features(self) -> int:
        return 0 if self.scaler is None else len(mean_and_scale(self.scaler)[0])

    @classmethod
    def prepared(
        cls, recipe: Recipe, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["Member", torch.Tensor]:
        """Features and initial values, and the inputs that training takes, [N, D + F].

        :param numpy.ndarray X: Standardised, [N, D].
        :param numpy.ndarray y: Standardised, [N] or [N, P].
        :param weights: Positive, [N], or None.
        """
        columns = recipe.columns(y, recipe.likelihood)
        features, values = features_of(recipe.sources, X, columns, weights, seed)
        scaler = None
        if values.shape[1]:
            scaler = StandardScaler()
            values = scaler.fit_transform(values)
        A = recipe.tensor(np.concatenate([X, values], 1))
        with isolated(seed):
            dgp = recipe.new_dgp(A, recipe.tensor(y))
        return cls(features, scaler, dgp), A

    def train(
        self,
        recipe: Recipe,
        data: tuple[torch.Tensor, torch.Tensor],
        weights: np.ndarray | None,
        seed: int,
        num_steps: int,
        *,
        held_out: Fold | None = None,
        tick: Callable[[], bool] | None = None,
        checkpoint: Path | None = None,
    ) -> "Member":
        """
        :param data: Inputs as :meth:`prepared` gives them, and targets.
        :param Fold held_out: Rows by whose score the best parameters are kept.
        :param tick: Called after every step; True ends training.
        """
        stopping = None
        if held_out is not None:
            stopping = EarlyStopping(
                self.dgp,
                lambda: self._held_out_score(held_out, recipe, seed),
                every=max(1, num_steps // _NUM_SCORES),
                patience=recipe.patience,
            )
        with isolated(seed):
            self.history = fit(
                self.dgp.model,
                self.dgp.guide,
                DRegIWELBO(K=recipe.K),
                data,
                num_steps=num_steps,
                batch_size=recipe.batch_size,
                optim=annealed_adam(recipe.lr, num_steps),
                seed=seed,
                weights=None if weights is None else torch.as_tensor(weights),
                progress=False,
                callback=_Callback(stopping, tick),
                checkpoint=checkpoint,
            )
        self.steps, self.scores = [], []
        if stopping is not None:
            stopping.restore_best()
            self.steps, self.scores = stopping.steps, stopping.scores
        return self

    def predict(
        self,
        X: np.ndarray,
        num_samples: int,
        generator: torch.Generator,
        z: torch.Tensor | None = None,
    ) -> PredictiveMixture:
        """Of standardised inputs, [N, D], on the standardised scale.

        :param generator: The same draws for the same seed, whatever the rows.
        """
        like = next(self.dgp.parameters())
        A = self.features.transform(X)
        A = np.concatenate([X, A if self.scaler is None else self.scaler.transform(A)], 1)
        A = torch.as_tensor(A, dtype=like.dtype, device=like.device)
        p = self.dgp.predict(A, num_samples, shared_draws=True, z=z, generator=generator)
        return p.drawn(generator)

    def _held_out_score(self, rows: Fold, recipe: Recipe, seed: int) -> float:
        generator = torch.Generator(recipe.device).manual_seed(seed)
        p = self.predict(rows.X, _SCORE_SAMPLES, generator)
        score = recipe.score(p, recipe.tensor(rows.y)).reshape(len(rows.y), -1).mean(1)
        return float(np.average(score.cpu().numpy(), weights=rows.weights))


class _Callback:
    """Early stopping, whose state a checkpoint keeps, and a count of steps."""

    def __init__(self, stopping: EarlyStopping | None, tick: Callable[[], bool] | None) -> None:
        self.stopping, self.tick = stopping, tick

    def __call__(self, step: int, loss: float) -> bool:
        ended = self.stopping is not None and self.stopping(step, loss)
        return (self.tick is not None and self.tick()) or ended

    def state_dict(self) -> dict | None:
        return None if self.stopping is None else self.stopping.state_dict()

    def load_state_dict(self, state: dict | None) -> None:
        if self.stopping is not None and state is not None:
            self.stopping.load_state_dict(state)


# Pyro's handlers and parameters, and the random state, are of all threads together.
_ALONE = threading.RLock()


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Neither Pyro's parameters nor the random state outside are touched; one thread at a time."""
    with _ALONE, untouched_random_state(), pyro.get_param_store().scope():
        pyro.set_rng_seed(seed)
        yield
