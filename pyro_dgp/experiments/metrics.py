"""How good a model is: its bound on the training data, its predictions on the test data."""

from collections.abc import Iterator

import torch
from pyro.infer import ELBO
from torch import Tensor

from pyro_dgp.gp import LatentDGP, PredictiveMixture

__all__ = ["bound", "evaluate", "test_log_likelihood"]

# Numbers that one predictive distribution may hold: 2^23 doubles are 64 MiB.
_CHUNK = 2**23


def test_log_likelihood(dgp: LatentDGP, X: Tensor, y: Tensor, num_samples: int = 10_000) -> float:
    """Mean over rows of log p(y | x), with ``num_samples`` draws of z and the hidden layers a row.

    Source: Rudner et al. (2021), appendix "Details by Figure".

    :param torch.Tensor X: [N, D].
    :param torch.Tensor y: [N] or [N, P].
    """
    total = sum(p.log_prob(t).sum() for p, t in _predictions(dgp, X, y, num_samples))
    return float(total / len(X))


# The name is the field's; pytest is not to collect it where it is imported.
test_log_likelihood.__test__ = False


def evaluate(dgp: LatentDGP, X: Tensor, y: Tensor, num_samples: int = 10_000) -> dict[str, float]:
    """Test log-likelihood, CRPS and RMSE (of the predictive mean), means over rows.

    All are on the scale of y. Where y has point masses (forest, solar, pol, the wines), the
    log-likelihood can grow without limit as the noise variance falls; the CRPS cannot.
    """
    log_prob, crps, squared = [], [], []
    for predictive, target in _predictions(dgp, X, y, num_samples):
        log_prob.append(predictive.log_prob(target))
        crps.append(predictive.crps(target))
        squared.append((predictive.mean - target).square())
    return {
        "test_log_likelihood": torch.cat(log_prob).mean().item(),
        "crps": torch.cat(crps).mean().item(),
        "rmse": torch.cat(squared).mean().sqrt().item(),
    }


def bound(dgp: LatentDGP, loss: ELBO, X: Tensor, y: Tensor, batch_size: int = 512) -> float:
    """The bound (not its negative) of the training data, by passes over batches of them."""
    batches = zip(X.split(batch_size), y.split(batch_size), strict=True)
    return -sum(loss.loss(dgp.model, dgp.guide, *b) * len(b[0]) / len(X) for b in batches)


def _predictions(dgp, X, y, num_samples) -> Iterator[tuple[PredictiveMixture, Tensor]]:
    if y.shape[0] != len(X) or y.dim() - 1 != dgp.likelihood.event_dim:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, which does not fit X with {len(X)} rows and a model "
            f"of targets {'[N, P]' if dgp.likelihood.event_dim else '[N]'}."
        )
    rows = max(1, _CHUNK // num_samples)
    for x, target in zip(X.split(rows), y.split(rows), strict=True):
        yield dgp.predict(x, num_samples), target
