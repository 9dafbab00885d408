r"""The linear pool of the deep GP, the trees and the marginal distribution of the targets.

A model that learns densities from few or noisy rows can be worse than no model at all. Therefore
its distribution function is pooled with two others that hardly overfit,

.. math:: F = w_1 F_{dgp} + w_2 F_{trees} + w_3 F_{marginal}, \qquad
    \mathrm{logit}\, F_c(y) = k\, \mathrm{logit}\, F(y),

with weights that minimise the CRPS of held-out rows. The CRPS of a pool is a quadratic form in its
weights, :math:`\int (F - H)^2`, so this is a quadratic programme. A pool is wider than its parts
(Gneiting and Ranjan 2013); the exponent k, chosen likewise, corrects this.

One component in 500 (of 251 or more) is the normal distribution with the mean and the standard
deviation of all targets: a row that all three parts exclude would cost hundreds of nats. The mean
CRPS hardly changes, as it is stationary at a calibrated forecast.

Sources: Stone (1961) for pools; Breiman (1996), "Stacked regressions"; Yao et al. (2018) for
stacking of distributions; Ranjan and Gneiting (2010) for recalibrated pools; Hesterberg (1995) for
defensive mixtures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyro.distributions as dist
import torch
from scipy.optimize import minimize
from torch.distributions import Distribution

from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.gp.likelihoods.intervals import RoundedNormal
from pyro_dgp.gp.predictive.recalibration import best_exponent
from pyro_dgp.sklearn.features import Features
from pyro_dgp.sklearn.members import Fold

__all__ = [
    "HeldOut",
    "Pool",
    "held_out_weights",
    "kernels",
    "likeliest_width",
    "spread",
    "stacking_weights",
]

# The share of the normal distribution of all targets.
_DEFENSIVE = 0.002
# Points at which distribution functions are compared.
_NUM_POINTS = 200
# Candidates for kernel widths, in standard deviations of y.
_WIDTHS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
# Number of targets that represent all of them, and of rows for choosing kernel widths.
_NUM_TARGETS = 500
_NUM_LOOKED_AT = 500

Lattice = tuple[float, float] | None


@dataclass
class HeldOut:
    """Held-out rows and models that were trained without them, on the scale of training.

    :param Fold rows: The held-out rows.
    :param Fold trained: The rows that were trained on.
    :param PredictiveMixture dgp: Prediction of the deep GP; batch shape [n], event shape [] or [P].
    :param Features features: Features fitted to the rows that were trained on.
    """

    rows: Fold
    trained: Fold
    dgp: PredictiveMixture
    features: Features

    @property
    def y(self) -> np.ndarray:
        """Targets, [n, P]."""
        return self.rows.y.reshape(len(self.rows.y), -1)


def held_out_weights(parts: Sequence[HeldOut]) -> np.ndarray:
    """Weights of all held-out rows, with mean 1, [n]."""
    weights = [np.ones(len(p.y)) if p.rows.weights is None else p.rows.weights for p in parts]
    weights = np.concatenate(weights)
    return weights / weights.mean()


@dataclass
class Pool:
    """Weights and kernels of a pool; by default the deep GP alone.

    :param dict weights: Weights of "dgp", "trees" and "marginal"; their sum is 1.
    :param dict widths: Standard deviations of the kernels around predictions of trees ("trees") and
        around targets ("marginal").
    :param float exponent: Exponent k of the recalibration; 1 for none.
    :param numpy.ndarray targets: Training targets spread evenly over their distribution, [Q, P].
    """

    weights: dict[str, float] = field(default_factory=lambda: {"dgp": 1.0})
    widths: dict[str, float] = field(default_factory=dict)
    exponent: float = 1.0
    targets: np.ndarray = field(default_factory=lambda: np.empty((0, 1)))

    @classmethod
    def fitted(
        cls, parts: Sequence[HeldOut], data: Fold, lattice: Lattice, rng: np.random.Generator
    ) -> "Pool":
        """The pool that minimises the CRPS of held-out rows.

        :param parts: Held-out rows and their predictions, each of different rows.
        :param Fold data: All training rows.
        :param lattice: Origin and step of the targets' lattice, or None.
        :param numpy.random.Generator rng: Source of randomness.
        """
        y, row_weights = np.concatenate([part.y for part in parts]), held_out_weights(parts)
        num_rows, num_outputs = y.shape
        # For each part from its training rows: with a target as the centre of its own kernel, the
        # narrowest kernels would be the most likely ones.
        size = min(_NUM_TARGETS, *(len(part.trained.y) for part in parts))
        centres = [spread(part.trained, size, rng)[:, None] for part in parts]
        marginal = [
            np.broadcast_to(centre, (size, *part.y.shape))
            for centre, part in zip(centres, parts, strict=True)
        ]
        samples = {"marginal": np.concatenate(marginal, 1)}
        trees = [part.features.samples(part.rows.X) for part in parts]
        some = [sample for sample in trees if sample is not None]
        if some:
            samples["trees"] = np.concatenate(some, 1)
        widths = {
            name: likeliest_width(sample, y, lattice, row_weights)
            for name, sample in samples.items()
        }
        targets = spread(data, min(_NUM_TARGETS, len(data.y)), rng)
        cdfs = {name: [] for name in ("dgp", *samples)}
        below, gaps = [], []
        for p in range(num_outputs):
            points, gap = _points(np.concatenate([targets[:, p], y[:, p]]), lattice)
            cdfs["dgp"].append(np.concatenate([_cdf(part.dgp, points, p) for part in parts]))
            for name, sample in samples.items():
                kernel = kernels(sample[..., p : p + 1], widths[name], lattice)
                cdfs[name].append(_cdf(PredictiveMixture(kernel, 1), points, 0))
            below.append(points >= y[:, p : p + 1] - (0.5 * lattice[1] if lattice else 0.0))
            gaps.append(np.broadcast_to(gap, (num_rows, len(gap))))
        H, width = np.concatenate(below).astype(float), np.concatenate(gaps)
        width = width * np.tile(row_weights, num_outputs)[:, None]
        F = [np.concatenate(cdf) for cdf in cdfs.values()]
        w = stacking_weights(F, H, width)
        exponent = 1.0
        if num_outputs == 1:  # no such transformation acts on a joint distribution
            mixed = sum((w_i * F_i for w_i, F_i in zip(w, F, strict=True)), np.zeros(()))
            exponent = best_exponent(
                torch.as_tensor(mixed), torch.as_tensor(H), torch.as_tensor(width)
            )
        return cls(dict(zip(cdfs, w.tolist(), strict=True)), widths, exponent, targets)

    def state(self) -> dict:
        """Tensors and plain data, for a file."""
        return vars(self) | {"targets": torch.as_tensor(self.targets)}

    @classmethod
    def from_state(cls, state: dict) -> "Pool":
        """The pool with a :meth:`state`."""
        return cls(**state | {"targets": state["targets"].numpy()})

    def counts(self, num_samples: int) -> dict[str, int]:
        """Number of components per part, in proportion to the weights.

        A fitted pool has "normal" as a further part.

        :param int num_samples: Number of components of all parts.
        """
        normal = round(_DEFENSIVE * num_samples) if self.widths else 0
        # Cumulative weights are rounded, so that the counts add up.
        sums = np.cumsum([0.0, *self.weights.values()]) * (num_samples - normal)
        counts = np.diff(np.round(sums).astype(int)).tolist()
        return dict(zip(self.weights, counts, strict=True)) | {"normal": normal}


def kernels(samples: np.ndarray, width: float, lattice: Lattice) -> Distribution:
    """Normal distributions around samples, [S, N, P], rounded to a lattice if there is one."""
    loc = torch.as_tensor(np.ascontiguousarray(samples), dtype=torch.float64)
    scale = torch.full((), width, dtype=torch.float64).expand(loc.shape)
    if lattice is None:
        return dist.Normal(loc, scale, validate_args=False)
    return RoundedNormal(loc, scale, lattice[1], lattice[0])


def likeliest_width(
    samples: np.ndarray, y: np.ndarray, lattice: Lattice, weights: np.ndarray
) -> float:
    """The standard deviation of kernels that maximises the likelihood of held-out targets.

    :param numpy.ndarray samples: Centres of the kernels, [S, n, P].
    :param numpy.ndarray y: Held-out targets, [n, P].
    :param lattice: Origin and step of the targets' lattice, or None.
    :param numpy.ndarray weights: Weights of the rows, [n].
    """
    rows = np.unique(np.linspace(0, len(y) - 1, _NUM_LOOKED_AT).astype(int))
    samples, target = samples[:, rows], torch.as_tensor(y[rows])

    def log_density(width: float) -> float:
        p = PredictiveMixture(kernels(samples, width, lattice), 1)
        # Clamped, as a row far from all samples would decide alone.
        return float(weights[rows] @ p.log_prob(target).clamp_min(-20.0).numpy())

    return max(_WIDTHS, key=log_density)


def spread(data: Fold, number: int, rng: np.random.Generator) -> np.ndarray:
    """A given number of targets spread evenly over their distribution, [number, P]."""
    y, weights = data.y.reshape(len(data.y), -1), data.weights
    order = np.argsort(y[:, 0], kind="stable") if y.shape[1] == 1 else rng.permutation(len(y))
    share = np.full(len(y), 1 / len(y)) if weights is None else weights[order] / weights.sum()
    at = (np.arange(number) + 0.5) / number
    return y[order[np.searchsorted(share.cumsum(), at).clip(0, len(y) - 1)]]


def _points(y: np.ndarray, lattice: Lattice) -> tuple[np.ndarray, np.ndarray]:
    """Points at which distribution functions are compared, [G], and their weights, [G]."""
    low, high = y.min(), y.max()
    if lattice is not None and (high - low) / lattice[1] < 2 * _NUM_POINTS:
        first, last = (round((end - lattice[0]) / lattice[1]) for end in (low, high))
        points = lattice[0] + lattice[1] * np.arange(first, last + 1)
        return points, np.full(len(points), lattice[1])
    even = np.linspace(1.1 * low - 0.1 * high, 1.1 * high - 0.1 * low, _NUM_POINTS // 2)
    quantiles = np.quantile(y, np.linspace(0, 1, _NUM_POINTS // 2))
    # Also equal ones: all targets have the same number of points.
    edges = np.sort(np.concatenate([even, quantiles]))
    return 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)


def _cdf(p: PredictiveMixture, points: np.ndarray, output: int) -> np.ndarray:
    """Distribution function of one target at some points, [n, G]."""
    shape = p.batch_shape + p.event_shape
    F = p.cdf(torch.as_tensor(points).reshape(-1, *[1] * len(shape)).expand(-1, *shape))
    return (F[..., output] if p.event_dim else F).T.numpy()


def stacking_weights(cdfs: Sequence[np.ndarray], H: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Non-negative weights with sum 1 of the linear pool that minimises the mean CRPS.

    :param cdfs: C distribution functions at G points for n rows, [n, G] each.
    :param numpy.ndarray H: Indicators that a row's target is at most the point, [n, G].
    :param numpy.ndarray width: Quadrature weights of the points, [n, G] or [G].
    :returns: Weights of the distributions, [C].
    """
    root = np.sqrt(width)
    distances = [((cdf - H) * root).ravel() for cdf in cdfs]
    A = np.array([[a @ b for b in distances] for a in distances]) / len(H)
    A /= max(np.trace(A), np.finfo(float).tiny)
    start = np.full(len(A), 1 / len(A))
    found = minimize(
        lambda w: w @ A @ w, start, jac=lambda w: 2 * A @ w, method="SLSQP",
        bounds=[(0, 1)] * len(A),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 200},
    )  # fmt: skip
    w = np.where(found.x < 1e-3, 0, found.x)
    return w / w.sum()
