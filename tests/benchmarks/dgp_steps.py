"""A training step of a latent deep GP: REG, DReG, VI, GPyTorch's DeepGP and matrix products alone.

python -m tests.benchmarks.dgp_steps                 the paper's size, float64 and float32
python -m tests.benchmarks.dgp_steps --grid out.csv  depths 1-4, K 1-200, B 64 and 512, D 4-26

GPyTorch's model has the same hidden layers (GPs, inducing inputs, mixing) and as many samples, but
no latent input. The floor is the time of the products that no way around is known for: for each
layer of R GPs with M inducing inputs, and n = K B rows, L^-1 k (M M n), C a (R M M n), and as much
again for each of their two derivatives where both are needed.
"""

import argparse
import csv
import itertools
import resource
import sys
import time
from statistics import median

import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO

M = 128


def pyro_step(X, y, num_layers, loss):
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(X, y, num_layers=num_layers, num_inducing=M, mixing="published")
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 1e-3}), loss=loss)
    return lambda batch: svi.step(X[batch], y[batch])


def gpytorch_step(X, y, num_layers, K):
    try:
        import gpytorch
        from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
        from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
    except ImportError:
        return None

    D = X.shape[1]
    num_gps = min(5, D)

    class Layer(DeepGPLayer):
        def __init__(self, output_dims):
            shape = torch.Size([] if output_dims is None else [output_dims])
            distribution = CholeskyVariationalDistribution(M, batch_shape=shape)
            strategy = VariationalStrategy(self, X[:M].clone(), distribution)
            super().__init__(strategy, D, output_dims)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(ard_num_dims=D)
            )

        def forward(self, x):
            mean, covariance = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    class Model(DeepGP):
        def __init__(self):
            super().__init__()
            hidden = [Layer(num_gps) for _ in range(num_layers - 1)]
            self.hidden, self.last = torch.nn.ModuleList(hidden), Layer(None)
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.mixing = torch.linalg.svd(X, full_matrices=False)[2][:num_gps].to(X)

        def forward(self, h):
            samples = False
            for layer in self.hidden:
                g = layer(h, are_samples=samples)
                # A draw, mixed, with the inputs added, as the paper's hidden layers do.
                draw = torch.distributions.Normal(g.mean, g.variance.sqrt()).rsample()
                h, samples = draw @ self.mixing + h, True
            return self.last(h, are_samples=samples)

    model = Model().to(X)
    bound = gpytorch.mlls.DeepApproximateMLL(
        gpytorch.mlls.VariationalELBO(model.likelihood, model, len(X))
    )
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(batch):
        with gpytorch.settings.num_likelihood_samples(K):
            optim.zero_grad()
            (-bound(model(X[batch]), y[batch])).backward()
            optim.step()

    return step


def floor_step(X, num_layers, n):
    rows = torch.randn(n, M).to(X)
    square = torch.randn(M, M).to(X)
    products = []
    for depth in range(num_layers):
        R = 1 if depth == num_layers - 1 else min(5, X.shape[1])
        products.append(torch.randn(M, R * M).to(X))

    def step(batch):
        for columns in products:
            for _ in range(3):  # A = k L^-T and its two derivatives
                rows @ square
            wide = rows @ columns  # C a for all GPs; the derivative by a takes no product
            rows.mT @ wide

    return step


def measure(D, num_layers, K, B, dtype, num_rounds):
    torch.manual_seed(0)
    X, y = torch.randn(1000, D, dtype=dtype), torch.randn(1000, dtype=dtype)
    steps = {
        "REG": pyro_step(X, y, num_layers, PartiallyCollapsedIWELBO(K=K)),
        "DReG": pyro_step(X, y, num_layers, DRegIWELBO(K=K)),
        "VI": pyro_step(X, y, num_layers, TraceMeanField_ELBO()),
        "GPyTorch": gpytorch_step(X, y, num_layers, K),
        "floor": floor_step(X, num_layers, K * B),
    }
    times = {name: [] for name, step in steps.items() if step is not None}
    for _ in range(num_rounds + 1):
        for name, seconds in times.items():  # in turn: noise is large
            batch = torch.randint(len(X), (B,))
            start = time.perf_counter()
            steps[name](batch)
            seconds.append(time.perf_counter() - start)
    row = {"D": D, "layers": num_layers, "K": K, "B": B, "dtype": str(dtype).split(".")[-1]}
    row |= {f"{name} ms": round(1e3 * median(s[1:]), 1) for name, s in times.items()}
    paired = {
        f"DReG / {other}": round(
            median(a / b for a, b in zip(times["DReG"][1:], times[other][1:], strict=True)), 2
        )
        for other in times
        if other != "DReG"
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row | paired | {"peak MiB so far": peak}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    cases = [(12, 2, 50, 64, t) for t in (torch.float64, torch.float32)]
    if options.grid:
        cases = itertools.product(
            (4, 12, 26), (1, 2, 3, 4), (1, 10, 50, 200), (64, 512), (torch.float64, torch.float32)
        )
    file = open(options.grid, "w", newline="") if options.grid else sys.stdout  # noqa: SIM115
    writer = None
    for case in cases:
        row = measure(*case, options.rounds)
        if writer is None:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
        writer.writerow(row)
        file.flush()
