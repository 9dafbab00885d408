"""The configuration of a training run."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

import numpy as np
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_dgp._checks import check_integer, check_seed
from pyro_dgp.gp import LatentDGP
from pyro_dgp.gp.kernels import KERNELS
from pyro_dgp.gp.likelihoods import GaussianLikelihood, Likelihood, likelihood_for
from pyro_dgp.infer import DRegIWELBO, Frozen, NaturalGradient, PartiallyCollapsedIWELBO
from pyro_dgp.infer.loss import Loss
from pyro_dgp.infer.training.loop import annealed_adam, paper_optimizer

__all__ = ["LIKELIHOODS", "LOSSES", "SCHEDULES", "RunConfig"]

# Options that records of earlier versions have.
_RETIRED = ("encoder_optimizer", "encoder_clip_norm", "encoder_batch_size")
LOSSES = ("dreg", "reg", "vi")
#: Those that fit standardised targets.
LIKELIHOODS = ("gaussian", "heteroscedastic", "student_t", "rounded", "zero_inflated")


_STEPS = {
    "K": 50, "num_steps": 3000, "batch_size": 64, "lr": 0.005, "natural_lr": 0.0,
    "dtype": "float64",
}  # fmt: skip
#: Defaults of the options that depend on the schedule.
SCHEDULES = {
    "steps": _STEPS,
    "cosine": _STEPS,
    "fast": {
        "K": 3, "num_steps": 20_000, "batch_size": 200, "lr": 0.03, "natural_lr": 0.3,
        "dtype": "float32",
    },
}  # fmt: skip


#: What the values of an option of a type are in JSON.
_TYPES = {
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    bool: ("true or false", (bool,)),
    str: ("a string", (str,)),
}


#: Options that have no effect with some values of others.
_WITHOUT_EFFECT: dict[str, dict[tuple[str, ...], Callable[..., bool]]] = {
    "K": {
        ("loss",): lambda loss: loss == "vi",
        ("num_layers", "latent_dim"): lambda *numbers: numbers == (1, 0),  # nothing is sampled
    },
    "learned_qz": {("latent_dim",): lambda number: number == 0},
    "noise_variance": {("likelihood",): lambda name: name != "gaussian"},
    "noise_scale": {("likelihood",): lambda name: name != "heteroscedastic"},
    "lr_decay": {("schedule",): lambda name: name != "steps"},
    "lr_decay_steps": {("schedule",): lambda name: name != "steps"},
    "mixing": {("num_layers",): lambda number: number == 1},
}


def _one_of(choices: tuple[str, ...]) -> Any:
    """A field whose default is the first of its choices."""
    return field(default=choices[0], metadata={"choices": choices})


def _of_schedule(choices: tuple[str, ...] | None = None) -> Any:
    """A field whose default depends on the schedule."""
    return field(default=None, metadata={"choices": choices})


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run. The defaults are the paper's, with two exceptions.

    The paper has 300,000 steps, and natural gradients of step size 0.01 for q(u) of the last layer,
    where Adam is the default here. The schedule "fast" has other defaults, for runs of minutes:
    batches of 200 rows, 3 importance samples of each, and larger step sizes of Adam and of natural
    gradients, which fall to 0 within 20,000 steps in single precision. With
    ``dataclasses.replace``, another schedule keeps the values that these options have; None gives
    those of the schedule.

    :param str dataset: Name of the data set, one of :func:`~pyro_dgp.experiments.datasets.names`.
    :param int split: Number of the train-test split.
    :param int seed: Seed of initial values, batches and draws (the number of the split if not
        given).
    :param str loss: Loss: the bound with the doubly reparameterised gradient ("dreg") or the
        ordinary one ("reg"), or doubly stochastic VI ("vi", ``TraceMeanField_ELBO``).
    :param int K: Number of importance samples, 50 or, if "fast", 3; not used by "vi".
    :param int num_layers: Number of GP layers.
    :param int latent_dim: Dimension of z; 0 for a plain deep GP.
    :param bool learned_qz: Whether to learn q(z | x, y), or to fix it to the prior.
    :param int num_inducing: Number of inducing inputs per layer.
    :param str likelihood: Likelihood of the targets; "gaussian" has one noise variance.
    :param float noise_variance: Initial noise variance of the Gaussian likelihood.
    :param int frozen_noise_steps: Number of first steps in which the Gaussian likelihood keeps its
        noise variance. While the functions know little, the noise grows to that of a regression,
        and then no target needs z; a noise variance that cannot grow makes z explain the targets.
    :param float noise_scale: Scale of the noise function of "heteroscedastic", see
        :class:`~pyro_dgp.gp.likelihoods.HeteroscedasticGaussian`.
    :param str kernel: Kernel of all layers.
    :param int num_steps: Number of gradient steps, 3000 or, if "fast", 20,000.
    :param int batch_size: Number of rows per minibatch, 64 or, if "fast", 200.
    :param float lr: Initial learning rate of Adam, 0.005 or, if "fast", 0.03.
    :param float natural_lr: Initial step size of natural gradients for q(u) of the last layer, 0.01
        in the paper, 0.3 if "fast", at most 1; 0, the default otherwise, for Adam there, too.
    :param float lr_decay: Factor of both step sizes every ``lr_decay_steps`` steps.
    :param int lr_decay_steps: Number of steps between two decays.
    :param str schedule: Schedule of both step sizes: the paper's, "steps", with ``lr_decay``; or
        half a "cosine", for short runs (:func:`~pyro_dgp.infer.annealed_adam`), which is also that
        of "fast".
    :param str mixing: Mixing matrix of the hidden layers, "published" for that of the published
        numbers; see :meth:`~pyro_dgp.gp.LatentDGP.from_data`.
    :param str dtype: Dtype of data and parameters, float64 or, if "fast", float32.
    :param str device: Torch device.
    :param bool fit_latent_prior: Whether predictions have a prior of z that is fitted to the data
        after training (:meth:`~pyro_dgp.LatentDGP.fit_latent_prior`), in place of the paper's.
    :param int num_test_samples: Number of samples per test row.
    :param int num_evaluations: Number of estimates of the test log-likelihood; ten in the paper.
    :raises TypeError: If a value has another type.
    :raises ValueError: If a value is out of range, or values do not go together.
    """

    dataset: str
    split: int = 0
    seed: int | None = None
    loss: str = _one_of(LOSSES)
    K: int = _of_schedule()
    num_layers: int = 2
    latent_dim: int = 1
    learned_qz: bool = True
    num_inducing: int = 128
    likelihood: str = _one_of(LIKELIHOODS)
    noise_variance: float = 0.01
    frozen_noise_steps: int = 0
    noise_scale: float = 0.25
    kernel: str = _one_of(tuple(KERNELS))
    num_steps: int = _of_schedule()
    batch_size: int = _of_schedule()
    lr: float = _of_schedule()
    natural_lr: float = _of_schedule()
    lr_decay: float = 0.98
    lr_decay_steps: int = 1000
    schedule: str = _one_of(tuple(SCHEDULES))
    mixing: str = _one_of(("published", "principal"))
    dtype: str = _of_schedule(("float64", "float32"))
    device: str = "cpu"
    fit_latent_prior: bool = False
    num_test_samples: int = 10_000
    num_evaluations: int = 1

    def __post_init__(self) -> None:
        self._check_types()
        for name, value in SCHEDULES.get(self.schedule, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for f in fields(self):
            value, choices = getattr(self, f.name), f.metadata.get("choices")
            if choices and value not in choices:
                raise ValueError(f"{f.name} must be one of {', '.join(choices)}, not '{value}'.")
        for name, minimum in (
            ("K", 1),
            ("num_layers", 1),
            ("latent_dim", 0),
            ("num_inducing", 1),
            ("num_steps", 0),
            ("batch_size", 1),
            ("lr_decay_steps", 1),
            ("frozen_noise_steps", 0),
            ("num_test_samples", 1),
            ("num_evaluations", 1),
        ):
            check_integer(name, getattr(self, name), minimum)
        if self.seed is not None:
            check_seed("seed", self.seed)
        for name in ("noise_variance", "noise_scale", "lr_decay"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be positive and finite, but it is {getattr(self, name)}."
                )
        for name in ("lr", "natural_lr"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be finite and at least 0, but it is {getattr(self, name)}."
                )
        if self.natural_lr > 1:
            raise ValueError(
                "natural_lr must be at most 1, a step that solves a conjugate model at once, but "
                f"it is {self.natural_lr}."
            )
        if self.frozen_noise_steps and self.likelihood != "gaussian":
            raise ValueError(
                "frozen_noise_steps needs the noise variance of likelihood='gaussian', but the "
                f"likelihood is '{self.likelihood}'."
            )
        if self.fit_latent_prior and not self.latent_dim:
            raise ValueError("fit_latent_prior needs a latent input: latent_dim must not be 0.")

    def _check_types(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.generic):  # which JSON does not have
                object.__setattr__(self, f.name, value := value.item())
            if value is None and f.default is None:  # it depends on other options
                continue
            what, types = _TYPES[int if hints[f.name] == int | None else hints[f.name]]
            if type(value) not in types:
                shown = json.dumps(value, default=repr)
                raise TypeError(f"{f.name} must be {what}, but it is {shown}")

    @classmethod
    def from_dict(cls, options: dict) -> "RunConfig":
        """Of options by their names, such as a record has; those that are no more are left out.

        :raises TypeError: If there is another name, or no ``dataset``, or a value of another type.
        :raises ValueError: If a value is out of range.
        """
        options = {name: value for name, value in options.items() if name not in _RETIRED}
        hints = get_type_hints(cls)
        for name in options:
            if name not in hints:
                raise TypeError(f"there is no option {name!r}; there are {', '.join(hints)}")
        return cls(**options)

    def check_effect(self, names: Iterable[str]) -> None:
        """Checks options that a user has chosen; those of a record are all there, needed or not.

        :param names: Names of the options.
        :raises ValueError: If one of them has no effect, because of others.
        """
        for name in names:
            for others, without_effect in _WITHOUT_EFFECT.get(name, {}).items():
                values = {other: getattr(self, other) for other in others}
                if without_effect(*values.values()):
                    told = " and ".join(f"{other}={value!r}" for other, value in values.items())
                    raise ValueError(f"{name} has no effect with {told}: leave it out.")

    @property
    def name(self) -> str:
        """A file name's stem that tells runs apart: split, loss and K, and what is no default."""
        stem = f"{self.dataset}_split{self.split}_{self.loss}_K{self.K}"
        defaults = {f.name: f.default for f in fields(self)} | SCHEDULES[self.schedule]
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name not in ("dataset", "split", "loss", "K") and value != defaults[f.name]:
                stem += f"_{f.name}={value}"
        return stem

    @property
    def model_name(self) -> str:
        """:attr:`name` without what concerns evaluation alone: one model may be evaluated twice."""
        evaluation = ("fit_latent_prior", "num_test_samples", "num_evaluations")
        defaults = {f.name: f.default for f in fields(self) if f.name in evaluation}
        return replace(self, **defaults).name

    def optimizer(self, dgp: LatentDGP) -> PyroOptim:
        """Adam with the schedule, and natural gradients for the last layer if there are to be."""
        if self.schedule == "steps":
            adam = paper_optimizer(self.lr, self.lr_decay, self.lr_decay_steps)
            schedule = {"decay": self.lr_decay, "decay_steps": self.lr_decay_steps}
        else:
            adam = annealed_adam(self.lr, self.num_steps)
            schedule = {"annealing_steps": max(1, self.num_steps)}
        if self.frozen_noise_steps:
            adam = Frozen(adam, dgp.likelihood.parameters(), self.frozen_noise_steps)
        if not self.natural_lr:
            return adam
        return NaturalGradient(dgp.layers[-1], adam, self.natural_lr, **schedule)

    def new_likelihood(self, y: Tensor) -> Likelihood:
        """The likelihood before training, for training targets."""
        if self.likelihood == "gaussian":
            return GaussianLikelihood(torch.as_tensor(self.noise_variance, dtype=y.dtype))
        likelihood = likelihood_for(y, self.likelihood)
        if self.likelihood == "heteroscedastic":
            likelihood.noise_scale = self.noise_scale
        return likelihood

    def elbo(self) -> Loss:
        """The loss that is minimised."""
        if self.loss == "vi":
            return TraceMeanField_ELBO()
        sampled = (self.num_layers, self.latent_dim) != (1, 0)
        kind = {"dreg": DRegIWELBO, "reg": PartiallyCollapsedIWELBO}[self.loss]
        return kind(K=self.K if sampled else 1)
