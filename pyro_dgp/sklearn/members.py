"""A member of an ensemble: a deep GP on standardised inputs and features of them."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from sklearn.preprocessing import StandardScaler

from pyro_dgp.gp import LatentDGP, PredictiveMixture
from pyro_dgp.gp.likelihoods import Likelihood
from pyro_dgp.infer import DRegIWELBO, TrainingHistory, fit
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.training.callbacks import EarlyStopping
from pyro_dgp.infer.training.loop import annealed_adam
from pyro_dgp.sklearn.features import Features, JointFeatures, features_of
from pyro_dgp.sklearn.scaling import mean_and_scale, numbers, scaler_of

__all__ = ["Fold", "Member", "Recipe", "isolated"]

# Number of held-out scores in training, and of samples per score.
_NUM_SCORES = 50
_SCORE_SAMPLES = 200
# Most rows to which the prior of z is fitted.
_MOST_PRIOR_ROWS = 2000


@dataclass(frozen=True)
class Fold:
    """Rows of data.

    :param numpy.ndarray X: Standardised inputs, [N, D].
    :param numpy.ndarray y: Targets on the scale of training, [N] or [N, P].
    :param weights: Weights of the rows, [N], or None.
    """

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None

    def __getitem__(self, rows: np.ndarray) -> "Fold":
        weights = None if self.weights is None else self.weights[rows]
        return Fold(self.X[rows], self.y[rows], weights)


@dataclass(frozen=True)
class Recipe:
    """The settings of members, the same for all members of a model.

    :param dict model: Arguments of :meth:`~pyro_dgp.LatentDGP.from_data`.
    :param Likelihood likelihood: The initial likelihood, which is copied.
    :param sources: Sources of features, see :func:`~pyro_dgp.sklearn.features.features_of`.
    :param columns: A function of targets and likelihood that gives targets as numbers, [N, Q].
    :param score: A score of predictive distributions and targets; smaller is better.
    :param int K: Number of importance samples.
    :param int batch_size: Number of rows per step.
    :param float lr: Largest learning rate.
    :param int patience: Number of scores without an improvement after which training ends, or None.
    :param str dtype: Dtype, "float32" or "float64".
    :param str device: Torch device.
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
        """An array as a tensor of this dtype on this device."""
        return torch.as_tensor(array, dtype=getattr(torch, self.dtype), device=self.device)

    def new_dgp(self, A: torch.Tensor, y: torch.Tensor, num_rows: int) -> LatentDGP:
        """An untrained deep GP.

        :param torch.Tensor A: Inputs and features, [N, D + F].
        :param torch.Tensor y: Targets, [N] or [N, P].
        :param int num_rows: Number of training rows.
        """
        options = {**self.model, "num_inducing": min(self.model["num_inducing"], num_rows)}
        return LatentDGP.from_data(A, y, likelihood=copy.deepcopy(self.likelihood), **options)


@dataclass
class Member:
    """A deep GP with its features.

    :param Features features: Features of standardised inputs.
    :param StandardScaler scaler: Scaler of the features; None without features.
    :param LatentDGP dgp: The deep GP on inputs and features.
    :param TrainingHistory history: The training history.
    :param list steps: Numbers of steps at which held-out rows were scored.
    :param list scores: Mean scores of held-out rows.
    """

    features: Features
    scaler: StandardScaler | None
    dgp: LatentDGP
    history: TrainingHistory = field(default_factory=TrainingHistory)
    steps: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def num_features(self) -> int:
        """Number F of features."""
        return 0 if self.scaler is None else len(mean_and_scale(self.scaler)[0])

    @classmethod
    def prepared(
        cls, recipe: Recipe, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple["Member", torch.Tensor]:
        """An untrained member, and the inputs and features of the training rows, [N, D + F].

        :param Recipe recipe: The settings.
        :param numpy.ndarray X: Standardised inputs, [N, D].
        :param numpy.ndarray y: Standardised targets, [N] or [N, P].
        :param weights: Weights of the rows, positive, [N], or None.
        :param int seed: Seed of features and initial values.
        """
        columns = recipe.columns(y, recipe.likelihood)
        features, values = features_of(recipe.sources, X, columns, weights, seed)
        scaler = None
        if values.shape[1]:
            scaler = StandardScaler()
            values = scaler.fit_transform(values)
        A = recipe.tensor(np.concatenate([X, values], 1))
        with isolated(seed):
            dgp = recipe.new_dgp(A, recipe.tensor(y), len(A))
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
        tick: Callable[[int], bool] | None = None,
        checkpoint: Path | None = None,
    ) -> "Member":
        """
        :param Recipe recipe: The settings.
        :param data: Inputs and features from :meth:`prepared`, and targets.
        :param weights: Weights of the rows, positive, [N], or None.
        :param int seed: Seed of training.
        :param int num_steps: Number of steps.
        :param Fold held_out: Rows whose score selects the best parameters; None for the last ones.
        :param tick: A function called after every step with the number of steps done; True ends
            training.
        :param checkpoint: File from which an interrupted training continues, or None.
        :returns: The member itself.
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
                callback=_Callback(self._description(), stopping, tick),
                checkpoint=checkpoint,
            )
        self.steps, self.scores = [], []
        if stopping is not None:
            stopping.restore_best()
            self.steps, self.scores = stopping.steps, stopping.scores
        return self

    def _description(self) -> str:
        """The parts of the deep GP, such as kernels, and the settings of its likelihood."""
        return f"{self.dgp} {self.dgp.likelihood.settings()}"

    def fit_latent_prior(
        self, A: torch.Tensor, y: torch.Tensor, weights: np.ndarray | None, seed: int
    ) -> None:
        """Fits the prior of z to some training rows, after training."""
        rows = np.random.default_rng(seed).permutation(len(A))[:_MOST_PRIOR_ROWS]
        given = {} if weights is None else {"weight": torch.as_tensor(weights[rows]).to(A)}
        generator = torch.Generator(A.device).manual_seed(seed)
        self.dgp.fit_latent_prior(A[rows], y[rows], generator=generator, **given)

    def predict(
        self,
        X: np.ndarray,
        num_samples: int,
        generator: torch.Generator,
        z: torch.Tensor | None = None,
    ) -> PredictiveMixture:
        """The predictive distribution on the standardised scale.

        :param numpy.ndarray X: Standardised inputs, [N, D].
        :param int num_samples: Number of mixture components.
        :param torch.Generator generator: Source of the draws, which do not depend on the rows.
        :param torch.Tensor z: A fixed latent input, [latent_dim], or None.
        """
        like = next(self.dgp.parameters())
        A = self.features.transform(X)
        A = np.concatenate([X, A if self.scaler is None else self.scaler.transform(A)], 1)
        A = torch.as_tensor(A, dtype=like.dtype, device=like.device)
        p = self.dgp.predict(A, num_samples, shared_draws=True, z=z, generator=generator)
        return p.drawn(generator)

    def state(self) -> dict[str, Any]:
        """What :meth:`from_state` needs, as tensors and plain data; not the history."""
        return {
            "features": self.features.state(),
            "scaler": {} if self.scaler is None else numbers(self.scaler),
            "state": self.dgp.state_dict(),
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        recipe: Recipe,
        num_inputs: int,
        num_outputs: int,
        num_rows: int,
    ) -> "Member":
        """A member from what :meth:`state` gave.

        :param dict state: The state.
        :param Recipe recipe: The settings of its training, with the trained likelihood's structure.
        :param int num_inputs: Number D of inputs.
        :param int num_outputs: Number P of targets.
        :param int num_rows: Number of training rows.
        """
        features = JointFeatures.from_state(state["features"])
        scaler = scaler_of(**state["scaler"]) if state["scaler"] else None
        # Any data of the right shape that the likelihood accepts give a model of this structure.
        A = recipe.tensor(np.zeros((2, num_inputs + len(state["scaler"].get("mean", ())))))
        f = torch.zeros(2, recipe.likelihood.num_functions * num_outputs)
        with isolated(0):
            y = recipe.likelihood.predictive(f, f + 1).sample().to(A.dtype)
            dgp = recipe.new_dgp(A, y, num_rows)
            for name, p in dgp.named_parameters():
                # Noise variances and intercepts may be shared, or one per output.
                p.data = p.new_empty(state["state"][name].shape)
            dgp.load_state_dict(state["state"])
        dgp.num_data = num_rows
        return cls(features, scaler, dgp)

    def _held_out_score(self, rows: Fold, recipe: Recipe, seed: int) -> float:
        generator = torch.Generator(recipe.device).manual_seed(seed)
        p = self.predict(rows.X, _SCORE_SAMPLES, generator)
        score = recipe.score(p, recipe.tensor(rows.y)).reshape(len(rows.y), -1).mean(1)
        return float(np.average(score.cpu().numpy(), weights=rows.weights))


class _Callback:
    """A callback of early stopping, whose state is kept in checkpoints, and of ticks.

    Checkpoints also keep the description of the model's parts, such as kernels, because other parts
    may have parameters of the same shapes.
    """

    def __init__(
        self, model: str, stopping: EarlyStopping | None, tick: Callable[[int], bool] | None
    ) -> None:
        self.model, self.stopping, self.tick = model, stopping, tick

    def __call__(self, step: int, loss: float) -> bool:
        ended = self.stopping is not None and self.stopping(step, loss)
        return (self.tick is not None and self.tick(step + 1)) or ended

    def state_dict(self) -> dict:
        stopping = None if self.stopping is None else self.stopping.state_dict()
        return {"model": self.model, "stopping": stopping}

    def load_state_dict(self, state: dict) -> None:
        if state["model"] != self.model:
            raise ValueError(
                "checkpoint is of a model with another kernel or likelihood. Remove it, or use "
                "another file name."
            )
        if self.stopping is not None and state["stopping"] is not None:
            self.stopping.load_state_dict(state["stopping"])


# Pyro's handlers and parameters, and the random state, are shared by all threads.
_ALONE = threading.RLock()


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Leaves Pyro's parameters and the random state outside unchanged; one thread at a time."""
    with _ALONE, untouched_random_state(), pyro.get_param_store().scope():
        pyro.set_rng_seed(seed)
        yield
