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
# # Counts, classes, grades
#
# Targets that are not real numbers, on three small sets of real data: counts of solar flares,
# classes of wines, grades of wines. Each model is compared with simple baselines, by scores of test
# rows. It takes `pip install 'pyro_dgp[table]'`.
#
# The estimators take the name of a likelihood. The names are below; see the
# [list of likelihoods](../.docs/likelihoods.md) for the targets of each.
# [Any target](any_target.ipynb) has the same for Pyro models, and a likelihood of your own.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pyro_dgp import plots
from pyro_dgp.experiments import load
from pyro_dgp.gp.likelihoods import LIKELIHOODS
from pyro_dgp.sklearn import LatentDGPClassifier, LatentDGPRegressor

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps = 20 if SMOKE else 500
options = {"features": None, "pool": False} if SMOKE else {}
print(", ".join(LIKELIHOODS))


def is_repeated(data):
    """Which test rows are training rows, too, with the same inputs and the same target."""
    training = set(map(tuple, np.column_stack([data.X_train, data.y_train])))
    test = map(tuple, np.column_stack([data.X_test, data.y_test]))
    return np.array([row in training for row in test])


def mean_and_error(values):
    return f"{values.mean():6.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


# %% [markdown]
# ## Counts
#
# How often a region of the sun flares up within a day, from what it looks like: 1066 regions, of
# which most do not flare at all. The set comes with the package, normalised as in the paper; counts
# are the multiples of its smallest step. Its inputs are categories with few values, so that most
# rows occur more than once, and most test rows are training rows, too.

# %%
solar = load("solar")
values = np.unique(np.concatenate([solar.y_train, solar.y_test]))
y, y_test = (
    ((v - values[0]) / np.diff(values).min()).round() for v in (solar.y_train, solar.y_test)
)
print("regions by number of flares:", np.bincount(y.astype(int)))
print(f"{is_repeated(solar).sum()} of {len(y_test)} test rows are training rows, too")

# %% [markdown]
# `"negative_binomial"` is for counts that vary more than those of a Poisson distribution. The
# baseline is Poisson regression. The score is the mean log probability of the observed count, the
# larger the better, over 107 regions, which are too few to show small differences.

# %%
regression = PoissonRegressor(alpha=0.01).fit(solar.X_train, y)
log_probability = {
    "Poisson regression": stats.poisson.logpmf(y_test, regression.predict(solar.X_test)),
    "no inputs": stats.poisson.logpmf(y_test, y.mean()),
}
for likelihood in ("poisson", "negative_binomial"):
    model = LatentDGPRegressor(
        likelihood=likelihood, features=None, num_steps=2 * num_steps, random_state=0
    )
    model.fit(solar.X_train, y)
    log_probability[likelihood] = model.log_density(solar.X_test, y_test)
print(f"{'':20s} {'mean':>6s}  difference from Poisson regression")
for name, found in log_probability.items():
    difference = found - log_probability["Poisson regression"]
    print(f"{name:20s} {found.mean():6.3f}  {mean_and_error(difference)}")

# %% [markdown]
# All three models of the inputs are better than one without. Among them there is no significant
# difference: the negative binomial is ahead of Poisson regression by less than its standard error.
#
# A prediction is a distribution of counts. For a typical region, and for the one with the largest
# expected number of flares, the probabilities of 0 to 8 flares by the negative binomial model:

# %%
order = model.predict(solar.X_test).argsort()
some = solar.X_test[order[[len(order) // 2, -1]]]
counts = np.arange(9)
probabilities = np.stack([np.exp(model.log_density(some, np.full(2, k))) for k in counts], 1)
_, ax = plt.subplots(figsize=(5, 3))
for shift, label, p in zip((-0.2, 0.2), ("typical", "most active"), probabilities, strict=True):
    ax.bar(counts + shift, p, width=0.4, label=label)
ax.set(xlabel="flares", ylabel="probability")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Classes
#
# Three cultivars of wine, by 13 chemical measurements: 178 bottles, half of them for training. The
# log loss, the smaller the better, and the share of bottles whose most probable class is right:

# %%
wine = load_wine(as_frame=True)
X, X_test, cultivar, cultivar_test = train_test_split(
    wine.data, wine.target, test_size=0.5, random_state=0, stratify=wine.target
)
classifiers = {
    "LatentDGPClassifier": LatentDGPClassifier(num_steps=num_steps, random_state=0, **options),
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
    "random forest": RandomForestClassifier(n_estimators=500, random_state=0),
}
wine_loss = {}
for name, classifier in classifiers.items():
    p = classifier.fit(X, cultivar).predict_proba(X_test)
    wine_loss[name] = log_loss(cultivar_test, p)
    print(f"{name:20s} {wine_loss[name]:.3f}, {np.mean(p.argmax(1) == cultivar_test):.1%} right")

# %% [markdown]
# Weighted sums of the measurements separate the cultivars, so that logistic regression is the right
# model; the classifier and it have the same accuracy on 89 rows. Stacked probabilities along one
# input, the other inputs at their medians:

# %%
_, ax = plt.subplots(figsize=(5, 3))
feature = list(X.columns).index("flavanoids")
plots.probabilities_along_input(classifiers["LatentDGPClassifier"], X, feature, ax=ax)
ax.set_title("Probabilities of the three cultivars")
plt.show()

# %% [markdown]
# ## Grades
#
# Red wines, graded by tasters from 3 to 8: classes in an order. `"ordinal"` has one function and
# cut points on it; `"categorical"` has a function for each grade, and no order.
#
# The log loss treats all wrong grades equally. The ranked probability score does not: it is the sum
# over grades of the squared difference between the predicted cumulative probability and that of the
# given grade (0 below it, 1 from it on), the CRPS of grades. Smaller values of both are better.
# "Median right" is the share of rows where the median of the predicted distribution is the given
# grade; the median is the prediction with the smallest expected absolute error.

# %%
red = load("winered")
quality = np.unique(np.concatenate([red.y_train, red.y_test]), return_inverse=True)[1] + 3
grade, grade_test = quality[: len(red.y_train)], quality[len(red.y_train) :]
graders = {
    "ordinal": LatentDGPClassifier(
        likelihood="ordinal", num_steps=num_steps, random_state=0, **options
    ),
    "categorical": LatentDGPClassifier(
        likelihood="categorical", num_steps=num_steps, random_state=0, **options
    ),
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
    "random forest": RandomForestClassifier(n_estimators=500, random_state=0),
}
by_row = {}
for name, grader in graders.items():
    p = grader.fit(red.X_train, grade).predict_proba(red.X_test)
    cumulative, given = p.cumsum(1), grade_test[:, None] <= grader.classes_
    median = grader.classes_[(cumulative < 0.5).sum(1)]
    by_row[name] = pd.DataFrame(
        {
            "log loss": -np.log((p * (grader.classes_ == grade_test[:, None])).sum(1)),
            "ranked probability score": ((cumulative - given) ** 2).sum(1),
            "median right": median == grade_test,
        },
        dtype=float,
    )
grades = pd.DataFrame({name: scores.mean() for name, scores in by_row.items()}).T
print(grades.round(3))

# %% [markdown]
# Rows of this set repeat, too, which favours methods that remember rows: forests, and both models,
# which have a forest inside by default. So the mean differences from the random forest, with their
# standard errors over rows, are given for all test rows, and for those that are not in training:

# %%
repeated = is_repeated(red)
for title, rows in (("all test rows", repeated | True), ("not in training", ~repeated)):
    differences = {
        name: (scores - by_row["random forest"])[rows].apply(mean_and_error)
        for name, scores in by_row.items()
        if name != "random forest"
    }
    print(f"{title}, {rows.sum()} rows\n{pd.DataFrame(differences).T}\n")

# %% [markdown]
# Neither model differs significantly from the forest in log loss or ranked probability score. The
# median of the forest is right a little more often, than that of the ordinal model by two standard
# errors. Logistic regression is far worse than the forest on all test rows; on rows that are not in
# training its median is right less often, but its log loss and ranked probability score are higher
# by less than two standard errors.
#
# Shares of the grades that were given to the wines of the test rows, and those that the ordinal
# model expects:

# %%
p = graders["ordinal"].predict_proba(red.X_test)
shares = [(grade_test == c).mean() for c in range(3, 9)]
_, ax = plt.subplots(figsize=(5, 3))
ax.bar(np.arange(3, 9) - 0.2, shares, width=0.4, label="given")
ax.bar(np.arange(3, 9) + 0.2, p.mean(0), width=0.4, label="expected")
ax.set(xlabel="grade", ylabel="share")
ax.legend(frameon=False)
plt.show()
