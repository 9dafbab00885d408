"""How time and memory of a DReG step grow, and the time of a prediction.

python -m tests.benchmarks.dgp_scaling out.csv [--rounds 7]

One of K, B, the number of inducing inputs and the depth varies about the paper's configuration (K =
50, B = 64, 128, 2 layers, 12 inputs, float32), in turn within each group. Exponents are slopes on
log axes over the three largest sizes. Memory against K is that of one step with all samples at
once, and in chunks of 50 (``chunk_size``). ``out.png`` gets the figure.
"""

import argparse
import csv
from pathlib import Path
from statistics import median

import pyro
import torch
from pyro.infer import SVI

from pyro_dgp import DRegIWELBO, LatentDGP
from tests.benchmarks.measure import exponent, in_turn, peak_memory

PAPER = {"K": 50, "B": 64, "inducing": 128, "layers": 2}
SIZES = {
    "K": (1, 5, 20, 50, 100, 200, 400),
    "B": (16, 64, 128, 256, 512),
    "inducing": (16, 32, 64, 128, 256, 512),
    "layers": (1, 2, 4, 8),
}
MEMORY_K = (20, 50, 100, 200, 400, 800)
PREDICT_ROWS = (1, 10, 100)


def new_model(layers, inducing):
    pyro.set_rng_seed(0)
    X, y = torch.randn(1000, 12), torch.randn(1000)
    return LatentDGP.from_data(X, y, num_layers=layers, num_inducing=inducing), X, y


def step(K, B, inducing, layers, chunk_size=None):
    dgp, X, y = new_model(layers, inducing)
    loss = DRegIWELBO(K=K, chunk_size=chunk_size)
    svi = SVI(dgp.model, dgp.guide, pyro.optim.Adam({"lr": 1e-3}), loss=loss)
    return lambda: svi.step(X[:B], y[:B])


def times(num_rounds, sizes_of=SIZES, predict_samples=10_000):
    for name, sizes in sizes_of.items():
        steps = {size: step(**(PAPER | {name: size})) for size in sizes}
        for size, seconds in in_turn(steps, num_rounds).items():
            yield {"what": f"step by {name}", "size": size, "ms": 1e3 * median(seconds)}
    dgp, X, _ = new_model(PAPER["layers"], PAPER["inducing"])
    predict = {n: lambda n=n: dgp.predict(X[:n], predict_samples) for n in PREDICT_ROWS}
    for size, seconds in in_turn(predict, max(1, num_rounds // 2)).items():
        row = {"what": f"predict with {predict_samples:,} samples, by rows", "size": size}
        yield row | {"ms": 1e3 * median(seconds)}


def memory(sizes=MEMORY_K):
    for chunk_size, name in ((50, "in chunks of 50"), (None, "at once")):
        for K in sizes:
            program = step(**(PAPER | {"K": K}), chunk_size=chunk_size)
            program()
            peak = peak_memory(program)
            yield {"what": f"memory by K, {name}", "size": K, "MiB": peak}


def picture(rows, path):
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    panels = ("K", "B", "inducing", "layers")
    figure, axes = plt.subplots(1, 5, figsize=(17, 3.6), layout="constrained")
    for ax, name in zip(axes, panels, strict=False):
        some = [r for r in rows if r["what"] == f"step by {name}"]
        sizes, ms = [r["size"] for r in some], [r["ms"] for r in some]
        ax.plot(sizes, ms, "o-", label=f"exponent {exponent(sizes, ms):.2f}")
        ax.set(xlabel=name, ylabel="ms a step")
    for name in ("at once", "in chunks of 50"):
        some = [r for r in rows if r["what"] == f"memory by K, {name}"]
        axes[4].plot([r["size"] for r in some], [r["MiB"] for r in some], "o-", label=name)
    axes[4].set(xlabel="K", ylabel="MiB of a step")
    for ax in axes:
        ax.set(xscale="log", yscale="log")
        sizes = ax.lines[0].get_xdata()
        ax.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.legend(frameon=False)
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = []
    for row in [*times(options.rounds), *memory()]:
        rows.append({"ms": None, "MiB": None} | row)
        print(", ".join(f"{k} {v:.4g}" if k != "what" else v for k, v in row.items() if v))
    with options.path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["what", "size", "ms", "MiB"])
        writer.writeheader()
        writer.writerows(rows)
    picture(rows, options.path.with_suffix(".png"))


if __name__ == "__main__":
    main()
