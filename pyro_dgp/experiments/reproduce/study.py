"""A study of the paper: size, computation, table and figure.

A study computes results, which are saved to files as they are computed, and makes a table and a
figure of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyro_dgp._checks import check_distinct, check_integer, check_jobs
from pyro_dgp.experiments import datasets
from pyro_dgp.experiments.config import SCHEDULES, RunConfig
from pyro_dgp.experiments.runs import checkpoint_path, load_data, train
from pyro_dgp.gp import LatentDGP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Size", "Study", "demo_config", "some_data", "some_rows", "trained"]


@dataclass(frozen=True)
class Size:
    """The size of a study.

    :param tuple datasets: Names of data sets.
    :param tuple layers: Numbers of layers of the models.
    :param int steps: Number of training steps per model, with DReG.
    :param float lr: Initial learning rate of Adam (depends on the data set unless given).
    :param str schedule: Schedule of training: the paper's, "steps", half a "cosine", for short
        runs, or "fast", with steps, step sizes, importance samples and precision of its own unless
        they are given (depends on the data set unless given).
    :param int train_K: Number of importance samples in training.
    :param int points: Number of training points to average over.
    :param int draws: Number of gradients per estimate.
    :param tuple samples: Numbers of importance samples to profile.
    :param int seeds: Number of models of each kind, from different initial values.
    :param int splits: Number of train-test splits in studies of predictions, from the first one on.
    :param int test_samples: Number of samples per test row.
    :param int evaluations: Number of estimates of the test log-likelihood per model.
    :param int jobs: Number of parallel runs in studies of many splits; -1 for one per core.
    :param str dtype: Dtype of data and parameters.
    """

    datasets: tuple[str, ...] = ("demo",)
    layers: tuple[int, ...] = (2,)
    steps: int = 2000
    lr: float | None = None
    schedule: str | None = field(default=None, metadata={"choices": tuple(SCHEDULES)})
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
            ("splits", 1), ("test_samples", 1), ("evaluations", 1),
        ):  # fmt: skip
            check_integer(name, getattr(self, name), least)
        check_jobs("jobs", self.jobs)
        for name in ("layers", "samples"):
            for number in getattr(self, name):
                check_integer(name, number, 1)
        for name in ("datasets", "layers", "samples"):
            check_distinct(name, getattr(self, name))
        for name in self.datasets:
            if name not in datasets.names():
                raise ValueError(
                    f"Unknown data set '{name}': datasets takes {', '.join(datasets.names())}."
                )

    def with_options(self, **options: Any) -> "Size":
        """The size with other options; the schedule "fast" brings those of its own.

        :param options: Options by name, which take precedence over those of the schedule.
        """
        if options.get("schedule") == "fast":
            own = SCHEDULES["fast"]
            names = {"steps": "num_steps", "lr": "lr", "train_K": "K", "dtype": "dtype"}
            options = {name: own[field] for name, field in names.items()} | options
        return replace(self, **options)

    def only(self, name: str) -> Any:
        """The value of an option that may have several, but must have one here.

        :param str name: Name of the option.
        :raises ValueError: If it has not exactly one value.
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
        own: dict[str, Any] = {} if self.lr is None else {"lr": self.lr}
        if self.schedule is not None:
            # None for what the schedule has.
            own |= {"schedule": self.schedule, "natural_lr": None}
            own |= {"batch_size": None} if self.schedule == "fast" else {}
        return replace(config, dataset=dataset, seed=seed or None, dtype=self.dtype, **own)


def demo_config(num_steps: int, num_layers: int = 2, K: int = 10, lr: float = 0.02) -> RunConfig:
    """A configuration that learns the demo data in few steps."""
    return RunConfig(
        "demo", K=K, num_layers=num_layers, num_inducing=50, num_steps=num_steps,
        batch_size=256, lr=lr, lr_decay=0.93, lr_decay_steps=max(1, num_steps // 30),
        mixing="principal", num_test_samples=2000,
    )  # fmt: skip


# Options of the size that every study uses.
_OF_MODELS = ("datasets", "layers", "steps", "lr", "schedule", "train_K", "dtype")


@dataclass(frozen=True)
class Study:
    """A study, such as one of the figures of the paper.

    :param Size size: The default size.
    :param compute: A function; ``compute(size, folder, progress)`` returns the results.
    :param table: A function; ``table(results)`` returns lines of text.
    :param draw: A function; ``draw(results)`` returns a Matplotlib figure, or None where
        there is nothing to draw. None if there is no such figure.
    :param files: A function; ``files(results)`` returns further texts by the suffix of their files.
    :param tuple options: Names of the options of the size that it uses besides those of its models.
    """

    size: Size = field(repr=False)
    compute: Callable[[Size, Path, bool], Any]
    table: Callable[[Any], list[str]]
    draw: Callable[[Any], "Figure | None"] | None = None
    files: Callable[[Any], dict[str, str]] = lambda results: {}
    options: tuple[str, ...] = ()

    def unused(self, names: Iterable[str]) -> list[str]:
        """Those of some options of the size that have no effect on the study."""
        return [name for name in names if name not in (*_OF_MODELS, *self.options)]


def trained(config: RunConfig, folder: Path, progress: bool, until: int | None = None) -> LatentDGP:
    """The model of a configuration, from the folder or newly trained.

    :param RunConfig config: The configuration.
    :param folder: Folder for the model.
    :param bool progress: Whether to show a progress bar.
    :param int until: Number of steps after which to stop; None for all that the schedule has.
    :raises KeyboardInterrupt: After Ctrl-C, when the steps done have been saved.
    """
    dgp, history = train(config, checkpoint_path(config, folder, until), progress, until=until)
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
