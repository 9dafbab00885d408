"""The signal-to-noise studies of the paper: from a trained model to results for figures.

Source: Rudner et al. (2021), section 4 and appendix B.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_dgp.gp import LatentDGP
from pyro_dgp.infer import (
    DRegIWELBO,
    PartiallyCollapsedIWELBO,
    SNRPoint,
    SNRProfiler,
    SNRSweep,
    snr_sweep,
)
from pyro_dgp.infer.random_state import untouched_random_state
from pyro_dgp.infer.training.checkpoint import parameters_of

__all__ = [
    "ESTIMATORS",
    "encoder_sites",
    "gradient_draws",
    "random_entries",
    "snr_against_K",
    "snr_of_entries",
    "strongest_weight",
    "tail_indices",
]

ESTIMATORS = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}


def encoder_sites(dgp: LatentDGP, X: Tensor, y: Tensor) -> list[str]:
    """Names of the encoder's parameters in Pyro's param store.

    :raises ValueError: If the model has no encoder.
    """
    sites = [n for n in parameters_of(dgp.model, dgp.guide, (X, y)) if ".encoder$$$" in n]
    if not sites:
        raise ValueError("The model has no encoder, whose gradients could be profiled.")
    return sites


def snr_against_K(
    dgp: LatentDGP,
    X: Tensor,
    y: Tensor,
    K: Sequence[int],
    num_draws: int = 1000,
    seed: int = 0,
    paths: Sequence[str | Path | None] | None = None,
    progress: bool = True,
) -> SNRSweep:
    """Mean SNR of the encoder's gradient by K, under both estimators: a bar chart of Figure 3.

    As in the paper, the ratio is that of the gradient for one datum at a time, averaged over data.
    Ratios of single data differ much: where the weights are unequal, DReG's gradient has long tails
    and K must be larger.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Inputs of the data, [N, D]; ten data in the paper.
    :param torch.Tensor y: Targets of the data, [N].
    :param K: Numbers of importance samples.
    :param int num_draws: Number Q of draws.
    :param int seed: Seed of the draws.
    :param paths: File for the points of each datum, see :func:`~pyro_dgp.infer.snr_sweep`; or None.
    :param bool progress: Whether to show a progress bar.
    :returns: Points for the whole encoder ("encoder") and for each of its parameters.
    """
    sites = encoder_sites(dgp, X[:1], y[:1])
    groups = {"encoder": sites} | {site.split("$$$")[-1]: [site] for site in sites}
    sweeps = [
        snr_sweep(
            dgp.model, dgp.guide, (x, t), ESTIMATORS, K, groups=groups, num_draws=num_draws,
            seed=seed, path=path, progress=progress,
        )
        for x, t, path in zip(
            X.split(1), y.split(1), [None] * len(X) if paths is None else paths, strict=True
        )
    ]  # fmt: skip
    return SNRSweep([_mean(points) for points in zip(*(s.points for s in sweeps), strict=True)])


def tail_indices(dgp: LatentDGP, X: Tensor, y: Tensor, seed: int = 0) -> Tensor:
    """Pareto k of the importance weights of each datum, estimated from 10,000 samples.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Inputs of the data, [N, D].
    :param torch.Tensor y: Targets of the data, [N].
    :param int seed: Seed of the samples.
    :returns: [N].
    """
    loss, found = DRegIWELBO(K=10_000), []
    with untouched_random_state():
        pyro.set_rng_seed(seed)
        for datum in zip(X.split(1), y.split(1), strict=True):
            loss.loss(dgp.model, dgp.guide, *datum)
            found.append(loss.weight_diagnostics().pareto_k.reshape(1))
    return torch.cat(found)


def random_entries(
    dgp: LatentDGP, X: Tensor, y: Tensor, number: int = 4, seed: int = 0
) -> list[tuple[str, tuple[int, ...]]]:
    """Names and indices of scalar parameters of the encoder, chosen at random.

    Only parameters with a gradient at the datum are chosen; weights of an input of 0 have none.
    """
    sites = encoder_sites(dgp, X, y)
    snr = SNRProfiler(dgp.model, dgp.guide, ESTIMATORS["REG"](K=1), 20, sites, seed=seed).run(X, y)
    varying = [
        (site, tuple(index))
        for site, values in snr.snr.items()
        for index in ((values > 0) & values.isfinite()).nonzero().tolist()
    ]
    chosen = np.random.default_rng(seed).permutation(len(varying))[:number]
    return [varying[i] for i in chosen]


def snr_of_entries(
    dgp: LatentDGP,
    X: Tensor,
    y: Tensor,
    entries: Sequence[tuple[str, tuple[int, ...]]],
    K: int,
    num_draws: int = 1000,
    seed: int = 0,
) -> SNRSweep:
    """SNR of single encoder parameters under both estimators: the points of Figure 1 at one K.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Input of one datum, [1, D].
    :param torch.Tensor y: Target of the datum, [1].
    :param entries: Names and indices of parameters, see :func:`random_entries`.
    :param int K: Number of importance samples.
    :param int num_draws: Number Q of draws.
    :param int seed: Seed of the draws.
    """
    sites = list(dict.fromkeys(site for site, _ in entries))
    points = []
    for name, estimator in ESTIMATORS.items():
        profiler = SNRProfiler(dgp.model, dgp.guide, estimator(K=K), num_draws, sites, seed=seed)
        profile = profiler.run(X, y)
        for site, index in entries:
            squared = profile.squared_snr[site][index].clamp(min=0).item()
            error = profile.snr_error[site][index].item()
            points.append(
                SNRPoint(
                    name, K, 1, None, f"{site.split('$$$')[-1]}{list(index)}", num_draws, seed,
                    snr=profile.snr[site][index].item(), snr_error=error,
                    debiased=math.sqrt(squared), debiased_error=error, num_constant=0,
                )
            )  # fmt: skip
    return SNRSweep(points)


def _mean(points: Sequence[SNRPoint]) -> SNRPoint:
    """The mean over data of the points of one setting, with the error of the draws."""

    def mean(name: str) -> float:
        return sum(getattr(p, name) for p in points) / len(points)

    def error(name: str) -> float:
        return math.hypot(*(getattr(p, name) for p in points)) / len(points)

    return replace(
        points[0],
        snr=mean("snr"),
        snr_error=error("snr_error"),
        debiased=mean("debiased"),
        debiased_error=error("debiased_error"),
        num_constant=sum(p.num_constant for p in points),
    )


def strongest_weight(
    dgp: LatentDGP, X: Tensor, y: Tensor, K: int, seed: int = 0
) -> tuple[str, tuple[int, ...]]:
    """The weight of the encoder's last layer with the strongest signal at one datum, under DReG.

    :returns: Name of the parameter and index of the weight.
    """
    site = [s for s in encoder_sites(dgp, X, y) if s.endswith("weight")][-1]
    profiler = SNRProfiler(dgp.model, dgp.guide, ESTIMATORS["DReG"](K=K), 1000, [site], seed=seed)
    snr = profiler.run(X, y).snr[site]
    return site, tuple(int(i) for i in np.unravel_index(int(snr.argmax()), snr.shape))


def gradient_draws(
    dgp: LatentDGP,
    X: Tensor,
    y: Tensor,
    entry: tuple[str, tuple[int, ...]],
    K: int,
    num_draws: int = 10_000,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Tensor]:
    """Draws of the gradient by one scalar parameter at one datum: a column of Figures 2 and 8.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Input of one datum, [1, D].
    :param torch.Tensor y: Target of the datum, [1].
    :param entry: Name and index of the parameter, see :func:`strongest_weight`.
    :param int K: Number of importance samples.
    :param int num_draws: Number of draws.
    :param int seed: Seed of the draws.
    :param bool progress: Whether to show a progress bar.
    :returns: Draws by estimator, [num_draws] each.
    """
    site, index = entry
    found = {}
    for name, estimator in ESTIMATORS.items():
        profiler = SNRProfiler(
            dgp.model, dgp.guide, estimator(K=K), num_draws, [site], seed=seed, keep_draws=True,
            progress=progress,
        )  # fmt: skip
        draws = profiler.run(X, y).draws or {}
        found[name] = draws[site][(slice(None), *index)]
    return found
