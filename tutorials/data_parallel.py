# %% [markdown]
# # Several processes, one model
#
# PyTorch's `DistributedDataParallel` averages gradients over processes. The bounds of this package
# are sums over data, scaled by `num_data / B`, so the average over ranks of B rows each is the
# estimate that one process makes of all their rows: nothing of the training changes but its size.
#
#     torchrun --nproc-per-node 2 tutorials/data_parallel.py
#
# Natural gradients work in the same way, since they start from `.grad` after it has been averaged.
# The loss is wrapped as a module, whose parameters DDP finds:

# %%
import os
from pathlib import Path

import numpy as np
import pyro
import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pyro_dgp import DRegIWELBO, LatentDGP


class Loss(nn.Module):
    """The negative bound of a minibatch."""

    def __init__(self, dgp: LatentDGP, K: int) -> None:
        super().__init__()
        self.dgp, self.loss = dgp, DRegIWELBO(K=K)

    def forward(self, X: Tensor, y: Tensor) -> Tensor:
        return self.loss.differentiable_loss(self.dgp.model, self.dgp.guide, X, y)


# %% [markdown]
# All ranks must start from the same parameters, which one seed gives (DDP would copy rank 0's,
# too), and then draw different rows and samples: a seed for each rank. For a run that may be
# killed at any time, rank 0 saves parameters, optimiser and the number of the step, and every rank
# its own random state and losses, in a file of that step.


# %%
def simulate(num_rows: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (num_rows, 1))
    y = np.sin(3 * x[:, 0]) * np.where(rng.random(num_rows) < 0.5, 1, -1)
    y = y + 0.1 * rng.normal(size=num_rows)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y / y.std(), dtype=torch.float32)


def train(num_steps: int, folder: Path, save_every: int = 100) -> tuple[LatentDGP, list[float]]:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    X, y = simulate(2000)
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(X, y, num_inducing=32)
    module = DistributedDataParallel(Loss(dgp, K=10))
    optim = torch.optim.Adam(module.parameters(), lr=0.01)
    pyro.set_rng_seed(1 + rank)
    start, losses = 0, []
    common = folder / "model.pt"
    if common.exists():
        state = torch.load(common)
        dgp.load_state_dict(state["dgp"])
        optim.load_state_dict(state["optim"])
        start = state["step"]
        mine = torch.load(folder / f"rank{rank}_{start}.pt")
        torch.set_rng_state(mine["random state"])
        losses = mine["losses"]
    for step in range(start, num_steps):
        rows = torch.randint(len(X), (64 // size,))
        optim.zero_grad()
        loss = module(X[rows], y[rows])
        loss.backward()
        optim.step()
        losses.append(loss.item())
        if (step + 1) % save_every == 0:
            # The files of the last checkpoint stay until model.pt names the step of the new ones,
            # from which training can continue.
            own = folder / f"rank{rank}_{step + 1}.pt"
            torch.save({"random state": torch.get_rng_state(), "losses": losses}, own)
            distributed.barrier()
            if rank == 0:
                state = {"dgp": dgp.state_dict(), "optim": optim.state_dict(), "step": step + 1}
                torch.save(state, folder / "new.pt")
                os.replace(folder / "new.pt", common)
            distributed.barrier()
            for old in set(folder.glob(f"rank{rank}_*.pt")) - {own}:
                old.unlink()
    return dgp, losses


# %%
def main(num_steps: int = 1000, folder: Path = Path("data_parallel")) -> None:
    distributed.init_process_group("gloo")  # "nccl" for a GPU per rank
    folder.mkdir(exist_ok=True)
    dgp, losses = train(num_steps, folder)
    if distributed.get_rank() == 0:
        X, y = simulate(2000)
        p = dgp.predict(X[:200], 200)
        print(f"loss {np.mean(losses[:50]):.0f} -> {np.mean(losses[-50:]):.0f}")
        print(f"mean log density of 200 rows: {p.log_prob(y[:200]).mean():.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
