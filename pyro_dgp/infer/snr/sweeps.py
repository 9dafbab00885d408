"""Signal-to-noise ratios over numbers of importance samples, estimators and batch sizes."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from tqdm.auto import tqdm

from pyro_dgp._checks import check_distinct, check_integer, check_seed
from pyro_dgp._files import write_json
from pyro_dgp.infer.loss import Loss
from pyro_dgp.infer.snr.profiler import SNRProfiler
from pyro_dgp.infer.training.checkpoint import parameters_of

__all__ = ["SNRPoint", "SNRSweep", "snr_sweep"]


@dataclass(frozen=True)
class SNRPoint:
    """The signal-to-noise ratio of some parameters' gradient in one setting.

    :param str estimator: Name of the estimator in the sweep.
    :param int K: Number of importance samples.
    :param int num_particles: Number M of sets of importance samples.
    :param int batch_size: Number of rows of the minibatch; None for all data.
    :param str group: Name of the group of parameters in the sweep.
    :param int num_draws: Number Q of draws.
    :param int seed: Seed of the draws.
    :param float snr: Mean ratio, :meth:`~pyro_dgp.infer.SNRProfile.mean_snr`.
    :param float snr_error: Standard error of ``snr``.
    :param float debiased: Root of the unbiased mean of the squared ratio.
    :param float debiased_error: Standard error of ``debiased``.
    :param int num_constant: Number of entries left out as their gradient is the same in every draw.
    """

    estimator: str
    K: int
    num_particles: int
    batch_size: int | None
    group: str
    num_draws: int
    seed: int
    snr: float
    snr_error: float
    debiased: float
    debiased_error: float
    num_constant: int


@dataclass(frozen=True)
class SNRSweep:
    """Points of a sweep, with fitted orders.

    :param list points: Points of type :class:`SNRPoint`, one for each setting and group.
    """

    points: list[SNRPoint]

    def select(self, **values: Any) -> list[SNRPoint]:
        """The points whose attributes have these values."""
        return [p for p in self.points if all(getattr(p, k) == v for k, v in values.items())]

    def slope(self, by: str = "K", **values: Any) -> tuple[float, float]:
        """The slope of log SNR in log K (or M, or B) and its standard error.

        The fit is by weighted least squares to the ratio without bias. Points whose ratio is not
        above its standard error are left out, as their logarithm is not determined.

        :param str by: The attribute on which the ratio depends: "K", "num_particles" or
            "batch_size".
        :param values: Values of the other attributes, such as ``estimator`` and ``group``.
        :raises ValueError: If fewer than two points are left.
        """
        points = [
            p
            for p in self.select(**values)
            if p.debiased > p.debiased_error and getattr(p, by) is not None
        ]
        if len({getattr(p, by) for p in points}) < 2:
            raise ValueError(
                f"There are not two values of {by} with a signal above its standard error for "
                f"{values}: draw more gradients (num_draws)."
            )
        x = np.log([getattr(p, by) for p in points])
        y = np.log([p.debiased for p in points])
        error = np.array([p.debiased_error / p.debiased for p in points])
        weight = np.maximum(error, 1e-9) ** -2
        x = x - np.average(x, weights=weight)
        precision = (weight * x**2).sum()
        return float((weight * x * y).sum() / precision), float(precision**-0.5)

    def advice(self, **values: Any) -> str:
        """Up to which K more samples increase the signal-to-noise ratio, as a sentence.

        :param values: Values of the other attributes, such as ``estimator`` and ``group``.
        :raises ValueError: If the points differ in more than K, or have one K only.
        """
        points = sorted(self.select(**values), key=lambda p: p.K)
        for other in ("estimator", "group", "num_particles", "batch_size"):
            found = {getattr(p, other) for p in points}
            if len(found) > 1:
                raise ValueError(
                    f"These are points of several settings: give {other}, one of "
                    f"{', '.join(map(str, sorted(found, key=str)))}."
                )
        if len({p.K for p in points}) < 2:
            raise ValueError(f"There are not two values of K for {values} to compare.")
        best = max(points, key=lambda p: p.debiased)
        beyond = [
            p
            for p in points
            if p.K > best.K
            and best.debiased - p.debiased > 2 * math.hypot(best.debiased_error, p.debiased_error)
        ]
        what = ", ".join(str(v) for v in values.values())
        if best.debiased <= best.debiased_error:
            return f"{what}: no signal above its standard error; draw more gradients (num_draws)."
        if beyond:
            return (
                f"{what}: beyond K = {best.K} (SNR {best.debiased:.3g}), more samples cost signal: "
                f"{beyond[-1].debiased:.3g} at K = {beyond[-1].K}."
            )
        return f"{what}: SNR {best.debiased:.3g} at K = {best.K}; no K tried costs signal."

    def save(self, path: str | Path) -> None:
        """Writes the points to a JSON file."""
        write_json({"points": [asdict(p) for p in self.points]}, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> "SNRSweep":
        """Reads what :meth:`save` wrote.

        :raises ValueError: If the file holds something else.
        """
        try:
            points = json.loads(Path(path).read_text())["points"]
            return cls([SNRPoint(**point) for point in points])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of an SNR sweep.") from error


def snr_sweep(
    model: Callable,
    guide: Callable,
    args: tuple,
    estimators: Mapping[str, Callable[..., Loss]],
    K: Sequence[int],
    num_particles: Sequence[int] = (1,),
    batch_sizes: Sequence[int | None] = (None,),
    groups: Mapping[str, Sequence[str]] | None = None,
    num_draws: int = 1000,
    seed: int = 0,
    path: str | Path | None = None,
    progress: bool = True,
) -> SNRSweep:
    """Profiles the gradient in every combination of settings.

    :param model: The model, as for :class:`~pyro.infer.SVI`.
    :param guide: The guide, as for :class:`~pyro.infer.SVI`.
    :param tuple args: Arguments of model and guide, tensors with the data as rows.
    :param estimators: Losses by name, called with ``K`` and ``num_particles``.
    :param K: Numbers of importance samples.
    :param num_particles: Numbers M of estimates to average.
    :param batch_sizes: Sizes of minibatches, which are the first rows of ``args``; None for all
        rows.
    :param groups: Names of parameters by the name of their group; None for one group per parameter.
    :param int num_draws: Number Q of draws.
    :param int seed: Seed of every profile.
    :param path: JSON file to which points are written as they are computed. Points that the file
        already has are reused, so an interrupted sweep continues; they must be of the same model,
        data, estimators and groups.
    :param bool progress: Whether to show a progress bar.
    :raises ValueError: If an option is out of range or has a value twice, or a name is not that of
        a parameter.
    """
    if isinstance(args, Tensor):
        raise ValueError("args must be a tuple of tensors, such as (X, y), but it is a tensor.")
    K = [check_integer("K", number, 1) for number in K]
    check_distinct("K", K)
    num_particles = [check_integer("num_particles", number, 1) for number in num_particles]
    num_draws, seed = check_integer("num_draws", num_draws, 2), check_seed("seed", seed)
    batch_sizes = [
        None if size is None else check_integer("batch_sizes", size, 1) for size in batch_sizes
    ]
    check_distinct("num_particles", num_particles)
    check_distinct("batch_sizes", batch_sizes)
    kept = SNRSweep.load(path) if path is not None and Path(path).exists() else SNRSweep([])
    points = []
    if groups is None:
        parameters = parameters_of(model, guide, args)
        groups = {name: [name] for name, p in parameters.items() if p.requires_grad}
    sites = list(dict.fromkeys(itertools.chain(*groups.values())))
    settings = list(itertools.product(batch_sizes, estimators, num_particles, K))
    for batch_size, name, M, samples in tqdm(settings, disable=not progress, unit="profile"):
        setting = {
            "estimator": name, "K": samples, "num_particles": M, "batch_size": batch_size,
            "num_draws": num_draws, "seed": seed,
        }  # fmt: skip
        found = kept.select(**setting)
        if set(groups) <= {p.group for p in found}:
            points += [p for p in found if p.group in groups]
            continue
        batch = args if batch_size is None else tuple(_first_rows(a, batch_size) for a in args)
        loss = estimators[name](K=samples, num_particles=M)
        profile = SNRProfiler(model, guide, loss, num_draws, sites, seed=seed).run(*batch)
        constant = profile.num_constant
        for group, members in groups.items():
            points.append(
                SNRPoint(
                    **setting,
                    group=group,
                    snr=profile.mean_snr(members),
                    snr_error=profile.mean_snr_error(members),
                    debiased=profile.mean_snr(members, debiased=True),
                    debiased_error=profile.mean_snr_error(members, debiased=True),
                    num_constant=sum(constant[site] for site in members),
                )
            )
        if path is not None:
            done = {_key(p) for p in points}
            SNRSweep([p for p in kept.points if _key(p) not in done] + points).save(path)
    return SNRSweep(points)


def _key(point: SNRPoint) -> tuple:
    """The setting and the group of a point."""
    values = asdict(point)
    return tuple(values[name] for name in values if name not in _RESULTS)


_RESULTS = ("snr", "snr_error", "debiased", "debiased_error", "num_constant")


def _first_rows(x: object, size: int) -> object:
    if not isinstance(x, Tensor):
        return x
    if size > len(x):
        raise ValueError(f"batch_sizes has {size}, but the data have {len(x)} rows.")
    return x[:size]
