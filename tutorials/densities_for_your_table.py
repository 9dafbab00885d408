# %% [markdown]
# # Densities for your table
#
# A table of numbers and categories, one column to predict: not its mean alone, but how likely each
# value is. No knowledge of Pyro is needed. It takes
#
#     pip install '.[table]'
#     python tutorials/densities_for_your_table.py
#
# or the cells of this file in an editor that knows percent cells.

# %%
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from pyro_dgp import plots
from pyro_dgp.sklearn import LatentDGPRegressor
from pyro_dgp.table.columns import Columns

# %% [markdown]
# ## The data
#
# House prices that no normal distribution describes: three in ten houses have been renovated, which
# the table does not say, and cost 1.8 times as much. The right density for a house has two peaks,
# and their distance grows with its size.


# %%
def simulate(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    area = rng.gamma(6, 20, num_rows)
    city = rng.choice(["Lima", "Oslo", "Rome"], num_rows)
    renovated = rng.random(num_rows) < 0.3
    level = pd.Series(city).map({"Lima": 1.0, "Oslo": 3.0, "Rome": 2.0}).to_numpy()
    price = 1000 * area * level * np.where(renovated, 1.8, 1.0) * rng.lognormal(0, 0.08, num_rows)
    return pd.DataFrame({"area": area, "city": city, "price": price})


# %% [markdown]
# ## Fit
#
# `Columns` makes numbers of the table, and remembers how. The regressor standardises, and answers
# in the units of the target. By default it also has a forest say what it thinks of each row, and
# pools the densities with the forest's. That pays where there are many inputs, or some that matter
# by thresholds. Here area and city say it all and smoothly, and a forest's steps would be a blur:
# so no features, no pool, and more steps in the time. On the command line, with the forest, this is
#
#     pyro-dgp fit houses.csv --target price --output houses.pt


# %%
def fit(table, num_steps):
    columns = Columns.of(table, ["price"])
    model = LatentDGPRegressor(
        features=None, pool=False, num_steps=num_steps, random_state=0, verbose=sys.stderr.isatty()
    )
    return columns, model.fit(columns.inputs(table), columns.target_values(table))


# %% [markdown]
# ## Look
#
# Means and standard deviations say little here; quantiles and densities say more.
#
# ![densities](figures/densities.png)
#
# On the right, the share of new prices below each quantile. Of a calibrated model it stays in the
# band; here it leaves it between the peaks. The price is a smooth function of the latent input, and
# on its way from one peak to the other it leaves a tenth of the probability where no price is.


# %%
def main(num_rows=1500, num_steps=6000, figure=None):
    table, new = simulate(num_rows), simulate(500, seed=1)
    columns, model = fit(table, num_steps)
    X, y = columns.inputs(new), columns.target_values(new)
    print(model.predict_quantiles(X.iloc[:3], [0.05, 0.5, 0.95]).round(-3))
    pit = model.cdf(X, y)
    print(f"mean log density {model.log_density(X, y).mean():.3f}")
    print(f"90% intervals hold {np.mean(np.abs(pit - 0.5) < 0.45):.1%} of {len(y)} new prices")

    typical = pd.DataFrame({"area": [60.0, 120.0, 200.0], "city": "Oslo"})
    rows = columns.inputs(typical)
    picture, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    plots.density_along_input(model, X, 0, row=rows.iloc[1], ax=axes[0]).set(
        ylabel="price", title="Density of prices in Oslo"
    )
    plots.marginal_densities(model, rows, ax=axes[1]).set(xlabel="price")
    axes[1].legend([f"{area:.0f} m²" for area in typical["area"]], frameon=False)
    plots.calibration_curve(pit, ax=axes[2])
    picture.savefig(figure or Path(__file__).parent / "figures" / "densities.png", dpi=100)
    plt.close(picture)
    return model, columns, pit


if __name__ == "__main__":
    main()
