"""Scores along one training run, a row of the table for every so many steps; resumable.

The paper's own configuration at full length is

python -m tests.benchmarks.training_curve curve.csv forest \
    --natural-lr 0.01 --dtype float32 --steps 300000
"""

import argparse
import csv
import time
from pathlib import Path

from pyro_dgp._options import add_options, given_options
from pyro_dgp.experiments.metrics import evaluate
from pyro_dgp.experiments.runs import RunConfig, checkpoint_path, load_data, train


def scores(dgp, X, y, num_samples):
    found = evaluate(dgp, X, y, num_samples)
    kl = [layer.kl().item() for layer in dgp.layers if not layer.latent_dim]
    return {
        "log_likelihood": found["test_log_likelihood"],
        "crps": found["crps"],
        "rmse": found["rmse"],
        "noise_variance": dgp.likelihood.variance.item(),
    } | {f"kl_{i}": value for i, value in enumerate(kl, start=1)}


def curve(config, every, path):
    """Adds a row to the table at ``path`` after every ``every`` steps that it does not have yet."""
    *_, X, y = load_data(config)
    checkpoint = checkpoint_path(config, path.parent)
    done = len(path.read_text().splitlines()) - 1 if path.exists() else 0
    for step in range((done + 1) * every, config.num_steps + 1, every):
        start = time.perf_counter()
        dgp, history = train(config, checkpoint, progress=False, until=step)
        if history.interrupted:
            return
        row = {"step": step, "loss": sum(history.losses[-every:]) / every}
        row |= scores(dgp, X, y, config.num_test_samples) | {"seconds": time.perf_counter() - start}
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow({k: v if k == "step" else f"{v:.6g}" for k, v in row.items()})
        print(row, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path, help="table; the checkpoint lies beside it")
    parser.add_argument("dataset")
    parser.add_argument("--every", type=int, default=10_000, help="steps between two rows")
    add_options(parser, RunConfig)
    options = parser.parse_args()
    config = RunConfig(**given_options(options, RunConfig))
    curve(config, options.every, options.csv)
