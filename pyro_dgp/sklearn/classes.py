r"""The pool of a classifier: probabilities of the deep GP and of trees, and the class frequencies.

.. math:: p(c) \propto \Big(\sum_k w_k\, p_k(c)\Big)^a

The weights maximise the likelihood of held-out classes: its logarithm is concave, and EM steps
increase it. The exponent a, an inverse temperature, compensates the blurring by pooling, if that
improves the likelihood by more than a standard error.

Sources: Yao et al. (2018), "Using stacking to average Bayesian predictive distributions"; Guo et
al. (2017), "On calibration of modern neural networks", for the temperature.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.sklearn.members import Fold
from pyro_dgp.sklearn.pool import HeldOut, held_out_weights

__all__ = ["ClassPool", "indicators", "likeliest_exponent", "likeliest_weights", "probabilities"]

_EM_STEPS = 1000
# Weights below this are set to 0.
_LEAST = 1e-3
# Exponents from a half to two and a half, evenly spaced in their logarithms.
_EXPONENTS = np.geomspace(0.5, 2.5, 25)


@dataclass
class ClassPool:
    """Weights and exponent of a pool; by default the deep GP alone.

    :param dict weights: Weights of "dgp", "trees" and "marginal"; their sum is 1.
    :param float exponent: Exponent a of the probabilities; 1 for none.
    :param numpy.ndarray shares: Frequencies of the classes among training rows, [C].
    """

    weights: dict[str, float] = field(default_factory=lambda: {"dgp": 1.0})
    exponent: float = 1.0
    shares: np.ndarray = field(default_factory=lambda: np.empty(0))

    @classmethod
    def fitted(cls, parts: Sequence[HeldOut], data: Fold, num_classes: int) -> "ClassPool":
        """The pool that maximises the likelihood of held-out classes.

        :param parts: Held-out rows and their predictions, each of different rows.
        :param Fold data: All training rows.
        :param int num_classes: Number C of classes.
        """
        y, weights = np.concatenate([part.rows.y for part in parts]), held_out_weights(parts)
        found = {"dgp": np.concatenate([probabilities(part.dgp) for part in parts])}
        trees = [part.features.mean(part.rows.X) for part in parts]
        some = [mean for mean in trees if mean is not None]
        if some:
            found["trees"] = np.concatenate(some)
        shares = [_shares(part.trained, num_classes) for part in parts]
        found["marginal"] = np.repeat(shares, [len(part.y) for part in parts], 0)
        rows = np.arange(len(y))
        w = likeliest_weights(np.stack([p[rows, y] for p in found.values()], 1), weights)
        # A new row may be of a class that the other parts exclude.
        w = (w * len(y) + [name == "marginal" for name in found]) / (len(y) + 1)
        products = (w_k * p_k for w_k, p_k in zip(w, found.values(), strict=True))
        pooled = sum(products, np.zeros(()))
        exponent = likeliest_exponent(pooled, y, weights)
        return cls(dict(zip(found, w.tolist(), strict=True)), exponent, _shares(data, num_classes))

    def state(self) -> dict:
        """Tensors and plain data, for a file."""
        return vars(self) | {"shares": torch.as_tensor(self.shares)}

    @classmethod
    def from_state(cls, state: dict) -> "ClassPool":
        """The pool with a :meth:`state`."""
        return cls(**state | {"shares": state["shares"].numpy()})

    def pooled(self, dgp: np.ndarray, trees: np.ndarray | None) -> np.ndarray:
        """Probabilities of classes, [N, C].

        :param numpy.ndarray dgp: Probabilities of the deep GP, [N, C].
        :param trees: Probabilities of the trees, [N, C]; None if they have no weight.
        """
        p = self.weights["dgp"] * dgp
        if trees is not None:
            p = p + self.weights["trees"] * trees
        if self.weights.get("marginal"):
            p = p + self.weights["marginal"] * self.shares
        return _sharpened(p, self.exponent)


def indicators(y: np.ndarray, num_classes: int) -> np.ndarray:
    """One column per class, [N, C], of classes [N]."""
    return (y[:, None] == np.arange(num_classes)).astype(float)


def probabilities(p: PredictiveMixture) -> np.ndarray:
    """Probabilities of classes, [N, C], of a predictive distribution of classes."""
    found = p.probs.to(torch.float64).cpu().numpy()
    if found.ndim == 1:
        found = np.stack([1 - found, found], 1)
    return found / found.sum(1, keepdims=True)


def likeliest_weights(p: np.ndarray, row_weights: np.ndarray) -> np.ndarray:
    """Non-negative weights with sum 1 that maximise the mean log probability.

    :param numpy.ndarray p: Probabilities that K models gave to the true classes, [n, K].
    :param numpy.ndarray row_weights: Weights of the rows, [n].
    :returns: Weights of the models, [K].
    """
    share = row_weights / row_weights.sum()
    w = np.full(p.shape[1], 1 / p.shape[1])
    for _ in range(_EM_STEPS):
        joint = w * p
        w = share @ (joint / joint.sum(1, keepdims=True).clip(np.finfo(float).tiny))
    w = np.where(w < _LEAST, 0, w)
    return w / w.sum()


def likeliest_exponent(p: np.ndarray, y: np.ndarray, row_weights: np.ndarray) -> float:
    """The exponent that maximises the mean log probability; 1 unless better by a standard error.

    :param numpy.ndarray p: Probabilities of classes, [n, C].
    :param numpy.ndarray y: True classes, [n].
    :param numpy.ndarray row_weights: Weights of the rows, with mean 1, [n].
    """
    rows, best, most = np.arange(len(y)), 1.0, 0.0
    plain = _log(p[rows, y])
    for exponent in _EXPONENTS:
        gain = row_weights * (_log(_sharpened(p, exponent)[rows, y]) - plain)
        if gain.mean() > max(most, gain.std() / math.sqrt(len(gain))):
            best, most = float(exponent), gain.mean()
    return best


def _shares(data: Fold, num_classes: int) -> np.ndarray:
    """Frequencies of the classes, [C], none of them 0 (Jeffreys' prior)."""
    counts = np.bincount(data.y, data.weights, num_classes) + 0.5
    return counts / counts.sum()


def _sharpened(p: np.ndarray, exponent: float) -> np.ndarray:
    if exponent != 1:
        p = (p / p.max(1, keepdims=True)) ** exponent
    return p / p.sum(1, keepdims=True)


def _log(p: np.ndarray) -> np.ndarray:
    return np.log(p.clip(np.finfo(float).tiny))
