"""Inference: bounds and their gradients for any Pyro model, independent of Gaussian processes."""

from pyro_dgp.infer.bounds import Bound
from pyro_dgp.infer.elbo import VIMCOIWELBO, DRegIWELBO, GDRegIWELBO, PartiallyCollapsedIWELBO
from pyro_dgp.infer.snr.profiler import SNRProfile, SNRProfiler
from pyro_dgp.infer.snr.sweeps import SNRPoint, SNRSweep, snr_sweep
from pyro_dgp.infer.training.callbacks import EarlyStopping, SNRAlongTraining, tensorboard
from pyro_dgp.infer.training.checkpoint import parameters_of
from pyro_dgp.infer.training.guard import NonFiniteError
from pyro_dgp.infer.training.loop import TrainingHistory, annealed_adam, fit, paper_optimizer
from pyro_dgp.infer.training.natural_gradient import NaturalGradient
from pyro_dgp.infer.training.optim import Frozen, ScheduledAdam

__all__ = [
    "VIMCOIWELBO",
    "Bound",
    "DRegIWELBO",
    "EarlyStopping",
    "Frozen",
    "GDRegIWELBO",
    "NaturalGradient",
    "NonFiniteError",
    "PartiallyCollapsedIWELBO",
    "SNRAlongTraining",
    "SNRPoint",
    "SNRProfile",
    "SNRProfiler",
    "SNRSweep",
    "ScheduledAdam",
    "TrainingHistory",
    "annealed_adam",
    "fit",
    "paper_optimizer",
    "parameters_of",
    "snr_sweep",
    "tensorboard",
]
