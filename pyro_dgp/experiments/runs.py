"""One training run: a configuration in, a JSON record and a checkpoint out."""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_dgp._checks import check_device
from pyro_dgp._files import write_json
from pyro_dgp.experiments import datasets
from pyro_dgp.experiments.config import RunConfig
from pyro_dgp.experiments.metrics import bound, evaluate, point_masses
from pyro_dgp.gp import LatentDGP
from pyro_dgp.infer import NonFiniteError, TrainingHistory, fit

__all__ = [
    "checkpoint_path",
    "failure",
    "is_complete",
    "load_data",
    "load_record",
    "record_path",
    "run",
    "train",
]

_FORMAT = 1


def train(
    config: RunConfig,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    callback: Callable[[int, float], None] | None = None,
    checkpoint_interval: float = 30.0,
    until: int | None = None,
) -> tuple[LatentDGP, TrainingHistory]:
    """Trains a model.

    :param RunConfig config: The configuration.
    :param checkpoint: Checkpoint, see :func:`~pyro_dgp.infer.fit`; if it has all steps, it is
        loaded.
    :param bool progress: Whether to show a progress bar.
    :param callback: Function called after every step, see :func:`~pyro_dgp.infer.fit`.
    :param float checkpoint_interval: Seconds between two checkpoints.
    :param int until: Number of steps after which to stop; None for all that the schedule has.
    :raises ValueError: If the data set is unknown or not the right one, or an option out of range.
    :raises FileNotFoundError: If the data set is missing.
    """
    X, y, _, _ = load_data(config)
    seed = config.split if config.seed is None else config.seed
    pyro.set_rng_seed(seed)
    dgp = LatentDGP.from_data(
        X,
        y,
        num_layers=config.num_layers,
        latent_dim=config.latent_dim,
        num_inducing=config.num_inducing,
        likelihood=config.new_likelihood(y),
        kernel=config.kernel,
        encoder_widths=(20, 20) if config.learned_qz else None,
        mixing=config.mixing,
    )
    history = fit(
        dgp.model,
        dgp.guide,
        config.elbo(),
        (X, y),
        num_steps=config.num_steps if until is None else until,
        batch_size=config.batch_size,
        optim=config.optimizer(dgp),
        seed=seed,
        progress=progress,
        callback=callback,
        checkpoint=checkpoint,
        checkpoint_interval=checkpoint_interval,
    )
    return dgp, history


def load_data(config: RunConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X and y for training and for testing, in the dtype and on the device of a run.

    :raises ValueError: If the data set is unknown or not the right one, or there is no such device.
    :raises FileNotFoundError: If the data set is missing.
    """
    data = datasets.load(config.dataset, config.split)
    check_device(config.device)
    dtype = getattr(torch, config.dtype)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, dtype=dtype, device=config.device)

    return tensor(data.X_train), tensor(data.y_train), tensor(data.X_test), tensor(data.y_test)


def checkpoint_path(config: RunConfig, folder: str | Path, until: int | None = None) -> Path:
    """File to which :func:`run` saves the model, or one for the model of the first steps."""
    return Path(folder) / f"{config.model_name}{'' if until is None else f'_at{until}'}.pt"


def record_path(config: RunConfig, folder: str | Path) -> Path:
    """File to which :func:`run` writes the record."""
    return Path(folder) / f"{config.name}.json"


def load_record(path: str | Path) -> tuple[RunConfig, dict]:
    """A record, and the configuration of its run.

    :raises ValueError: If the file is no record of :func:`run`.
    :raises FileNotFoundError: If there is no such file.
    """
    try:
        record = json.loads(Path(path).read_text())
        return RunConfig.from_dict(record["config"]), record
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of a run.") from error


def run(
    config: RunConfig,
    folder: str | Path | None = None,
    progress: bool = True,
    checkpoint_interval: float = 30.0,
) -> tuple[dict, LatentDGP]:
    """Trains and evaluates a model.

    :param RunConfig config: The configuration.
    :param folder: Folder for the record and a checkpoint, from which an interrupted run continues
        with the same result. If both exist, the run is only loaded.
    :param bool progress: Whether to show a progress bar.
    :param float checkpoint_interval: Seconds between two checkpoints.
    :returns: The record (plain numbers, strings, lists and dicts) and the trained model. After
        Ctrl-C there is no evaluation: ``interrupted`` is set, and the record is not written.
    :raises ValueError: If the data set is unknown or not the right one, or an option out of range.
    :raises FileNotFoundError: If the data set is missing.
    :raises ArithmeticError: If training diverged; a record with the error is written.
    """
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the results.")
    checkpoint = None if folder is None else checkpoint_path(config, folder)
    path = None if folder is None else record_path(config, folder)
    try:
        dgp, history = train(config, checkpoint, progress, checkpoint_interval=checkpoint_interval)
    except ArithmeticError as error:
        if path is not None:
            done = {"steps_done": error.step} if isinstance(error, NonFiniteError) else {}
            write_json(failure(config, error) | done, path)
        raise
    if history.interrupted:
        steps = len(history.losses)
        return {"config": asdict(config), "steps_done": steps, "interrupted": True}, dgp
    if config.fit_latent_prior:
        X, y, _, _ = load_data(config)
        dgp.fit_latent_prior(X, y, generator=torch.Generator(X.device).manual_seed(0))
    if path is not None and is_complete(path):
        return load_record(path)[1], dgp
    record = _record(config, dgp, history)
    if path is not None:
        write_json(record, path)
    return record, dgp


def is_complete(path: str | Path) -> bool:
    """Whether there is the record of a successful run of this version.

    :raises ValueError: If the file is something else.
    """
    return Path(path).exists() and load_record(path)[1].get("format") == _FORMAT


def failure(config: RunConfig, error: Exception) -> dict:
    """The record of a failed run."""
    return {"config": asdict(config), "error": f"{type(error).__name__}: {error}"}


def _record(config: RunConfig, dgp: LatentDGP, history: TrainingHistory) -> dict:
    X, y, X_test, y_test = load_data(config)
    return {
        "format": _FORMAT,
        "config": asdict(config),
        "num_train": len(X),
        "num_test": len(X_test),
        "steps_done": len(history.losses),
        "seconds": history.seconds,
        "seconds_per_step": history.seconds / max(1, len(history.losses)),
        "interrupted": False,
        "history": _thinned(history),
        "train_bound": bound(dgp, config.elbo(), X, y),
        "noise_variance": (
            dgp.likelihood.variance.item() if config.likelihood == "gaussian" else None
        ),
        "kl": [layer.kl().item() for layer in dgp.layers if not layer.latent_dim],
        **evaluate(dgp, X_test, y_test, config.num_test_samples, config.num_evaluations),
        "point_masses": point_masses(torch.cat([y, y_test])),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pyro": pyro.__version__,
        },
    }


def _thinned(history: TrainingHistory, window: int = 100) -> dict[str, list]:
    """Means of the loss over windows of steps, named by the step after the window."""
    starts = range(0, len(history.losses), window)
    windows = [history.losses[start : start + window] for start in starts]
    return {
        "step": [start + len(w) for start, w in zip(starts, windows, strict=True)],
        "loss": [float(np.mean(w)) for w in windows],
    }
