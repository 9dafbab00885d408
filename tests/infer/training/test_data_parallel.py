"""Two ranks of B rows each have the gradient of one with 2 B, and take its steps."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pyro
import pytest
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from pyro_dgp import LatentDGP
from pyro_dgp.infer import NaturalGradient

TUTORIAL = Path(__file__).parents[3] / "tutorials" / "data_parallel.py"

pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="needs gloo"
)


class Noise:
    """Normal draws [..., B, d] that belong to rows: those of all rows, of which some are taken."""

    def __init__(self, rows, num_rows):
        self.rows, self.num_rows, self.calls = rows, num_rows, 0

    def __call__(self, shape, dtype, device):
        self.calls += 1
        generator = torch.Generator().manual_seed(self.calls)
        whole = (*shape[:-2], self.num_rows, shape[-1])
        return torch.randn(whole, generator=generator, dtype=dtype)[..., self.rows, :]


def step(rank, size, folder):
    """One evaluation and one step on this rank's rows; rank 0 saves gradients and parameters."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if size > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/sync", rank=rank, world_size=size
        )
    torch.manual_seed(0)
    X = torch.randn(16, 2)
    y = torch.sin(X[:, 0])
    dgp = LatentDGP.from_data(X, y, num_inducing=5, name="dgp")
    dgp.num_data = 100
    rows = torch.arange(16)[rank::size]
    module = runpy.run_path(str(TUTORIAL))["Loss"](dgp, 3)
    with torch.no_grad():
        module(X[rows], y[rows])  # finds the structure, which draws
    if size > 1:
        module = DistributedDataParallel(module)
    torch.distributions.normal._standard_normal = Noise(rows, len(X))
    module(X[rows], y[rows]).backward()
    grads = {name: p.grad.clone() for name, p in dgp.named_parameters()}
    optim = NaturalGradient(dgp.layers[-1], pyro.optim.Adam({"lr": 0.1}), lr=0.5)
    optim(list(dgp.parameters()))
    if rank == 0:
        after = {name: p.detach().clone() for name, p in dgp.named_parameters()}
        torch.save([grads, after], f"{folder}/{size}.pt")
    if size > 1:
        distributed.destroy_process_group()


def test_two_ranks_are_one(tmp_path, monkeypatch):
    normal, num_threads = torch.distributions.normal, torch.get_num_threads()
    monkeypatch.setattr(normal, "_standard_normal", normal._standard_normal)  # to have it back
    step(0, 1, str(tmp_path))
    torch.set_num_threads(num_threads)
    multiprocessing.spawn(step, (2, str(tmp_path)), nprocs=2)
    one, two = (torch.load(tmp_path / f"{size}.pt") for size in (1, 2))
    assert one[0].keys() == two[0].keys()
    assert sum(g.abs().sum() > 0 for g in one[0].values()) > 10
    for first, second in zip(one, two, strict=True):
        for name in first:
            torch.testing.assert_close(second[name], first[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.slow
def test_the_tutorial_goes_on_where_it_was_killed(tmp_path):
    """Each rank has its own random state, so that what follows is what would have followed.

    The worst moment is after all ranks have written theirs, and before rank 0 replaces the model.
    """
    code = (
        "import os, runpy, sys, torch; from pathlib import Path; "
        "replace, last = os.replace, int(sys.argv[4]); "
        "os.replace = lambda new, old: "
        "os._exit(1) if torch.load(new)['step'] == last else replace(new, old); "
        f"t = runpy.run_path({str(TUTORIAL)!r}); "
        "import torch.distributed as d; d.init_process_group('gloo'); "
        "folder = Path(sys.argv[1]); folder.mkdir(exist_ok=True); "
        "dgp, losses = t['train'](int(sys.argv[2]), folder, 5); "
        "d.get_rank() or torch.save([losses, dgp.state_dict()], sys.argv[3]); "
        "d.destroy_process_group()"
    )
    (tmp_path / "run.py").write_text(code)

    def run(folder, out, killed_at=0):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", str(tmp_path / "run.py")]
        arguments = [str(tmp_path / folder), "10", str(tmp_path / out), str(killed_at)]
        done = subprocess.run([*command, *arguments], env=env, timeout=300)
        assert (done.returncode != 0) == (killed_at > 0)
        return None if killed_at else torch.load(tmp_path / out)

    whole = run("one", "one.pt")
    run("two", "two.pt", killed_at=10)
    assert torch.load(tmp_path / "two" / "model.pt")["step"] == 5
    assert (tmp_path / "two" / "rank0_10.pt").exists()
    resumed = run("two", "two.pt")
    assert len(whole[0]) == 10
    assert resumed[0] == whole[0]
    for name, value in whole[1].items():
        assert resumed[1][name].equal(value), name
