import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch

from pyro_dgp.infer.graph import leaves
from pyro_dgp.infer.paths import Gates, reaches, weighted_copy
from pyro_dgp.infer.structure.roles import Roles

EVERYWHERE = Roles(frozenset(), joint=True, nesting=0)


def chain(a):
    """z1 = a, z2 = 2 z1 and z3 = z1 z2, but for the noise."""
    z1 = pyro.sample("z1", dist.Normal(a, 1e-12))
    z2 = pyro.sample("z2", dist.Normal(2 * z1, 1e-12))
    pyro.sample("point", dist.Delta(3 * z2))
    return pyro.sample("z3", dist.Normal(z1 * z2, 1e-12))


def test_gates_stop_what_goes_through_later_draws():
    a = torch.tensor(3.0, requires_grad=True)
    gates = Gates(EVERYWHERE)
    trace = poutine.trace(gates(chain)).get_trace(a)
    assert set(gates.values) == {"z1", "z2", "z3"}
    z1, z2 = gates.values["z1"], gates.values["z2"]
    by_z1, by_z2 = gates.partials(z1 * z2, [z1, z2])
    # With z2 held fixed; through it, 4 z1 = 12.
    torch.testing.assert_close((by_z1, by_z2), (torch.tensor(6.0), torch.tensor(3.0)))
    # The gates are open again, and the trace has what is before them.
    (by_a,) = torch.autograd.grad(trace.nodes["z3"]["value"], a)
    torch.testing.assert_close(by_a, torch.tensor(12.0))
    assert trace.nodes["z1"]["value"] is not z1


def test_reaches_and_leaves():
    a, b = (torch.tensor(x, requires_grad=True) for x in (3.0, 4.0))
    gates = Gates(EVERYWHERE)
    poutine.trace(gates(chain)).get_trace(a)
    z2 = gates.values["z2"]
    assert reaches([z2.exp()], gates) == (True, False)
    assert reaches([b.exp()], gates) == (False, True)
    assert reaches([b], gates) == (False, True)
    assert reaches([z2 * b], gates) == (True, True)
    assert reaches([z2, b.detach()], gates) == (True, False)
    assert reaches([torch.zeros(())], gates) == (False, False)
    assert {id(x) for x in leaves(z2 * b)} == {id(a), id(b)}


def test_weighted_copy():
    z = torch.tensor(2.0, requires_grad=True)
    copy = weighted_copy(z, lambda gradient: 0.1 * gradient)
    (z * copy).backward()
    torch.testing.assert_close(z.grad, torch.tensor(2.2))
