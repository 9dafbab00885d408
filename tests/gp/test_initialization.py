import numpy as np
import pytest

from pyro_dgp.gp.initialization import inducing_inputs, principal_mixing, published_mixing


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_centroids_of_clusters(rng):
    centers = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    X = np.concatenate([c + 0.1 * rng.standard_normal((50, 2)) for c in centers])
    found = [inducing_inputs(X, 3, 0, np.random.default_rng(s)) for s in range(10)]
    best = min(np.abs(np.sort(f, 0) - np.sort(centers, 0)).max() for f in found)
    assert best < 0.1


@pytest.mark.parametrize("num_rows", [1, 5, 20])
def test_few_rows_are_kept_and_padded(rng, num_rows):
    X = rng.standard_normal((num_rows, 3))
    Z = inducing_inputs(X, 20, 2, rng)
    assert Z.shape == (20, 5)
    assert {tuple(x) for x in X} <= {tuple(z) for z in Z[:, :3]}
    assert np.linalg.matrix_rank(Z) == 5


def test_repeated_rows_give_distinct_inducing_inputs(rng):
    X = np.repeat(rng.standard_normal((30, 2)), 50, axis=0)
    for num_inducing in (20, 30, 60):
        Z = inducing_inputs(X, num_inducing, 0, rng)
        assert len(np.unique(Z, axis=0)) == num_inducing
        assert np.isfinite(Z).all()


def test_constant_columns(rng):
    X = np.concatenate([rng.standard_normal((40, 2)), np.ones((40, 1))], axis=1)
    assert np.allclose(inducing_inputs(X, 10, 0, rng)[:, 2], 1)


def test_same_seed_same_inputs(rng):
    X = rng.standard_normal((100, 3))
    one, two = (inducing_inputs(X, 10, 1, np.random.default_rng(7)) for _ in range(2))
    assert (one == two).all()


def test_principal_directions(rng):
    scales = np.array([1.0, 9.0, 4.0])
    X = rng.standard_normal((500, 3)) * scales + 100
    P = principal_mixing(X, 2)
    _, vectors = np.linalg.eigh(np.cov(X.T))
    np.testing.assert_allclose(np.abs(P), np.abs(vectors[:, [2, 1]]), atol=1e-8)
    np.testing.assert_allclose(P.T @ P, np.eye(2), atol=1e-12)
    assert principal_mixing(X, 5).shape == (3, 3)
    assert principal_mixing(X[:1], 5).shape == (3, 3)


def test_published_mixing_takes_columns(rng):
    X = rng.standard_normal((50, 7))
    np.testing.assert_array_equal(
        published_mixing(X, 5), np.linalg.svd(X, full_matrices=False)[2][:, :5]
    )
    narrow = published_mixing(X[:, :2], 5)
    assert narrow.shape == (2, 5)
    assert (narrow[:, 2:] == 0).all()
