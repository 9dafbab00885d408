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
# # Choosing K with the profiler
#
# More importance samples K make the bound tighter and a step longer. Their effect on the gradient
# can be measured before a long run, for any Pyro model: `snr_sweep` draws many gradients at the
# same parameters and separates signal from noise. Background is in
# [Signal-to-noise ratios](signal_to_noise.ipynb).

# %%
import os
import time

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from pyro.infer import SVI

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO, fit, plots, snr_sweep
from pyro_dgp.infer import SNRAlongTraining, SNRSweep, annealed_adam, parameters_of

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_steps, moments = (50, [1, 2, 10, 25]) if SMOKE else (1500, [10, 30, 100, 300, 1000])
num_draws, K = (30, [1, 10]) if SMOKE else (300, [1, 3, 10, 30, 100])
pyro.set_rng_seed(0)

# %% [markdown]
# The model is that of [First steps](first_steps.ipynb): half of the targets follow one curve, half
# another. Inputs and targets are standardised; all rows are for training.

# %%
X = torch.rand(500, 1) * 4 - 2
sign = torch.randint(2, (500,)) * 2.0 - 1
y = sign * (0.3 + X[:, 0].cos().abs()) + 0.08 * torch.randn(500)
X, y = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()
dgp = LatentDGP.from_data(X, y, num_inducing=30)

# %% [markdown]
# ## What to measure
#
# The encoder's gradient is the one that may lose its signal, so its parameters make a group. The
# same 16 rows are used every time. `measure` does not change parameters or random state, so it may
# be called at any time during training, here by a callback after some of the steps.
#
# The printed ratio is the root mean square (RMS) of the ratios of all entries, with the noise
# subtracted.

# %%
encoder = [name for name in parameters_of(dgp.model, dgp.guide, (X, y)) if ".encoder" in name]
print(encoder)


def measure():
    return snr_sweep(
        dgp.model,
        dgp.guide,
        (X[:16], y[:16]),
        {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO},
        K,
        groups={"encoder": encoder},
        num_draws=num_draws,
        progress=False,
    )


along_training = SNRAlongTraining(measure, moments)
fit(
    dgp.model,
    dgp.guide,
    DRegIWELBO(K=10),
    (X, y),
    num_steps=num_steps,
    batch_size=128,
    optim=annealed_adam(0.03, num_steps),
    callback=along_training,
    progress=False,
)
for step, sweep in along_training.sweeps.items():
    for estimator in ("REG", "DReG"):
        points = sweep.select(estimator=estimator, group="encoder")
        ratios = (f"K = {p.K}: {p.debiased:.3f}  " for p in points)
        print(f"{step:4d} steps, {estimator:5s}", *ratios)

# %% [markdown]
# In words, after 100 steps:

# %%
moment = moments[2]
sweep = along_training.sweeps[moment]
for estimator in ("REG", "DReG"):
    print(sweep.advice(estimator=estimator, group="encoder"))

# %% [markdown]
# ## Time per step
#
# For small K most of the time is spent on what does not depend on K, so that more samples cost
# little. The values of K take turns, as other programs disturb such measurements.

# %%
steps = {}
for k in K:
    optim = pyro.optim.Adam({"lr": 0.0})
    steps[k] = SVI(dgp.model, dgp.guide, optim, loss=DRegIWELBO(K=k)).step
times = {k: [] for k in K}
for _ in range(12):
    for k, step in steps.items():
        start = time.perf_counter()
        step(X[:128], y[:128])
        times[k].append(time.perf_counter() - start)
milliseconds = {k: 1e3 * np.median(t) for k, t in times.items()}
for k, value in milliseconds.items():
    print(f"K = {k:3d}: {value:3.0f} ms")

# %% [markdown]
# ## What to conclude

# %% figure="choosing_K"
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for estimator in ("REG", "DReG"):
    points = sweep.select(estimator=estimator, group="encoder")
    snr, error = [p.debiased for p in points], [p.debiased_error for p in points]
    axes[0].errorbar(K, snr, error, marker="o", capsize=2, label=estimator)
title = f"Encoder's gradient after {moment} steps"
axes[0].set(xscale="log", xlabel="K", ylabel="RMS ratio, noise subtracted", title=title)
axes[0].legend(frameon=False)
some = {
    step: SNRSweep([p for p in found.points if p.K in (10, 100)])
    for step, found in along_training.sweeps.items()
}
plots.snr_along_training(some, "encoder", ax=axes[1])
floor = (2 / (np.pi * num_draws)) ** 0.5
axes[1].axhline(floor, color="grey", lw=1, ls=":", label="pure noise")
axes[1].set(xscale="log", yscale="linear", ylabel="mean SNR, plain estimate")
axes[1].legend(frameon=False)
axes[2].plot(list(milliseconds), list(milliseconds.values()), "o-")
title = "DReG, minibatch of 128"
axes[2].set(xscale="log", xlabel="K", ylabel="ms per step", title=title, ylim=(0, None))
plt.show()

# %% [markdown]
# - **Left.** The model has been trained with K = 10. The bounds with K = 1 and 3 have another
#   optimum, so that their gradients keep a clear signal where that of K = 10 has lost most of its
#   own: after 1000 steps K = 1 still has 0.66. `advice` compares with all K, also with K = 1, so it
#   says that more samples cost signal. Compare K of 10 and more instead: after 100 steps the ratio
#   of DReG rises from K = 10 to 100, and that of REG does not.
# - **Middle.** The result depends on the moment. After 10 steps REG has a high ratio, as the model
#   does not use z yet, and the gradient is that of an entropy, almost without noise. After 300
#   steps neither ratio changes from K = 10 to 100; after 1000, neither has a signal above the
#   noise. So profile after some hundred steps, and at more than one moment.
# - **Right.** In this run a step with K = 30 takes 1.4 times as long as one with K = 1, and with
#   K = 100 twice as long. In the limit K samples cost as much as a minibatch K times as large,
#   whose ratio rises like a square root, too. So take the K at which the time begins to rise, or a
#   larger one, with DReG, for a tighter bound.
