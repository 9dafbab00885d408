"""Held-out CRPS and log-likelihood of LatentDGPRegressor beside NGBoost, on the paper's data sets.

python -m tests.benchmarks.densities out.csv [--splits 3] [--sets forest ...] [--models dgp]

Default settings of the regressor. NGBoost has normal densities, at most 2000 rounds, and stops
early on the same share of the rows. All on the scale of the published splits (targets of standard
deviation 1). Rows that ``out.csv`` has already are not computed again; a table of means and ratios
ends the run. Needs ``pip install ngboost`` for that half.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch

from pyro_dgp.experiments import datasets
from pyro_dgp.gp import PredictiveMixture
from pyro_dgp.sklearn import LatentDGPRegressor

SETS = ("forest", "solar", "winered", "winewhite", "power", "pol")
COLUMNS = ("set", "split", "model", "crps", "log_likelihood", "rmse", "seconds", "steps")


def dgp(data, seed):
    model = LatentDGPRegressor(random_state=seed).fit(data.X_train, data.y_train)
    return {
        "crps": model.crps(data.X_test, data.y_test).mean(),
        "log_likelihood": model.log_density(data.X_test, data.y_test).mean(),
        "rmse": np.sqrt(np.mean((model.predict(data.X_test) - data.y_test) ** 2)),
        "steps": len(model.history_.losses),
    }


def ngboost(data, seed):
    from ngboost import NGBRegressor

    rows = np.random.default_rng(seed).permutation(len(data.X_train))
    held_out, train = np.split(rows, [len(rows) // 10])
    model = NGBRegressor(n_estimators=2000, random_state=seed, verbose=False).fit(
        data.X_train[train], data.y_train[train], X_val=data.X_train[held_out],
        Y_val=data.y_train[held_out], early_stopping_rounds=50,
    )  # fmt: skip
    p = model.pred_dist(data.X_test)
    normal = PredictiveMixture(
        torch.distributions.Normal(torch.as_tensor(p.loc)[None], torch.as_tensor(p.scale)[None])
    )
    target = torch.as_tensor(data.y_test)
    return {
        "crps": normal.crps(target).mean().item(),
        "log_likelihood": normal.log_prob(target).mean().item(),
        "rmse": np.sqrt(np.mean((p.loc - data.y_test) ** 2)),
        "steps": model.best_val_loss_itr or 2000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--models", nargs="+", default=("dgp", "ngboost"))
    args = parser.parse_args()
    rows = []
    if args.path.exists():
        rows = list(csv.DictReader(args.path.open()))
    done = {(row["set"], row["split"], row["model"]) for row in rows}
    for split in range(args.splits):
        for name in args.sets:
            data = datasets.load(name, split)
            for model in args.models:
                if (name, str(split), model) in done:
                    continue
                start = time.perf_counter()
                found = {"dgp": dgp, "ngboost": ngboost}[model](data, split)
                seconds = time.perf_counter() - start
                row = {"set": name, "split": split, "model": model, "seconds": seconds, **found}
                rows.append({key: str(value) for key, value in row.items()})
                print(row, flush=True)
                with args.path.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)
    print(
        "| set | splits | CRPS | NGBoost | ratio | log-likelihood | NGBoost | seconds | NGBoost |"
    )
    print("|" + "---|" * 9)
    for name in args.sets:
        of = {m: [r for r in rows if (r["set"], r["model"]) == (name, m)] for m in args.models}
        if all(of.values()) and len(of) == 2:
            a, b = (
                {k: np.mean([float(r[k]) for r in of[m]]) for k in COLUMNS[3:]}
                for m in ("dgp", "ngboost")
            )
            print(
                f"| {name} | {len(of['dgp'])} | {a['crps']:.4f} | {b['crps']:.4f} "
                f"| {a['crps'] / b['crps']:.3f} | {a['log_likelihood']:.3f} "
                f"| {b['log_likelihood']:.3f} | {a['seconds']:.0f} | {b['seconds']:.0f} |"
            )


if __name__ == "__main__":
    main()
