"""The paper's configuration of a model for given data."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.checks import check_data
from pyro_dgp.gp.encoders import GaussianEncoder
from pyro_dgp.gp.initialization import inducing_inputs, principal_mixing, published_mixing
from pyro_dgp.gp.kernels import kernel_named
from pyro_dgp.gp.layers import GPLayer, LatentLayer, Layer
from pyro_dgp.gp.likelihoods import GaussianLikelihood, Likelihood, likelihood_for

if TYPE_CHECKING:
    from pyro_dgp.gp.latent_dgp import LatentDGP

__all__ = ["from_data"]

M = TypeVar("M", bound="LatentDGP")

_MIXINGS = {"principal": principal_mixing, "published": published_mixing}


@torch.inference_mode(False)  # its parameters could not be trained
def from_data(
    cls: type[M],
    X: Tensor,
    y: Tensor,
    *,
    num_layers: int = 2,
    latent_dim: int = 1,
    num_inducing: int = 128,
    num_last_inducing: int | None = None,
    num_gps: int = 5,
    encoder_widths: Sequence[int] | None = (20, 20),
    likelihood: Likelihood | type[Likelihood] | str | None = None,
    noise_variance: float = 0.01,
    mixing: str = "principal",
    kernel: Callable[[int], Kernel] | str = "rbf",
    jitter: float = 1e-6,
    function_draws: str = "independent",
    num_features: int = 1000,
    name: str | None = None,
) -> M:
    """The paper's configuration for data with columns of mean 0 and standard deviation 1.

    Random initial values come from torch's generator, so ``pyro.set_rng_seed`` fixes them.

    :param torch.Tensor X: Training inputs, [N, D]; their dtype and device are the model's.
    :param torch.Tensor y: Training targets, [N] or [N, P]; what the likelihood accepts.
    :param int num_layers: Number of GP layers L; 1 is a shallow GP.
    :param int latent_dim: Dimension of the latent input; 0 for a plain deep GP.
    :param int num_inducing: Number of inducing inputs per layer.
    :param int num_last_inducing: Number of inducing inputs of the last layer; None for the same.
    :param int num_gps: Number of GPs per hidden layer; with ``mixing="principal"`` at most D.
    :param encoder_widths: Hidden widths of q(z | x, y); None fixes q(z) to the prior.
    :param likelihood: Likelihood, a :class:`~pyro_dgp.gp.Likelihood`; or a subclass, or a name in
        :data:`~pyro_dgp.gp.likelihoods.LIKELIHOODS`, whose initial values then come from y; None
        for Gaussian noise of one variance.
    :param float noise_variance: Initial noise variance, with ``likelihood=None``.
    :param str mixing: Mixing matrix of hidden layers: "principal" for the first principal
        directions, "published" for the matrix of the authors' code
        (:func:`~pyro_dgp.gp.initialization.published_mixing`).
    :param kernel: Kernel: "rbf" for the paper's ARD RBF kernel, whose variance is trained in the
        last layer only; "matern12", "matern32" or "matern52" for rougher functions; or a function
        from the number of inputs to a kernel.
    :param float jitter: Relative jitter of the inducing inputs' kernel matrices.
    :param str function_draws: Draws of the hidden layers for the samples of a datum, "independent"
        or "shared"; see :class:`GPLayer`.
    :param int num_features: Number of random features of a shared draw.
    :param str name: Prefix of the names of sites and parameters; see :class:`LatentDGP`.
    :returns: The model.
    :raises TypeError: If X or y is not a tensor of a suitable dtype.
    :raises ValueError: If X or y has a wrong shape or unsuitable values, or an option is out of
        range.
    """
    if likelihood is None:
        check_data(X, y)
        noise = torch.as_tensor(noise_variance, dtype=X.dtype)
        likelihood = GaussianLikelihood(noise, event_dim=y.dim() - 1)
    else:
        check_data(X, y, integer_targets=True)
        likelihood = likelihood_for(y, likelihood)
    check_data(X, y, integer_targets=likelihood.discrete)
    likelihood.check_targets(y)
    num_layers = check_integer("num_layers", num_layers, 1)
    latent_dim = check_integer("latent_dim", latent_dim, 0)
    num_inducing = check_integer("num_inducing", num_inducing, 1)
    if num_last_inducing is None:
        num_last_inducing = num_inducing
    num_last_inducing = check_integer("num_last_inducing", num_last_inducing, 1)
    num_gps = check_integer("num_gps", num_gps, 1)
    if mixing not in _MIXINGS:
        raise ValueError(f"mixing must be one of {', '.join(_MIXINGS)}, but it is {mixing!r}.")

    num_inputs = X.shape[1]
    num_functions = likelihood.output_dim(1 if y.dim() == 1 else y.shape[1])
    rng = np.random.default_rng(int(torch.randint(2**62, ())))
    inputs = X.detach().double().cpu().numpy()

    def tensor(array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, dtype=X.dtype, device=X.device)

    P = tensor(_MIXINGS[mixing](inputs, num_gps))
    layers: list[Layer] = []
    input_dim = num_inputs
    if latent_dim:
        encoder = None
        if encoder_widths is not None:
            seen = likelihood.encode(y[:1], X.dtype)
            num_seen = 1 if seen.dim() == 1 else seen.shape[1]
            encoder = GaussianEncoder(num_inputs + num_seen, latent_dim, encoder_widths, X.dtype)
        layers.append(LatentLayer(latent_dim, encoder))
        input_dim += latent_dim
    for depth in range(1, num_layers + 1):
        last = depth == num_layers
        M = num_last_inducing if last else num_inducing
        Xu = tensor(inducing_inputs(inputs, M, input_dim - num_inputs, rng))
        k = kernel_named(kernel, input_dim, last) if isinstance(kernel, str) else kernel(input_dim)
        if last:
            layer = GPLayer(k, Xu, num_functions, jitter=jitter)
        else:
            A = tensor(np.eye(num_inputs, input_dim))
            layer = GPLayer(
                k, Xu, P.shape[1], P, A, u_scale=1e-5, jitter=jitter,
                function_draws=function_draws, num_features=num_features,
            )  # fmt: skip
        layers.append(layer)
        input_dim = num_inputs
    return cls(layers, likelihood, len(X), name).to(dtype=X.dtype, device=X.device)
