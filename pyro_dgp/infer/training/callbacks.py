"""Callbacks for :func:`~pyro_dgp.infer.fit`."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from pyro_dgp._checks import check_integer
from pyro_dgp.infer.snr.sweeps import SNRPoint, SNRSweep

__all__ = ["EarlyStopping", "SNRAlongTraining", "tensorboard"]


def tensorboard(folder: str | Path, every: int = 10) -> Callable[[int, float], None]:
    """Logs the loss for TensorBoard: ``fit(..., callback=tensorboard("logs"))``.

    :param folder: Folder for the event files.
    :param int every: Number of steps between two logged losses.
    :raises ImportError: If TensorBoard is missing.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "Logging needs TensorBoard: pip install 'pyro_dgp[tensorboard]'."
        ) from error
    writer = SummaryWriter(str(folder))

    def log(step: int, loss: float) -> None:
        if step % every == 0:
            writer.add_scalar("loss", loss, step)

    return log


class EarlyStopping:
    """Keeps the parameters with the best score, and ends training when the score stops improving.

    ``fit(..., callback=EarlyStopping(dgp, score, every=50))``, then :meth:`restore_best`. The score
    is for instance the loss of rows that training does not see. It must not depend on the random
    state, nor change it, if a resumed run is to be the same run.

    :param torch.nn.Module module: The module whose parameters are kept.
    :param score: A function without arguments; smaller is better, and NaN counts as infinite.
    :param int every: Number of steps from one score to the next.
    :param int patience: Number of scores without an improvement after which training ends; None for
        no limit.
    :raises ValueError: If a number is out of range.
    """

    def __init__(
        self,
        module: nn.Module,
        score: Callable[[], float],
        every: int = 100,
        patience: int | None = 10,
    ) -> None:
        self.module, self.score = module, score
        self.every = check_integer("every", every, 1)
        self.patience = None if patience is None else check_integer("patience", patience, 1)
        self.steps: list[int] = []
        self.scores: list[float] = []
        self._best: dict[str, torch.Tensor] | None = None

    @property
    def best(self) -> int | None:
        """Index of the best score in :attr:`scores`; None before the first."""
        return min(range(len(self.scores)), key=self.scores.__getitem__, default=None)

    def __call__(self, step: int, loss: float) -> bool:
        if (step + 1) % self.every:
            return False
        score = self.score()
        self.steps.append(step + 1)
        self.scores.append(math.inf if math.isnan(score) else score)
        last, best = len(self.scores) - 1, self.best
        if best is None or best == last:
            self._best = copy.deepcopy(self.module.state_dict())
            return False
        return self.patience is not None and last - best >= self.patience

    def restore_best(self) -> None:
        """Gives the module the parameters of the best score, if there is one."""
        if self._best is not None:
            self.module.load_state_dict(self._best)

    def state_dict(self) -> dict:
        """For :meth:`load_state_dict`."""
        return {"steps": self.steps, "scores": self.scores, "best": self._best}

    def load_state_dict(self, state: dict) -> None:
        """Goes on from a :meth:`state_dict`."""
        self.steps, self.scores, self._best = state["steps"], state["scores"], state["best"]


class SNRAlongTraining:
    """Measures signal-to-noise ratios of the gradient after chosen steps, kept in :attr:`sweeps`.

    ``fit(..., callback=SNRAlongTraining(measure, [10, 100, 1000]))``; draw them with
    :func:`~pyro_dgp.plots.snr_along_training`. Training is not disturbed: a profile leaves the
    random state and the parameters as they are.

    :param measure: A function without arguments, for instance a call of
        :func:`~pyro_dgp.infer.snr_sweep` with data that stay the same.
    :param steps: Numbers of steps done, from 1 on, after which to measure.
    """

    def __init__(self, measure: Callable[[], SNRSweep], steps: Iterable[int]) -> None:
        self.measure = measure
        self.steps = frozenset(check_integer("steps", step, 1) for step in steps)
        #: :class:`~pyro_dgp.infer.SNRSweep` by the number of steps done.
        self.sweeps: dict[int, SNRSweep] = {}

    def __call__(self, step: int, loss: float) -> None:
        if step + 1 in self.steps:
            self.sweeps[step + 1] = self.measure()

    def state_dict(self) -> dict:
        """For :meth:`load_state_dict`."""
        return {step: [asdict(p) for p in sweep.points] for step, sweep in self.sweeps.items()}

    def load_state_dict(self, state: dict) -> None:
        """Goes on from a :meth:`state_dict`."""
        self.sweeps = {step: SNRSweep([SNRPoint(**p) for p in ps]) for step, ps in state.items()}
