"""Metrics: the bound on the training data, and scores of predictions of test data."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import shapiro
from torch import Tensor

from pyro_dgp.gp import Exponentiated, LatentDGP, PredictiveMixture, Recalibrated
from pyro_dgp.infer.loss import Loss

__all__ = [
    "LEVELS", "bound", "coverage", "evaluate", "pit_bounds", "point_masses", "randomised_pit",
    "test_log_likelihood",
]  # fmt: skip

# Most numbers in one predictive distribution: 2^23 doubles are 64 MiB.
_CHUNK = 2**23


def test_log_likelihood(dgp: LatentDGP, X: Tensor, y: Tensor, num_samples: int = 10_000) -> float:
    """Mean over rows of log p(y | x).

    Source: Rudner et al. (2021), appendix "Details by Figure".

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Inputs, [N, D].
    :param torch.Tensor y: Targets, [N] or [N, P].
    :param int num_samples: Number of draws of z and of the hidden layers per row.
    """
    total = sum(p.log_prob(t).sum() for p, t in _predictions(dgp, X, y, num_samples))
    return float(total / len(X))


# A usual name in this field, which pytest would collect where it is imported.
test_log_likelihood.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


#: Nominal coverages of the central intervals that :func:`evaluate` looks at.
LEVELS = (0.5, 0.9, 0.95)
# Draws per row for the Shapiro-Wilk statistic, whose null distribution is known up to 5000.
_SHAPIRO_DRAWS = 1000


def evaluate(
    dgp: LatentDGP, X: Tensor, y: Tensor, num_samples: int = 10_000, num_evaluations: int = 1
) -> dict:
    """Scores of predictions, on the scale of y.

    Where y has point masses (:func:`point_masses`), the log-likelihood can grow without limit as
    the noise variance falls; the CRPS cannot.

    :param LatentDGP dgp: A trained model.
    :param torch.Tensor X: Inputs, [N, D].
    :param torch.Tensor y: Targets, [N] or [N, P].
    :param int num_samples: Number of draws of z and of the hidden layers per row.
    :param int num_evaluations: Number of estimates of the log-likelihood; ten in the paper.
    :returns: ``test_log_likelihoods`` of the evaluations and their mean ``test_log_likelihood``;
        of the first evaluation ``crps``, ``rmse`` of the predictive mean, and for a single output
        ``coverage`` of the central intervals by their probability, and ``shapiro_wilk``, the median
        over rows of the Shapiro-Wilk W of draws (1 for a normal distribution), the authors' measure
        of the distance of predictive densities from Gaussian ones. For targets on a lattice, whose
        ``log_prob`` is that of a probability, ``log_step``, the logarithm of the lattice's step,
        replaces ``shapiro_wilk``: the log-likelihood minus ``log_step`` is a mean log density.
    """
    log_prob, crps, squared, pit, shapiro_w, lattice = [], [], [], [], [], None
    for predictive, target in _predictions(dgp, X, y, num_samples):
        log_prob.append(predictive.log_prob(target))
        crps.append(predictive.crps(target))
        squared.append((predictive.mean - target).square())
        lattice = predictive.lattice
        if y.dim() == 1:
            pit.append(torch.stack(pit_bounds(predictive, target)))
        if y.dim() == 1 and lattice is None:
            draws = predictive.sample((_SHAPIRO_DRAWS,)).cpu().numpy()
            shapiro_w += [float(shapiro(row).statistic) for row in draws.T]
    values = [torch.cat(log_prob).mean().item()]
    values += [test_log_likelihood(dgp, X, y, num_samples) for _ in range(num_evaluations - 1)]
    found = {
        "test_log_likelihood": float(np.mean(values)),
        "test_log_likelihoods": values,
        "crps": torch.cat(crps).mean().item(),
        "rmse": torch.cat(squared).mean().sqrt().item(),
    }
    if y.dim() == 1:
        shares = coverage(*torch.cat(pit, 1))
        found["coverage"] = {str(p): share for p, share in shares.items()}
    if shapiro_w:
        found["shapiro_wilk"] = float(np.median(shapiro_w))
    if lattice is not None:
        found["log_step"] = math.log(lattice[1])
    return found


def pit_bounds(p: PredictiveMixture, y: Tensor) -> tuple[Tensor, Tensor]:
    """P(target < y) and P(target <= y), [N] each; they differ where a target has a probability: on
    a lattice, or at the value of a zero-inflated target.

    :param PredictiveMixture p: Prediction of one target per row; or another distribution with
        ``cdf`` and ``lattice``.
    :param torch.Tensor y: Targets, [N].
    """
    above = p.cdf(y)
    if p.lattice is not None:
        return p.cdf(y - p.lattice[1]), above
    if isinstance(p, PredictiveMixture | Recalibrated | Exponentiated):
        has_mass = p.has_mass(y)
        if bool(has_mass.any()):
            return torch.where(has_mass, above - p.log_prob(y).exp(), above).clamp_min(0), above
    return above, above


def coverage(below: Tensor, above: Tensor) -> dict[float, float]:
    """Shares of the targets within central intervals, ends included, by nominal probability.

    :param torch.Tensor below: P(target < y) at the targets, [N].
    :param torch.Tensor above: P(target <= y) there, [N].
    """

    def share(p: float) -> float:
        inside = (above >= 0.5 - p / 2) & (below <= 0.5 + p / 2)
        return inside.double().mean().item()

    return {p: share(p) for p in LEVELS}


def randomised_pit(below: Tensor, above: Tensor, seed: int = 0) -> Tensor:
    """Randomised PIT values, uniform in (0, 1) if the model is calibrated, also on a lattice, [N].

    Source: Czado, Gneiting and Held (2009), "Predictive model assessment for count data".

    :param torch.Tensor below: P(target < y) at the targets, [N].
    :param torch.Tensor above: P(target <= y) there, [N].
    :param int seed: Seed of the random numbers between the two.
    """
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(below.shape, dtype=below.dtype, generator=generator)
    return below + share.to(below.device) * (above - below)


def point_masses(y: Tensor, least: float = 0.05) -> dict[str, float] | None:
    """The most frequent target, if it is the value of more than a given share of the rows.

    Values of a continuous distribution do not repeat. Where one does, a narrow peak at it can
    increase the log-likelihood without limit.

    :param torch.Tensor y: Targets, [N].
    :param float least: Share of rows below which ties are attributed to rounding.
    :returns: ``value``, its ``share`` of the rows, and the number ``distinct`` of values; or None.
    """
    values, counts = torch.unique(y, return_counts=True, dim=0)
    share = counts.max().item() / len(y)
    if y.dim() > 1 or share <= least or counts.max() < 2:
        return None
    return {"value": values[counts.argmax()].item(), "share": share, "distinct": len(values)}


def bound(dgp: LatentDGP, loss: Loss, X: Tensor, y: Tensor, batch_size: int = 512) -> float:
    """The bound (not its negative) of the training data, computed in batches.

    :param LatentDGP dgp: A trained model.
    :param ~pyro.infer.ELBO loss: The loss, the negative bound.
    :param torch.Tensor X: Inputs, [N, D].
    :param torch.Tensor y: Targets, [N] or [N, P].
    :param int batch_size: Number of rows per batch.
    """
    batches = zip(X.split(batch_size), y.split(batch_size), strict=True)
    return -sum(loss.loss(dgp.model, dgp.guide, *b) * len(b[0]) / len(X) for b in batches)


def _predictions(
    dgp: LatentDGP, X: Tensor, y: Tensor, num_samples: int
) -> Iterator[tuple[PredictiveMixture, Tensor]]:
    if y.shape[0] != len(X) or y.dim() - 1 != dgp.likelihood.event_dim:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, which does not fit X with {len(X)} rows and a model "
            f"of targets {'[N, P]' if dgp.likelihood.event_dim else '[N]'}."
        )
    rows = max(1, _CHUNK // num_samples)
    for x, target in zip(X.split(rows), y.split(rows), strict=True):
        yield dgp.predict(x, num_samples), target
