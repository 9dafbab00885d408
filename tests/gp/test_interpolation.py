import pyro
import pytest
import torch

from pyro_dgp import LatentDGP
from pyro_dgp.gp import interpolation, prediction


def model(num_layers=2, **options):
    """With a latent input, and functions and variances that are far from the prior's."""
    pyro.set_rng_seed(0)
    X, y = torch.randn(60, 2), torch.randn(60)
    dgp = LatentDGP.from_data(X, y, num_layers=num_layers, num_inducing=20, **options)
    for layer in dgp.layers[1:]:
        layer.u_loc.data.normal_()
        layer.u_scale_tril = (0.3 * torch.randn(layer.u_scale_tril.shape)).tril()
    return dgp, X


def predicted(dgp, X, monkeypatch, num_samples=200, **options):
    """With the interpolation, and without."""
    found = []
    for replace in (interpolation.interpolated, lambda layers, z, some: layers):
        with monkeypatch.context() as patch:
            patch.setattr(prediction, "interpolated", replace)
            generator = torch.Generator().manual_seed(1)
            p = dgp.predict(X, num_samples, shared_draws=True, generator=generator, **options)
        found.append((p.components.loc, p.components.scale))
    return found


class Counted:
    """A function that keeps what it gave."""

    def __init__(self, function):
        self.function, self.values = function, []

    def __call__(self, *args):
        self.values.append(self.function(*args))
        return self.values[-1]


@pytest.mark.parametrize("lengthscale", [0.5, 1.5])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_interpolation_is_exact(monkeypatch, num_layers, lengthscale):
    dgp, X = model(num_layers)
    kernel = dgp.layers[1].kernel
    kernel.lengthscale = torch.full_like(kernel.lengthscale, lengthscale)
    with monkeypatch.context() as patch:
        patch.setattr(interpolation, "_num_nodes", counted := Counted(interpolation._num_nodes))
        found, expected = predicted(dgp, X, patch)
    assert counted.values
    assert max(counted.values) < 150  # or all draws would be evaluated
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_fixed_latent_input_takes_few_nodes(monkeypatch):
    dgp, X = model()
    found, expected = predicted(dgp, X, monkeypatch, z=torch.tensor([0.7]))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options", [{"kernel": "matern52"}, {"latent_dim": 2}, {"latent_dim": 0}])
def test_other_models_are_evaluated_at_all_draws(options):
    dgp, _ = model(**options)
    z = torch.randn(50, 1, dgp.layers[0].noise_dim)
    assert interpolation.interpolated(dgp.layers, z, slice(0, 50)) == list(dgp.layers)
