"""The paper's signal-to-noise studies: from a trained model to results that can be drawn.

Source: Rudner et al. (2021), section 4 and appendix B.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyro
from torch import Tensor
from tqdm.auto import tqdm

from pyro_dgp.gp import LatentDGP
from pyro_dgp.infer import (
    DRegIWELBO,
    PartiallyCollapsedIWELBO,
    SNRPoint,
    SNRProfiler,
    SNRSweep,
    snr_sweep,
)

__all__ = ["ESTIMATORS", "encoder_sites", "gradient_draws", "snr_against_K", "snr_of_entries"]

ESTIMATORS = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}


def encoder_sites(dgp: LatentDGP, X: Tensor, y: Tensor) -> list[str]:
    """Names of the encoder's parameters in Pyro's param store.

    :raises ValueError: If the model has no encoder.
    """
    with pyro.poutine.trace(param_only=True) as capture:
        dgp.guide(X, y)
    sites = [name for name in capture.trace.nodes if ".encoder$$$" in name]
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

    As in the paper, of the gradient for one datum at a time, averaged over data. Single data differ
    much: where the weights are unequal, DReG's gradient has long tails and K must be larger.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Inputs of the data, ten in the paper.
    :param torch.Tensor y: Their targets.
    :param K: Numbers of importance samples.
    :param int num_draws: Q.
    :param int seed: Of the draws.
    :param paths: For each datum the file that gets its points, as they come; see
        :func:`~pyro_dgp.infer.snr_sweep`.
    :param bool progress: Show a progress bar.
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


def snr_of_entries(
    dgp: LatentDGP,
    X: Tensor,
    y: Tensor,
    K: Sequence[int],
    num_entries: int = 4,
    num_draws: int = 1000,
    seed: int = 0,
    progress: bool = True,
) -> SNRSweep:
    """SNR of single encoder parameters, chosen at random, against K: Figure 1.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Input of one datum, [1, D].
    :param torch.Tensor y: Its target.
    :param K: Numbers of importance samples.
    :param int num_entries: How many of the encoder's scalar parameters.
    :param int num_draws: Q.
    :param int seed: Of the choice and of the draws.
    :param bool progress: Show a progress bar.
    """
    sites = encoder_sites(dgp, X, y)
    chosen: list[tuple[str, tuple[int, ...]]] | None = None
    points = []
    for name, samples in tqdm(
        list(itertools.product(ESTIMATORS, K)), disable=not progress, unit="profile"
    ):
        loss = ESTIMATORS[name](K=samples)
        profile = SNRProfiler(dgp.model, dgp.guide, loss, num_draws, sites, seed=seed).run(X, y)
        if chosen is None:
            chosen = _random_entries(profile.snr, num_entries, seed)
        for site, index in chosen:
            squared = profile.squared_snr[site][index].clamp(min=0).item()
            error = profile.snr_error[site][index].item()
            points.append(
                SNRPoint(
                    name, samples, 1, None, f"{site.split('$$$')[-1]}{list(index)}", num_draws,
                    seed=seed,
                    snr=profile.snr[site][index].item(), snr_error=error,
                    debiased=math.sqrt(squared), debiased_error=error, num_constant=0,
                )
            )  # fmt: skip
    return SNRSweep(points)


def _random_entries(snr, number: int, seed: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and indices of entries that have a gradient at all (the input's may be 0)."""
    varying = [
        (site, tuple(index))
        for site, values in snr.items()
        for index in ((values > 0) & values.isfinite()).nonzero().tolist()
    ]
    chosen = np.random.default_rng(seed).permutation(len(varying))[:number]
    return [varying[i] for i in chosen]


def _mean(points: Sequence[SNRPoint]) -> SNRPoint:
    """One setting's point, averaged over data, with the error of the draws."""

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


def gradient_draws(
    dgp: LatentDGP,
    X: Tensor,
    y: Tensor,
    K: Sequence[int],
    num_draws: int = 10_000,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, dict[int, Tensor]]:
    """Draws of the gradient by one encoder weight, [num_draws] by estimator and K: Figures 2 and 8.

    For one datum. The weight is that of the last layer with the strongest signal under DReG at the
    largest K.
    """
    site = [s for s in encoder_sites(dgp, X, y) if s.endswith("weight")][-1]

    def profile(estimator, samples, draws):
        loss = ESTIMATORS[estimator](K=samples)
        profiler = SNRProfiler(
            dgp.model, dgp.guide, loss, draws, [site], seed=seed, keep_draws=True,
            progress=progress,
        )  # fmt: skip
        return profiler.run(X, y)

    strongest = int(profile("DReG", max(K), min(1000, num_draws)).snr[site].flatten().argmax())
    return {
        estimator: {
            samples: profile(estimator, samples, num_draws).draws[site].flatten(1)[:, strongest]
            for samples in K
        }
        for estimator in ESTIMATORS
    }
