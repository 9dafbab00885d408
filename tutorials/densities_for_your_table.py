# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Densities for your table
#
# A table of numbers and categories, one column to predict: not its mean alone, but how likely each
# value is. No knowledge of Pyro is needed, but `pip install 'pyro_dgp[table]'`.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm

from pyro_dgp import plots
from pyro_dgp.sklearn import LatentDGPRegressor
from pyro_dgp.table import Columns

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_rows, num_steps = (200, 10) if SMOKE else (1500, 6000)

# %% [markdown]
# ## The data
#
# House prices that no normal distribution describes: three in ten houses have been renovated, which
# the table does not say, and cost 1.8 times as much. The right density for a house has two peaks,
# and their distance grows with its size.


# %%
LEVELS = {"Lima": 1.0, "Oslo": 3.0, "Rome": 2.0}


def simulate(num_rows, seed):
    rng = np.random.default_rng(seed)
    area = rng.gamma(6, 20, num_rows)
    city = rng.choice(list(LEVELS), num_rows)
    renovated = rng.random(num_rows) < 0.3
    level = pd.Series(city).map(LEVELS).to_numpy()
    price = 1000 * area * level * np.where(renovated, 1.8, 1.0) * rng.lognormal(0, 0.08, num_rows)
    return pd.DataFrame({"area": area, "city": city, "price": price})


table, new = simulate(num_rows, seed=0), simulate(500, seed=1)
print(table.head().round())

# %% [markdown]
# `Columns` makes numbers of the table, and remembers how:

# %%
columns = Columns.of(table, ["price"])
X, y = columns.inputs(table), columns.target_values(table)
X_new, y_new = columns.inputs(new), columns.target_values(new)
print(X.head().round(1))

# %% [markdown]
# ## Fit
#
# The regressor standardises, and answers in the units of the target. By default it also adds
# predictions of a forest as inputs, and pools its densities with those of the forest. That helps
# if there are many inputs, or some that matter by thresholds. Here prices are a smooth function of
# area for each city, where a forest has steps: so no features and no pool, and more training steps
# in the same time. Prices are positive, and their errors are relative: so it learns their
# logarithms, and answers for prices. On the command line, with the forest:
#
#     pyro-dgp fit houses.csv --target price --transform log --output houses.pt

# %%
model = LatentDGPRegressor(
    features=None, pool=False, target_transform="log", num_steps=num_steps, random_state=0
)
model.fit(X, y)
_, ax = plt.subplots(figsize=(5, 3))
plots.training_curve(model.history_, ax=ax)
plt.show()

# %% [markdown]
# ## Look
#
# Means and standard deviations say little here; quantiles and densities say more. The first three
# new houses, and their prices:

# %%
quantiles = model.predict_quantiles(X_new[:3], [0.05, 0.25, 0.5, 0.75, 0.95])
print(quantiles.join(new["price"]).round(-3))

# %% [markdown]
# The mean log density of all 500 new prices, compared with that of the simulation, and with that of
# a normal distribution with the model's mean and standard deviation for each house; and how many
# prices are in their 90% intervals:


# %%
def simulated_log_density(table):
    """Of prices, given area and city."""
    log_ratio = np.log(table["price"] / (1000 * table["area"] * table["city"].map(LEVELS)))
    peaks = [np.log(p) + norm.logpdf(log_ratio, np.log(m), 0.08) for p, m in ((0.7, 1), (0.3, 1.8))]
    return np.logaddexp(*peaks) - np.log(table["price"])


log_density = {
    "model": model.log_density(X_new, y_new),
    "simulation": simulated_log_density(new),
    "one normal per house": norm.logpdf(y_new, *model.predict(X_new, return_std=True)),
}
for name, values in log_density.items():
    print(f"mean log density, {name:20s} {values.mean():.2f}")
pit = model.cdf(X_new, y_new)
print(f"90% intervals hold {np.mean(np.abs(pit - 0.5) < 0.45):.1%} of {len(y_new)} new prices")

# %% [markdown]
# Left, the density along the area, for new houses below 300 m²: only 4 of the 1500 houses are
# larger, too few to learn from. In the middle, the density of three houses. Right, the share of new
# prices below each quantile, which for a calibrated model stays in the band.
#
# The model's price is a smooth function of its latent input z. In training z is N(0, 1), and on the
# way from one peak to the other there is some probability of prices that no house has: 7% between
# 1.25 and 1.5 times the lower peak. Therefore `fit` ends by fitting the distribution of z, too
# ([how](../.docs/bounds.md#a-prior-that-follows-the-data)). It leaves 2% there, and of the 0.11 by
# which the mean log density would be below the simulation's, 0.04. Without it, the curve would
# leave the band.

# %% figure="densities"
typical = pd.DataFrame({"area": [60.0, 120.0, 200.0], "city": "Oslo"})
rows = columns.inputs(typical)
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
usual = X_new[X_new["area"] < 300]
plots.density_along_input(model, usual, 0, row=rows.iloc[1], ax=axes[0]).set(
    ylabel="price", title="Density of prices in Oslo"
)
labels = [f"{area:.0f} m²" for area in typical["area"]]
plots.marginal_densities(model, rows, labels=labels, ax=axes[1]).set(xlabel="price")
plots.calibration_curve(pit, ax=axes[2])
plt.show()
