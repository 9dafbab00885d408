"""The fits of a model: in which order, with how many steps, and in which process."""

import copy
import heapq
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import joblib
import numpy as np
import torch
from sklearn.model_selection import KFold
from tqdm.auto import tqdm

from pyro_dgp._files import write_json
from pyro_dgp.sklearn.members import Fold, Member, Recipe
from pyro_dgp.sklearn.pool import HeldOut, held_out_weights
from pyro_dgp.sklearn.processes import in_processes
from pyro_dgp.sklearn.threads import one_thread

__all__ = ["Fits", "Schedule", "fit_all"]

# Number of folds; for more rows than this, a fifth of the rows is held out once, up to a maximum.
_NUM_FOLDS, _MANY_ROWS = 4, 5000
_MOST_HELD_OUT = 2000
# Share of the steps in the fit of a fold: weights of a pool need less precision.
_FOLD_SHARE = 0.4
# Number of components of held-out predictions.
_NUM_SAMPLES = 200
# Number of steps before timing, which are slower; of timed steps; and the share of the remaining
# time that is used.
_NUM_WARM, _NUM_TIMED, _SAFE = 3, 10, 0.8
# Number of steps, and of seconds of the limit, for which it is worth starting processes.
_LEAST_STEPS, _LEAST_SECONDS = 500, 60.0
# Time to start a process, in seconds.
_STARTING = 10.0


@dataclass(frozen=True)
class Schedule:
    """Settings of the fits of a model.

    :param int num_steps: Number of steps per member.
    :param int num_members: Number of members.
    :param bool pooled: Whether to hold out folds for a pool.
    :param deadline: End of the time limit, as of ``time.monotonic``, in seconds, or None.
    :param int n_jobs: Largest number of processes, -1 for one per core.
    :param bool progress: Whether to show a progress bar.
    :param checkpoint: File from which interrupted fits continue, or None.
    """

    num_steps: int
    num_members: int
    pooled: bool
    deadline: float | None
    n_jobs: int
    progress: bool
    checkpoint: Path | None


@dataclass
class Fits:
    """Results of the fits of a model.

    :param list members: The trained members.
    :param list held_out: Held-out rows of the folds, with their predictions.
    :param int num_steps: Number of steps planned per member.
    :param int num_late: Number of fits that the deadline ended before their last step.
    :param bool resumed: Whether that number was planned by an interrupted fit.
    """

    members: list[Member]
    held_out: list[HeldOut]
    num_steps: int
    num_late: int
    resumed: bool


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
    prepared: tuple[Member, torch.Tensor] | None = None

    def run(self, update: Callable[[int], object]) -> "_Done":
        """Trains, and predicts the rows left out unless training ended early.

        :param update: A function called after every step with the number of new steps, among which
            are those of a checkpoint.
        """
        train, seed = self.train, self.seed
        member, A = self.prepared or Member.prepared(
            self.recipe, train.X, train.y, train.weights, seed
        )
        late, told = False, 0

        def callback(num_done: int) -> bool:
            nonlocal late, told
            new, told = num_done - told, num_done
            update(new)
            late = self.deadline is not None and time.monotonic() > self.deadline
            return late

        member.train(
            self.recipe, (A, self.recipe.tensor(train.y)), train.weights, seed, self.num_steps,
            held_out=self.early, tick=callback, checkpoint=self.checkpoint,
        )  # fmt: skip
        if len(member.history.losses) > told:  # all are from a checkpoint
            update(len(member.history.losses) - told)
        if self.recipe.model["latent_dim"] and not member.history.interrupted:
            member.fit_latent_prior(A, self.recipe.tensor(train.y), train.weights, seed)
        late = late and len(member.history.losses) < self.num_steps
        # An unfinished fit would give pool weights that do not suit the finished ones.
        if self.test is None or late or member.history.interrupted:
            return _Done(member, None, None, late)

        def held_out(test: Fold) -> HeldOut:
            generator = torch.Generator(self.recipe.device).manual_seed(seed)
            p = member.predict(test.X, _NUM_SAMPLES, generator).to(torch.float64)
            return HeldOut(test, train, p, member.features)

        fitted = held_out(self.test)
        member.dgp.reset_latent_prior()
        return _Done(member, fitted, held_out(self.test), late)


@dataclass(frozen=True)
class _Done:
    """A fit, with predictions of the rows left out under the fitted and under the normal prior of
    z."""

    member: Member
    fitted: HeldOut | None
    normal: HeldOut | None
    late: bool


def fit_all(
    recipe: Recipe,
    data: Fold,
    *,
    seed: int,
    held_out: Fold | None,
    schedule: Schedule,
) -> Fits:
    """Fits members to all rows first, and then one model per fold without the fold's rows.

    Members keep the fitted prior of z if it has a better score on the rows that were left out, by
    more than a standard error, or if there are no such rows.

    Ctrl-C ends the current fit and skips the following ones; if it was a fold's, the pool is fitted
    on the folds before it.

    :param Recipe recipe: The settings of members.
    :param Fold data: The training rows.
    :param int seed: Seed of all fits.
    :param Fold held_out: Rows for early stopping, or None.
    :param Schedule schedule: The settings of the fits.
    """
    folds = list(_folds(len(data.X), seed)) if schedule.pooled else []
    n_jobs = _num_processes(schedule, len(folds))
    deadline = schedule.deadline
    num_steps, prepared = _planned_before(schedule), None
    resumed = num_steps is not None
    if num_steps is None and deadline is not None:
        with one_thread():
            num_steps, prepared = _planned(
                recipe, data, seed, schedule, deadline, len(folds), n_jobs
            )
    elif num_steps is None:
        num_steps = schedule.num_steps
        if (plan := _plan_path(schedule)) is not None:
            plan.unlink(missing_ok=True)  # of another fit
    fold_steps = max(1, round(_FOLD_SHARE * num_steps))

    def job(i: int, train: Fold, test: Fold | None, steps: int, early: Fold | None) -> _Job:
        path = schedule.checkpoint
        if path is not None and i:
            path = path.with_name(f"{path.name}.{i}")
        seed_i = (seed + i) % 2**31
        return _Job(recipe, train, test, early, seed_i, steps, deadline, path)

    M = schedule.num_members
    jobs = [job(i, data, None, num_steps, held_out) for i in range(M)]
    for i, (train, test) in enumerate(folds):
        jobs.append(job(M + i, data[train], data[test], fold_steps, None))
    jobs[0] = replace(jobs[0], prepared=prepared)
    total = sum(one.num_steps for one in jobs)
    with tqdm(total=total, disable=not schedule.progress, unit="step") as bar:
        if n_jobs == 1:
            found = list(_in_turn(jobs, bar.update))
        else:
            found = list(in_processes(jobs, n_jobs, bar.update))
    members = [one.member for one in found[:M] if one is not None]
    if not members:  # nothing had begun
        raise KeyboardInterrupt
    done = [one for one in found if one is not None]
    parts = [d.fitted for d in done if d.fitted is not None]
    normal = [d.normal for d in done if d.normal is not None]
    if any(member.history.interrupted for member in members):
        parts = []  # the weights would be those of whole fits
    if None in found or any(d.member.history.interrupted for d in done):
        members[0].history.interrupted = True  # in whichever fit
    if parts and not _is_better(parts, normal, recipe):
        parts = normal
        for member in members:
            member.dgp.reset_latent_prior()
    return Fits(members, parts, num_steps, sum(d.late for d in done), resumed)


def _num_processes(schedule: Schedule, num_folds: int) -> int:
    """The number of processes: at most one per fit, and only one for so little work that starting
    others would take longer, or in a worker process of another pool."""
    work = schedule.num_steps * (schedule.num_members + _FOLD_SHARE * num_folds)
    limit = np.inf if schedule.deadline is None else schedule.deadline - time.monotonic()
    nested = multiprocessing.parent_process() is not None
    if nested or work < _LEAST_STEPS or limit < _LEAST_SECONDS:
        return 1
    return min(joblib.effective_n_jobs(schedule.n_jobs), schedule.num_members + num_folds)


def _is_better(parts: list[HeldOut], others: list[HeldOut], recipe: Recipe) -> bool:
    """Whether the mean score of held-out rows is smaller by more than its standard error."""

    def scores(parts: list[HeldOut]) -> np.ndarray:
        found = [recipe.score(part.dgp, torch.as_tensor(part.rows.y)) for part in parts]
        return torch.cat([s.reshape(len(s), -1).mean(1) for s in found]).cpu().numpy()

    gain = held_out_weights(parts) * (scores(others) - scores(parts))
    return bool(gain.mean() > gain.std() / np.sqrt(len(gain)))


def _in_turn(jobs: list[_Job], update: Callable[[int], object]) -> Iterator[_Done]:
    """Runs jobs one after the other; none after one that is interrupted."""
    for job in jobs:
        with one_thread():
            done = job.run(update)
        yield done
        if done.member.history.interrupted:
            return


def _folds(num_rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices of training rows and of held-out rows."""
    if num_rows <= _MANY_ROWS:
        yield from KFold(_NUM_FOLDS, shuffle=True, random_state=seed).split(np.empty(num_rows))
        return
    order = np.random.default_rng(seed).permutation(num_rows)
    test, train = np.split(order, [min(num_rows // 5, _MOST_HELD_OUT)])
    yield np.sort(train), np.sort(test)


def _plan_path(schedule: Schedule) -> Path | None:
    first = schedule.checkpoint
    return None if first is None else first.with_name(f"{first.name}.plan")


def _planned_before(schedule: Schedule) -> int | None:
    """The number of steps per member of the fit that continues from checkpoints, or None.

    It stays, whatever the limit is now, since learning rates fall to 0 at its end.
    """
    first, plan = schedule.checkpoint, _plan_path(schedule)
    if first is None or plan is None or not first.exists():
        return None
    if not plan.exists():  # there was no limit
        return schedule.num_steps
    return min(int(json.loads(plan.read_text())["num_steps"]), schedule.num_steps)


def _span(durations: list[float], workers: int) -> float:
    """The time until all jobs are done, if a worker that is free takes the next one."""
    ends = [0.0] * workers
    for duration in durations:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)


def _planned(
    recipe: Recipe,
    data: Fold,
    seed: int,
    schedule: Schedule,
    deadline: float,
    num_folds: int,
    workers: int,
) -> tuple[int, tuple[Member, torch.Tensor]]:
    """The number of steps per member that the deadline allows, from the time of some trial steps,
    and the first member, prepared for training.

    The number is kept in a file beside the checkpoints.
    """
    start = time.monotonic()
    member, A = Member.prepared(recipe, data.X, data.y, data.weights, seed)
    preparing = time.monotonic() - start
    times = []
    tensors = A, recipe.tensor(data.y)
    trial = replace(member, dgp=copy.deepcopy(member.dgp))
    trial.train(
        recipe, tensors, data.weights, seed, _NUM_WARM + _NUM_TIMED,
        tick=lambda _: times.append(time.monotonic()) or False,
    )  # fmt: skip
    if trial.history.interrupted:  # there is nothing to keep yet
        raise KeyboardInterrupt
    step = (times[-1] - times[_NUM_WARM - 1]) / _NUM_TIMED
    start = time.monotonic()
    if recipe.model["latent_dim"]:
        trial.fit_latent_prior(*tensors, data.weights, seed)
    finishing = time.monotonic() - start
    left = _SAFE * (deadline - time.monotonic() - (_STARTING if workers > 1 else 0.0))
    shares = [1.0] * schedule.num_members + [_FOLD_SHARE] * num_folds
    left -= _span([preparing] * (len(shares) - 1), workers)
    left -= _span([finishing] * len(shares), workers)
    num_steps = int(np.clip(left / (step * _span(shares, workers)), 1, schedule.num_steps))
    if (plan := _plan_path(schedule)) is not None:
        write_json({"num_steps": num_steps}, plan)
    return num_steps, (member, A)
