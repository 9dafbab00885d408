"""Initial values of a deep GP: inducing inputs by k-means, mixing by principal components."""

import warnings

import numpy as np
from scipy.cluster.vq import kmeans2

__all__ = ["inducing_inputs", "principal_mixing", "published_mixing"]


def inducing_inputs(
    X: np.ndarray, num_inducing: int, num_extra: int, rng: np.random.Generator
) -> np.ndarray:
    """Cluster centroids of X, or X itself padded with normal draws if it has too few rows.

    Centroids start at distinct rows, so that repeated rows do not make clusters coincide. A cluster
    that loses its members keeps its centroid.

    :param numpy.ndarray X: Inputs, [N, D].
    :param int num_inducing: Number of inducing inputs M.
    :param int num_extra: Number of columns of standard normal draws to append, for latent inputs.
    :param numpy.random.Generator rng: Source of all random numbers.
    :returns: Inducing inputs, [M, D + num_extra].
    """
    num_inputs = X.shape[1]
    distinct = np.unique(X, axis=0)
    if len(distinct) > num_inducing:
        start = distinct[rng.choice(len(distinct), num_inducing, replace=False)]
        with warnings.catch_warnings():
            # An empty cluster keeps its previous, distinct centroid, as intended.
            warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
            centroids, _ = kmeans2(X, start, minit="matrix")
    else:
        padding = rng.standard_normal((num_inducing - len(distinct), num_inputs))
        centroids = np.concatenate([distinct, padding])
    return np.concatenate([centroids, rng.standard_normal((num_inducing, num_extra))], axis=1)


def principal_mixing(X: np.ndarray, num_gps: int) -> np.ndarray:
    """The first ``min(num_gps, D)`` principal directions of X as columns.

    :param numpy.ndarray X: Inputs, [N, D].
    :param int num_gps: Largest number of directions.
    :returns: P, [D, min(num_gps, D)], orthonormal columns whose largest entry is positive.
    """
    _, _, directions = np.linalg.svd(X - X.mean(0), full_matrices=X.shape[0] < X.shape[1])
    P = directions[:num_gps].T
    largest = np.abs(P).argmax(0)
    return P * np.where(P[largest, np.arange(P.shape[1])] < 0, -1.0, 1.0)


def published_mixing(X: np.ndarray, num_gps: int) -> np.ndarray:
    """The mixing matrix that produced the published numbers.

    The authors' code takes the first ``num_gps`` *columns* of ``svd(X)[2]``, whose *rows* are the
    principal directions. If X has fewer columns it pads with zeros, and the GPs of those columns
    have no effect.

    :param numpy.ndarray X: Inputs, [N, D].
    :param int num_gps: Number of columns.
    :returns: P, [D, num_gps].
    """
    _, _, directions = np.linalg.svd(X, full_matrices=X.shape[0] < X.shape[1])
    P = np.zeros((X.shape[1], num_gps))
    width = min(num_gps, X.shape[1])
    P[:, :width] = directions[:, :width]
    return P
