"""A training step of a latent deep GP: REG, DReG, VI, GPyTorch's DeepGP and matrix products alone.

python -m tests.benchmarks.dgp_steps                 the paper's size and depth 4, both dtypes
python -m tests.benchmarks.dgp_steps grid out.csv    depths 1-4, K 1-200, B 64 and 512, D 4-26
python -m tests.benchmarks.dgp_steps figure out.csv  draws the grid to out.png
python -m tests.benchmarks.dgp_steps profile         where a step's time goes
python -m tests.benchmarks.dgp_steps memory          with freed memory given back, and kept

GPyTorch's model has the same hidden layers (GPs, inducing inputs, mixing) and as many samples, but
no latent input: its first layer sees B rows, where ours sees K B. "GPyTorch, K B rows" is the same
model given its inputs K times, which makes the work the same. The floor is the time of the step's
large products alone: for each layer of R GPs with M inducing inputs, and n = K B rows, a = L^-1 k
and the derivative by k (M M n each), C a for all GPs and their derivatives by C (R M M n each). A
grid goes on where it stopped.
"""

import argparse
import csv
import ctypes
import itertools
import os
from pathlib import Path
from statistics import mean, median

import pyro
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from torch.profiler import ProfilerActivity, profile

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO
from pyro_dgp._files import written_whole
from pyro_dgp.infer import paper_optimizer
from pyro_dgp.memory import keep_freed_memory
from tests.benchmarks.measure import in_turn, paired, peak_memory

M = 128
DTYPES = (torch.float64, torch.float32)
PAPER = [(12, 2, 50, 64, t) for t in DTYPES]
DEEP = [(12, 4, 50, 64, t) for t in DTYPES]
LARGE = [(12, 2, 50, 512, t) for t in DTYPES]
# K = 200 with B = 512 would take GPyTorch 10 GiB and the whole grid an hour more.
GRID = [
    (D, layers, K, B, dtype)
    for D, layers, K, B, dtype in itertools.product(
        (12, 4, 26), (1, 2, 3, 4), (1, 10, 50, 200), (64, 512), DTYPES
    )
    if K * B < 50_000
]
# Rows above which a step takes seconds and its noise is small: two rounds do.
MANY_ROWS = 20_000


def pyro_step(X, y, num_layers, loss):
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(X, y, num_layers=num_layers, num_inducing=M, mixing="published")
    svi = SVI(dgp.model, dgp.guide, paper_optimizer(1e-3), loss=loss)
    return lambda batch: svi.step(X[batch], y[batch])


def gpytorch_step(X, y, num_layers, K, repeat=False):
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
            samples = repeat
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
            inputs = X[batch].expand(K, -1, -1) if repeat else X[batch]
            (-bound(model(inputs), y[batch])).backward()
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
            wide = (rows @ square) @ columns
            rows.mT @ wide
            rows @ square

    return step


CASE = ("D", "layers", "K", "B", "dtype")


def described(*case):
    """The columns that say what was measured."""
    return dict(zip(CASE, (*case[:-1], str(case[-1]).split(".")[-1]), strict=True))


def programs(D, num_layers, K, B, dtype):
    torch.manual_seed(0)
    X, y = torch.randn(1000, D, dtype=dtype), torch.randn(1000, dtype=dtype)
    steps = {
        "REG": pyro_step(X, y, num_layers, PartiallyCollapsedIWELBO(K=K)),
        "DReG": pyro_step(X, y, num_layers, DRegIWELBO(K=K)),
        "VI": pyro_step(X, y, num_layers, TraceMeanField_ELBO()),
        "GPyTorch": gpytorch_step(X, y, num_layers, K),
        "GPyTorch, K B rows": gpytorch_step(X, y, num_layers, K, repeat=True),
        "floor": floor_step(X, num_layers, K * B),
    }
    batch = torch.randperm(len(X))[:B]
    return {n: lambda step=s: step(batch) for n, s in steps.items() if s is not None}


def measure(D, num_layers, K, B, dtype, num_rounds):
    steps = programs(D, num_layers, K, B, dtype)
    times = in_turn(steps, num_rounds if K * B <= MANY_ROWS else 2)
    row = described(D, num_layers, K, B, dtype)
    row |= {f"{name} ms": round(1e3 * median(s), 1) for name, s in times.items()}
    row |= {
        f"DReG / {other}": round(paired(times["DReG"], times[other]), 2)
        for other in times
        if other != "DReG"
    }
    peaks = {name: peak_memory(steps[name]) for name in ("DReG", "GPyTorch") if name in steps}
    return row | {f"{name} MiB": None if p is None else round(p) for name, p in peaks.items()}


def markdown(rows):
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


def grid(path, cases, num_rounds):
    rows = []
    if path.exists():
        with path.open() as file:
            rows = list(csv.DictReader(file))
    done = {tuple(row[key] for key in CASE) for row in rows}
    for case in cases:
        if tuple(map(str, described(*case).values())) in done:
            continue
        row = measure(*case, num_rounds)
        rows.append(row)
        columns = list(dict.fromkeys(itertools.chain(*rows)))
        with written_whole(path) as temporary, open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        print(row, flush=True)


def grid_figure(path):
    import matplotlib.pyplot as plt

    with path.open() as file:
        rows = list(csv.DictReader(file))
    batch_sizes = sorted({row["B"] for row in rows}, key=int)
    others = [n for n in ("GPyTorch", "GPyTorch, K B rows", "floor") if f"DReG / {n}" in rows[0]]
    figure, axes = plt.subplots(
        len(others), 2, figsize=(10, 3.5 * len(others)), sharex=True, sharey="row", squeeze=False
    )
    for column, dtype in enumerate(("float64", "float32")):
        for line, other in enumerate(others):
            ax = axes[line, column]
            for layers, colour in zip("1234", plt.cm.viridis((0.0, 0.3, 0.6, 0.9)), strict=True):
                for B, style in zip(batch_sizes, ("o-", "s--"), strict=False):
                    points = [
                        (int(r["K"]), float(r[f"DReG / {other}"]))
                        for r in rows
                        if (r["dtype"], r["layers"], r["B"]) == (dtype, layers, B)
                    ]
                    if not points:
                        continue
                    by_K = {K: [v for k, v in points if k == K] for K, _ in sorted(points)}
                    middle = [median(values) for values in by_K.values()]
                    label = f"{layers} layer{'s' * (layers != '1')}, B = {B}"
                    ax.plot(*zip(*points, strict=True), style[0], ms=3, alpha=0.5, color=colour)
                    ax.plot(list(by_K), middle, style[1:], color=colour, label=label)
            ax.set(xscale="log", yscale="log", title=f"DReG step / {other}, {dtype}")
            ax.axhline(1.0, color="grey", lw=0.8)
            ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("K")
    for ax in axes[:, 0]:
        ax.set_ylabel("ratio of times")
    axes[0, 0].legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=120)
    plt.close(figure)


def kind(name):
    """What a profiler's event is counted as."""
    if name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"):
        return "matrix products"
    if "cholesky" in name or "triangular" in name or "solve" in name:
        return "factors and solves"
    return "other tensor operations" if name.startswith("aten::") else None


def where_time_goes(D, num_layers, K, B, dtype, num_rounds):
    """Milliseconds of a DReG step by kind, on one thread, for the times of operations to add up.

    The profiler's own cost is in the last, and in all operations that write large arrays: what it
    stores lies between them in memory, so that they take new pages. Hence the time without it.
    """
    torch.set_num_threads(1)
    step = programs(D, num_layers, K, B, dtype)["DReG"]
    alone = 1e3 * median(in_turn({"step": step}, num_rounds)["step"])
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        whole = 1e3 * mean(in_turn({"step": step}, num_rounds, 0)["step"])
    found = {"optimiser": 0.0, "other tensor operations": 0.0}
    for event in profiler.key_averages():
        if event.key.startswith("Optimizer.step"):
            found["optimiser"] += event.cpu_time_total
            # Its tensor operations are counted below, too.
            found["other tensor operations"] -= event.cpu_time_total - event.self_cpu_time_total
        elif kind(event.key):
            found[kind(event.key)] = found.get(kind(event.key), 0.0) + event.self_cpu_time_total
    found = {name: us / 1e3 / num_rounds for name, us in found.items()}
    found["Python, Pyro, autograd"] = whole - sum(found.values())
    row = described(D, num_layers, K, B, dtype)
    row |= {"ms without profiler": round(alone, 1), "ms": round(whole, 1)}
    return row | {f"{k}, ms": round(v, 1) for k, v in found.items()}


def with_memory_kept(D, num_layers, K, B, dtype, num_rounds):
    """A step's time where glibc gives back what it can, and after ``keep_freed_memory``.

    Giving back means here the largest thresholds that glibc comes to by itself.
    """
    library = ctypes.CDLL(None)
    mmap_max, mmap_threshold, trim_threshold = -4, -3, -1  # options of mallopt(3)

    def give_back():
        library.mallopt(mmap_max, 65536)
        library.mallopt(mmap_threshold, 2**25)
        library.mallopt(trim_threshold, 2**26)
        library.malloc_trim(0)

    def keep():
        for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):
            os.environ.pop(name, None)
        keep_freed_memory()

    steps = programs(D, num_layers, K, B, dtype)
    names = [name for name in ("DReG", "GPyTorch") if name in steps]
    times = {(name, prepare): [] for name in names for prepare in (give_back, keep)}
    for _ in range(num_rounds):
        for name, prepare in times:
            prepare()
            # The first step is there to take the memory.
            times[name, prepare] += in_turn({"step": steps[name]}, 3)["step"]
    row = described(D, num_layers, K, B, dtype)
    for name in names:
        given_back, kept = (median(times[name, prepare]) for prepare in (give_back, keep))
        row[f"{name} ms"], row[f"{name} kept ms"] = round(1e3 * given_back, 1), round(1e3 * kept, 1)
        row[f"{name} kept / given back"] = round(kept / given_back, 2)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = ("steps", "grid", "figure", "profile", "memory")
    parser.add_argument("what", nargs="?", choices=choices, default="steps")
    parser.add_argument("path", nargs="?", type=Path, help="of the grid's CSV file")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.what in ("grid", "figure") and options.path is None:
        parser.error("name the grid's CSV file")
    if options.what == "grid":
        grid(options.path, GRID, options.rounds)
    elif options.what == "figure":
        grid_figure(options.path)
    elif options.what == "memory":
        markdown([with_memory_kept(*case, options.rounds) for case in PAPER + LARGE])
    else:
        function = measure if options.what == "steps" else where_time_goes
        markdown([function(*case, options.rounds) for case in PAPER + DEEP])


if __name__ == "__main__":
    main()
