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
# # Signal-to-noise ratios of gradients
#
# A stochastic gradient g is useful if its mean is large compared with its noise,
#
#     SNR = |E g| / sqrt(Var g).
#
# More importance samples K give a tighter bound, but under the ordinary gradient (REG) the
# encoder's SNR falls like 1/sqrt(K): the tighter the bound, the less the encoder learns (Rainforth
# et al., 2018; Rudner et al., 2021, for deep Gaussian processes). The doubly reparameterised
# gradient (DReG) has the same mean and an SNR that rises like sqrt(K) for large K. `SNRProfiler`
# measures it for any Pyro model, guide and loss.

# %%
import os

import matplotlib.pyplot as plt
import pyro
import torch

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO, SNRProfiler, fit, snr_sweep
from pyro_dgp.experiments import load, snr_against_K
from pyro_dgp.infer import annealed_adam, parameters_of

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps, num_draws = (9, 50) if SMOKE else (2000, 500)
K, num_points = ([1, 10], 2) if SMOKE else ([1, 5, 20, 100], 5)
pyro.set_rng_seed(0)

# %% [markdown]
# The paper's demo data, and a deep GP of two layers with a latent input, trained on them.

# %%
data = load("demo")
X, y = torch.as_tensor(data.X_train), torch.as_tensor(data.y_train)
dgp = LatentDGP.from_data(X, y, num_inducing=50)
fit(
    dgp.model,
    dgp.guide,
    DRegIWELBO(K=10),
    (X, y),
    num_steps=num_steps,
    batch_size=256,
    optim=annealed_adam(0.02, num_steps),
    progress=False,
)
X_test, y_test = torch.as_tensor(data.X_test), torch.as_tensor(data.y_test)
print(f"held-out log density {dgp.predict(X_test, 1000).log_prob(y_test).mean():.2f}")

# %% [markdown]
# ## A profile
#
# One call gives mean, standard deviation and SNR of every entry of every parameter's gradient, with
# intervals, here for a minibatch of 16 data. The encoder's gradients are drawn in batches, as its
# parameters reach the loss only through q(z | x, y); the layers' own parameters take an evaluation
# for each draw.

# %%
rows = torch.randperm(len(X))[:16]
X, y = X[rows], y[rows]
names = list(parameters_of(dgp.model, dgp.guide, (X, y)))
encoder = [name for name in names if ".encoder" in name]
profile = SNRProfiler(dgp.model, dgp.guide, DRegIWELBO(K=50), num_draws, encoder, seed=0)
profile = profile.run(X, y)
print(f"mean SNR of the encoder at K = 50: {profile.mean_snr():.3f}")
print(f"mean for pure noise:               {profile.floor:.3f}")
for name in encoder:
    snr, (low, high) = profile.snr[name].flatten()[0], profile.interval(0.95)[name]
    interval = f"95% interval {low.flatten()[0]:.3f} to {high.flatten()[0]:.3f}"
    print(f"{name.split('$$$')[-1]:16s} first entry: SNR {snr:.3f}, {interval}")

# %% [markdown]
# ## Against K
#
# The plain estimate |mean| / std of Q draws is about sqrt(2 / (pi Q)) where there is no signal at
# all, so a ratio that falls with K seems to level off at that floor. The square has an estimate
# without this bias. Its root mean over the entries, the RMS ratio with the noise subtracted
# (`debiased`), is what orders and advice are taken from. Where entries differ, an RMS exceeds a
# mean, so it is larger than the mean of the plain ratios (`snr`) if there is a clear signal.
#
# In this section the gradient is that of one datum at a time. Single data differ: where few samples
# have most of the weight, DReG's gradient has long tails, and its ratio rises only at larger K. So
# both ratios are averaged over five data, as in the paper.

# %%
sweep = snr_against_K(dgp, X[:num_points], y[:num_points], K, num_draws, progress=False)
slopes = {}
for estimator in ("REG", "DReG"):
    for p in sweep.select(estimator=estimator, group="encoder"):
        ratios = f"mean {p.snr:.4f}, RMS with the noise subtracted {p.debiased:.4f}"
        print(f"{estimator:5s} K = {p.K:3d}: {ratios}")
    print(sweep.advice(estimator=estimator, group="encoder"))
    try:
        slopes[estimator] = sweep.slope(estimator=estimator, group="encoder")
        print("SNR ~ K^({:.2f} ± {:.2f})\n".format(*slopes[estimator]))
    except ValueError as error:  # too few draws for so little signal
        print(f"{error}\n")

# %%
_, ax = plt.subplots(figsize=(5, 3.5))
for estimator in ("REG", "DReG"):
    points = sweep.select(estimator=estimator, group="encoder")
    snr, error = [p.snr for p in points], [p.snr_error for p in points]
    ax.errorbar(K, snr, error, marker="o", capsize=2, label=estimator)
ax.axhline(profile.floor, color="grey", lw=1, ls=":", label="pure noise")
ax.set(xscale="log", yscale="log", xlabel="K", ylabel="encoder's mean SNR, plain estimate")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The GP's own parameters
#
# In theory these have an SNR that rises like sqrt(K) for large K, like the decoder of a VAE, under
# both estimators, which differ in the guide's gradient only. For a minibatch of 16:

# %%
groups = {
    "last layer's inducing means": [n for n in names if n.endswith("2.u_loc")],
    "hidden layer's inducing means": [n for n in names if n.endswith("1.u_loc")],
    "scales of both": [n for n in names if n.endswith("u_scale_tril")],
    "lengthscales": [n for n in names if n.endswith("lengthscale")],
}
estimators = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}
some = [1, 10] if SMOKE else [1, 10, 100]
own = snr_sweep(
    dgp.model,
    dgp.guide,
    (X, y),
    estimators,
    some,
    groups=groups,
    num_draws=50 if SMOKE else 200,
    progress=False,
)
print(f"{'RMS ratio, noise subtracted, at K =':36s}", *(f"{k:6d}" for k in some), "  order")
for group in groups:
    for estimator in estimators:
        found = own.select(group=group, estimator=estimator)
        slope, error = own.slope(group=group, estimator=estimator)
        ratios = (f"{p.debiased:6.2f}" for p in found)
        print(f"{group:30s} {estimator:5s}", *ratios, f"  {slope:5.2f} ± {error:.2f}")

# %% [markdown]
# The ratios of the inducing means and of the scales rise with K, with orders of 0.41 to 0.48. That
# of the lengthscales falls from K = 1 to 10 and rises from 10 to 100, which is not a power law. The
# ± is the error due to the draws only, not the misfit of a power law: the ratio of the scales rises
# sixfold from K = 1 to 10, and threefold from 10 to 100.

# %% [markdown]
# ## The paper's figures
#
# `pyro-dgp reproduce figure3` (and 1, 2, 8, 9) trains the models of a figure, measures and draws.
# With `--steps 2000` they take an hour or two on two cores; models and results are saved to a
# folder, so that an interrupted command continues when it is repeated. The paper has ten data and
# 1000 draws.
#
# **Figure 1**: four weights of the encoder against K, at one datum of the demo data.
#
# ![Signal-to-noise ratios of four weights against K](figures/snr_figure1.png)
#
# **Figure 3**, by `pyro-dgp reproduce figure3 --steps 2000 --points 5 --draws 500`: means over the
# encoder and five data, by depth and K. REG falls from K = 1 to 10 wherever there is a signal at
# K = 1 (demo with four layers has none); for forest with two and three layers it is still three
# times the floor at K = 1000. DReG is higher at K = 1000 than at K = 1 everywhere.
#
# ![Mean ratios against K, by data set and depth](figures/snr_figure3.png)
#
# A shallow GP has the asymptotic orders. In the deeper models of forest, q(z) is narrower than the
# posterior for some of the data, so rare weights are large: where their Pareto k is above 1/4, the
# ratio of DReG rises more slowly ([derivation](../.docs/bounds.md)). The fitted orders, data with
# and without such weights, and figures 2, 8 and 9, are on
# [the study's page](../.docs/study.md#signal-to-noise-ratios).
