"""The fits of a model: in which order, with how many steps, and in which process."""

import copy
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import torch
from sklearn.model_selection import KFold
from tqdm.auto import tqdm

from pyro_dgp.sklearn.members import Fold, Member, Recipe
from pyro_dgp.sklearn.pool import HeldOut

__all__ = ["Fits", "Schedule", "fit_all"]

# Folds up to so many rows; beyond, a fifth of the rows once, at most so many of them.
_NUM_FOLDS, _MANY_ROWS = 4, 5000
_MOST_HELD_OUT = 2000
# Steps of a fold's fit, as a share: weights of a pool need no last digit.
_FOLD_SHARE = 0.4
# Components of held-out predictions.
_NUM_SAMPLES = 200
# Steps that are timed, after some that are slower; and the share of the time left to plan with.
_NUM_WARM, _NUM_TIMED, _SAFE = 3, 10, 0.8


@dataclass(frozen=True)
class Schedule:
    """What is to be done.

    :param int num_steps: Of each member.
    :param bool pooled: Whether to hold out folds.
    :param deadline: Of ``time.perf_counter``, or None.
    """

    num_steps: int
    num_members: int
    pooled: bool
    deadline: float | None
    n_jobs: int | None
    progress: bool
    checkpoint: Path | None


@dataclass
class Fits:
    """What came of it.

    :param int num_steps: Planned for each member.
    """

    members: list[Member]
    held_out: list[HeldOut]
    num_steps: int


@dataclass(frozen=True)
class _Job:
    """One fit: a member, or a fold whose rows are predicted."""

    recipe: Recipe
    train: Fold
    test: Fold | None
    early: Fold | None
    seed: int
    num_steps: int
    deadline: float | None
    checkpoint: Path | None

    def run(self, tick: Callable[[], None] | None = None) -> tuple[Member, HeldOut | None]:
        train, seed = self.train, self.seed
        member, A = Member.prepared(self.recipe, train.X, train.y, train.weights, seed)
        end = None if self.deadline is None else time.monotonic() + self.deadline

        def callback() -> bool:
            if tick is not None:
                tick()
            return end is not None and time.monotonic() > end

        member.train(
            self.recipe, (A, self.recipe.tensor(train.y)), train.weights, seed, self.num_steps,
            held_out=self.early, tick=callback, checkpoint=self.checkpoint,
        )  # fmt: skip
        if self.test is None:
            return member, None
        generator = torch.Generator(self.recipe.device).manual_seed(seed)
        test = self.test
        p = member.predict(test.X, _NUM_SAMPLES, generator).to(torch.float64)
        y = test.y.reshape(len(test.y), -1)
        return member, HeldOut(y, p, member.features.samples(test.X), test.weights)


def fit_all(
    recipe: Recipe,
    data: Fold,
    *,
    seed: int,
    held_out: Fold | None,
    schedule: Schedule,
) -> Fits:
    """Members on all rows first, then those that leave folds out.

    Ctrl-C ends the fit at hand and drops those to come; if it was a fold's, the pool is chosen by
    the folds before it.

    :param Fold held_out: For early stopping, or None.
    """
    folds = list(_folds(len(data.X), seed)) if schedule.pooled else []
    num_steps = schedule.num_steps
    if schedule.deadline is not None:
        num_steps = _planned(recipe, data, seed, schedule, len(folds))
    fold_steps = max(1, round(_FOLD_SHARE * num_steps))

    def job(i: int, train: Fold, test: Fold | None, steps: int, early) -> _Job:
        left = None if schedule.deadline is None else schedule.deadline - time.perf_counter()
        path = schedule.checkpoint
        if path is not None and i:
            path = path.with_name(f"{path.name}.{i}")
        return _Job(recipe, train, test, early, (seed + i) % 2**31, steps, left, path)

    M = schedule.num_members
    jobs = [lambda i=i: job(i, data, None, num_steps, held_out) for i in range(M)]
    for i, (train, test) in enumerate(folds):
        jobs.append(lambda i=i, a=train, b=test: job(M + i, data[a], data[b], fold_steps, None))
    total = M * num_steps + len(folds) * fold_steps
    members, predicted = [], []
    # A process of somebody else's pool starts none of its own.
    alone = multiprocessing.parent_process() is not None
    n_jobs = 1 if alone else joblib.effective_n_jobs(schedule.n_jobs)
    with tqdm(total=total, disable=not schedule.progress, unit="step") as bar:
        if n_jobs == 1:
            for make in jobs:
                member, rows = make().run(bar.update)
                _sort(member, rows, members, predicted)
                if member.history.interrupted:
                    members[0].history.interrupted = True  # whichever fit it was
                    break
        else:
            run = joblib.delayed(_run_alone)
            results = joblib.Parallel(n_jobs, backend="loky", return_as="generator")(
                run(make(), max(1, joblib.cpu_count() // n_jobs)) for make in jobs
            )
            for member, rows in results:
                bar.update(len(member.history.losses))
                _sort(member, rows, members, predicted)
    return Fits(members, predicted, num_steps)


def _run_alone(job: _Job, num_threads: int) -> tuple[Member, HeldOut | None]:
    torch.set_num_threads(num_threads)
    return job.run()


def _sort(member: Member, rows: HeldOut | None, members: list, predicted: list) -> None:
    if rows is None:
        members.append(member)
    elif not member.history.interrupted:
        predicted.append(rows)


def _folds(num_rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows that train and rows held out."""
    if num_rows <= _MANY_ROWS:
        yield from KFold(_NUM_FOLDS, shuffle=True, random_state=seed).split(np.empty(num_rows))
        return
    order = np.random.default_rng(seed).permutation(num_rows)
    test, train = np.split(order, [min(num_rows // 5, _MOST_HELD_OUT)])
    yield np.sort(train), np.sort(test)


def _planned(recipe: Recipe, data: Fold, seed: int, schedule: Schedule, num_folds: int) -> int:
    """Steps of a member that the deadline allows: as long as some take that are thrown away."""
    start = time.perf_counter()
    member, A = Member.prepared(recipe, data.X, data.y, data.weights, seed)
    preparing = time.perf_counter() - start
    times = []
    tensors = A, recipe.tensor(data.y)
    copy.deepcopy(member).train(
        recipe, tensors, data.weights, seed, _NUM_WARM + _NUM_TIMED,
        tick=lambda: times.append(time.perf_counter()) or False,
    )  # fmt: skip
    step = (times[-1] - times[_NUM_WARM - 1]) / _NUM_TIMED
    left = schedule.deadline - time.perf_counter()
    jobs = schedule.num_members + num_folds
    workers = min(joblib.effective_n_jobs(schedule.n_jobs), jobs)
    left = _SAFE * left - preparing * jobs / workers
    whole = schedule.num_members + _FOLD_SHARE * num_folds
    return int(np.clip(left * workers / (step * whole), 1, schedule.num_steps))
