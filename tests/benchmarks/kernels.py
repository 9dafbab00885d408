"""Forward and backward of the kernels, beside Pyro's own, on one thread.

python -m tests.benchmarks.kernels                   [3200, 12] against [128, 12], both dtypes
python -m tests.benchmarks.kernels --fixed           with fixed variances, as in hidden layers

Each runs twice in a turn, and the second time counts, since what another left in the caches matters
as much as what is compared. Freed memory is kept, as in training: new pages would take longer than
the arithmetic.
"""

import argparse
from statistics import median

import pyro
import pyro.contrib.gp.kernels as kernels
import torch
from pyro.nn import PyroModule

from pyro_dgp.gp.kernels import KERNELS
from pyro_dgp.memory import keep_freed_memory
from tests.benchmarks.measure import in_turn, paired

N, M, D = 3200, 128, 12
PYRO = {
    "rbf": kernels.RBF,
    "matern12": kernels.Exponential,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
}


def program(name, kernel_class, X, Z, weight, fixed):
    kernel = kernel_class(D, torch.ones(()).to(X), torch.full((D,), D**0.5).to(X))
    if fixed:
        del kernel.variance
        kernel.register_buffer("variance", torch.ones(()).to(X))
    PyroModule(name).kernel = kernel  # or the kernels would share their parameters
    inputs = [X, Z, *kernel.parameters()]
    return lambda: torch.autograd.grad(kernel(X, Z), inputs, weight)


def measure(dtype, num_rounds, fixed):
    pyro.clear_param_store()
    torch.manual_seed(0)
    X, Z = (torch.randn(n, D, dtype=dtype, requires_grad=True) for n in (N, M))
    weight = torch.randn(N, M, dtype=dtype)
    kinds = KERNELS | {f"Pyro {name}": kind for name, kind in PYRO.items()}
    programs = {}
    for name, kind in kinds.items():
        run = program(name, kind, X, Z, weight, fixed)
        programs |= {f"before {name}": run, name: run}
    times = in_turn(programs, num_rounds, num_warm=5)
    for name in kinds:
        seconds = times[name]
        ratio = paired(seconds, times["rbf"])
        beside = "" if name.startswith("Pyro") else f"{paired(times[f'Pyro {name}'], seconds):.2f}"
        print(
            f"| {name} | {str(dtype).split('.')[-1]} | {1e3 * median(seconds):.2f} | {ratio:.2f} |"
            f" {beside} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fixed", action="store_true", help="fix the variances")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| kernel | dtype | ms | / rbf | Pyro's / ours |\n|---|---|---|---|---|")
    for dtype in (torch.float32, torch.float64):
        measure(dtype, options.rounds, options.fixed)


if __name__ == "__main__":
    main()
