"""What a study of the paper is: its size, its computation, its table and its figure.

A study computes results, which go to files as they come; a table and a figure are made of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyro_dgp._checks import check_integer
from pyro_dgp.experiments import datasets
from pyro_dgp.experiments.runs import RunConfig, checkpoint_path, load_data, train
from pyro_dgp.gp import LatentDGP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Size", "Study", "demo_config", "some_data", "some_rows", "trained"]


@dataclass(frozen=True)
class Size:
    """How large a study is.

    :param tuple datasets: Names of data sets.
    :param tuple layers: Depths of the models.
    :param int steps: Training steps of each model, with DReG.
    :param float lr: Adam's initial learning rate (the data set's own if there is none).
    :param str schedule: Of the learning rate: the paper's, "steps", or half a "cosine", for few
        steps (the data set's own if there is none).
    :param int train_K: Importance samples in training.
    :param int points: Training points to average over.
    :param int draws: Gradients per estimate.
    :param tuple samples: Importance samples to profile.
    :param int seeds: Models of each kind, trained from other initial values.
    :param int splits: Train-test splits, from the first one on, in studies of predictions.
    :param int test_samples: Samples per test row.
    :param int evaluations: Estimates of a model's test log-likelihood.
    :param int jobs: Runs at a time, in studies of many splits; -1 for one per core.
    :param str dtype: Of data and parameters.
    """

    datasets: tuple[str, ...] = ("demo",)
    layers: tuple[int, ...] = (2,)
    steps: int = 2000
    lr: float | None = None
    schedule: str | None = field(default=None, metadata={"choices": ("steps", "cosine")})
    train_K: int = 10
    points: int = 10
    draws: int = 1000
    samples: tuple[int, ...] = (1, 10, 100)
    seeds: int = 1
    splits: int = 20
    test_samples: int = 10_000
    evaluations: int = 10
    jobs: int = 1
    dtype: str = field(default="float64", metadata={"choices": ("float64", "float32")})

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 0), ("train_K", 1), ("points", 1), ("draws", 20), ("seeds", 1),
            ("splits", 1), ("test_samples", 1), ("evaluations", 1), ("jobs", -1),
        ):  # fmt: skip
            check_integer(name, getattr(self, name), least)
        for name in ("layers", "samples"):
            for number in getattr(self, name):
                check_integer(name, number, 1)
        for name in self.datasets:
            if name not in datasets.names():
                raise ValueError(
                    f"Unknown data set '{name}': datasets takes {', '.join(datasets.names())}."
                )

    def only(self, name: str) -> Any:
        """The one value of an option that can have several.

        :raises ValueError: If it has several.
        """
        values = getattr(self, name)
        if len(values) != 1:
            raise ValueError(f"{name} takes one value here, not {len(values)}.")
        return values[0]

    def config(self, dataset: str, num_layers: int, seed: int = 0) -> RunConfig:
        """A model to train."""
        if dataset.startswith("demo"):
            config = demo_config(self.steps, num_layers, self.train_K)
        else:
            config = RunConfig(dataset, K=self.train_K, num_layers=num_layers, num_steps=self.steps)
        own = {"lr": self.lr, "schedule": self.schedule}
        own = {name: value for name, value in own.items() if value is not None}
        return replace(config, dataset=dataset, seed=seed or None, dtype=self.dtype, **own)


def demo_config(num_steps: int, num_layers: int = 2, K: int = 10, lr: float = 0.02) -> RunConfig:
    """A configuration that learns the demo data in few steps."""
    return RunConfig(
        "demo", K=K, num_layers=num_layers, num_inducing=50, num_steps=num_steps,
        batch_size=256, lr=lr, lr_decay=0.93, lr_decay_steps=max(1, num_steps // 30),
        mixing="principal", num_test_samples=2000,
    )  # fmt: skip


@dataclass(frozen=True)
class Study:
    """One of the paper's figures.

    :param Size size: Its size unless told otherwise.
    :param compute: ``compute(size, folder, progress)`` gives the results.
    :param table: ``table(results)`` gives lines of text.
    :param draw: ``draw(results)`` gives a Matplotlib figure; None if there is none.
    :param files: ``files(results)`` gives more texts, by the suffix of their files.
    """

    size: Size = field(repr=False)
    compute: Callable[[Size, Path, bool], Any]
    table: Callable[[Any], list[str]]
    draw: Callable[[Any], "Figure"] | None = None
    files: Callable[[Any], dict[str, str]] = lambda results: {}


def trained(config: RunConfig, folder: Path, progress: bool) -> LatentDGP:
    """The model of a configuration, trained unless the folder has it.

    :raises KeyboardInterrupt: After Ctrl-C, once the steps done are saved.
    """
    dgp, history = train(config, checkpoint_path(config, folder), progress)
    if history.interrupted:
        raise KeyboardInterrupt
    return dgp


def some_data(config: RunConfig, number: int) -> tuple[list[int], Tensor, Tensor]:
    """Rows, inputs and targets of training points, see :func:`some_rows`."""
    X, y, _, _ = load_data(config)
    rows = some_rows(len(X), number)
    return rows, X[rows], y[rows]


def some_rows(num_rows: int, number: int) -> list[int]:
    """Rows chosen at random; a larger number keeps those of a smaller one."""
    return np.random.default_rng(0).permutation(num_rows)[:number].tolist()
