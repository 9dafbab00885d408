"""A small deep GP, and data for it."""

import pickle

import torch

from pyro_dgp import GPLayer, LatentDGP

#: Rows, inputs and inducing inputs.
N, D, M = 30, 3, 10


def data(num_rows=N, num_inputs=D, num_outputs=None, dtype=torch.float64):
    """Noise: X [N, D] and y [N], or [N, P]."""
    shape = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    return torch.randn(num_rows, num_inputs, dtype=dtype), torch.randn(shape, dtype=dtype)


def small(X, y, **options):
    return LatentDGP.from_data(X, y, num_inducing=M, **options)


def randomize(dgp, scale=1.0):
    """Moves q(u) away from its initial value; u_loc has this standard deviation."""
    with torch.no_grad():
        for layer in dgp.layers:
            if isinstance(layer, GPLayer):
                layer.u_loc.normal_(std=scale)
                m = layer.u_loc.shape[-1]
                layer.u_scale_tril_unconstrained.copy_(
                    0.3 * torch.eye(m) + 0.05 * torch.randn(m, m)
                )
    return dgp


def through_pickle(dgp):
    return pickle.loads(pickle.dumps(dgp))
