import torch
from torch.nn.functional import softplus

from pyro_dgp.gp import GaussianEncoder


def test_network_is_the_papers():
    encoder = GaussianEncoder(input_dim=4, latent_dim=2, widths=(20, 20))
    X, y = torch.randn(5, 3), torch.randn(5)
    (W1, b1), (W2, b2), (W3, b3) = ((m.weight, m.bias) for m in encoder.linears)
    a = torch.tanh(torch.cat([X, y[:, None]], 1) @ W1.T + b1)  # 4 -> 20, no skip
    a = a + torch.tanh(a @ W2.T + b2)  # 20 -> 20, skip
    loc, head = (a @ W3.T + b3).split(2, 1)
    q = encoder(X, y)
    assert (q.batch_shape, q.event_shape) == ((5,), (2,))
    torch.testing.assert_close(q.mean, loc)
    torch.testing.assert_close(q.stddev, softplus(head - 3))


def test_initial_values():
    encoder = GaussianEncoder(input_dim=300, latent_dim=1, widths=(200,))
    W = encoder.linears[0].weight
    assert all((m.bias == 0).all() for m in encoder.linears)
    # Glorot normal: variance 2 / (fan in + fan out), here from 60,000 draws.
    assert abs(W.var() / (2 / 500) - 1) < 4 * (2 / W.numel()) ** 0.5


def test_several_targets_and_no_hidden_layer():
    q = GaussianEncoder(input_dim=5, latent_dim=3, widths=())(torch.randn(7, 3), torch.randn(7, 2))
    assert (q.batch_shape, q.event_shape) == ((7,), (3,))


def test_scale_does_not_underflow():
    encoder = GaussianEncoder(2, 1, widths=()).float()
    with torch.no_grad():
        encoder.linears[-1].bias[1] = -500.0
    X = torch.zeros(1, 1, dtype=torch.float32)
    assert encoder(X, X).stddev.item() > 0
