import copy
import pickle

import pytest
import torch
from torch.distributions import transform_to

from pyro_dgp.gp.constraints import lower_triangular, softplus_above


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_above_is_softplus_plus_its_bound(dtype):
    x = torch.linspace(-20, 20, 9, dtype=dtype)
    transform = transform_to(softplus_above(1e-6))
    torch.testing.assert_close(transform(x), torch.nn.functional.softplus(x) + 1e-6)
    y = torch.tensor([2e-6, 1e-3, 0.01, 1.0, 50.0], dtype=dtype)
    torch.testing.assert_close(transform(transform.inv(y)), y, rtol=1e-4, atol=0)


def test_lower_triangular_keeps_signs():
    S = torch.randn(2, 4, 4).tril()
    transform = transform_to(lower_triangular)
    torch.testing.assert_close(transform(transform.inv(S)), S)
    assert lower_triangular.check(S).all()
    assert (transform(torch.ones(3, 3)).triu(1) == 0).all()


@pytest.mark.parametrize("constraint", [softplus_above(1e-6), lower_triangular])
def test_constraints_can_be_copied(constraint):
    for same in (copy.deepcopy(constraint), pickle.loads(pickle.dumps(constraint))):
        torch.testing.assert_close(
            transform_to(same)(torch.eye(2)), transform_to(constraint)(torch.eye(2))
        )
