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
# More importance samples K make the bound tighter and a step longer. What they do to the gradient
# can be measured before a long run, for any Pyro model: `snr_sweep` draws many gradients at the
# same parameters and tells signal from noise. Background is in
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
# another.

# %%
X = torch.rand(500, 1) * 4 - 2
sign = torch.randint(2, (500,)) * 2.0 - 1
y = sign * (0.3 + X[:, 0].cos().abs()) + 0.08 * torch.randn(500)
X, y = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()
dgp = LatentDGP.from_data(X, y, num_inducing=30)

# %% [markdown]
# ## What to measure
#
# The encoder's gradient is the one at risk, so its parameters make a group. The same few rows are
# used every time. `measure` leaves parameters and random state alone, so it may be called at any
# moment of training, here after some of the steps by a callback.

# %%
encoder = [name for name in parameters_of(dgp.model, dgp.guide, (X, y)) if ".encoder" in name]
print(encoder)


def measure():
    return snr_sweep(
        dgp.model, dgp.guide, (X[:16], y[:16]),
        {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}, K,
        groups={"encoder": encoder}, num_draws=num_draws, progress=False,
    )  # fmt: skip


along_training = SNRAlongTraining(measure, moments)
fit(
    dgp.model, dgp.guide, DRegIWELBO(K=10), (X, y), num_steps=num_steps, batch_size=128,
    optim=annealed_adam(0.03, num_steps), callback=along_training, progress=False,
)  # fmt: skip
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
# ## What a step costs
#
# For small K the time goes into what does not depend on K, and samples are free. The numbers of
# samples take turns, as other programs disturb such measurements.

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
axes[0].set(xscale="log", xlabel="K", ylabel="SNR without bias", title=title)
axes[0].legend(frameon=False)
some = {
    step: SNRSweep([p for p in found.points if p.K in (10, 100)])
    for step, found in along_training.sweeps.items()
}
plots.snr_along_training(some, "encoder", ax=axes[1]).set_xscale("log")
axes[2].plot(list(milliseconds), list(milliseconds.values()), "o-")
title = "A DReG step of 128 rows"
axes[2].set(xscale="log", xlabel="K", ylabel="ms", title=title, ylim=(0, None))
plt.show()

# %% [markdown]
# - **Middle.** At the start REG looks fine: z is not used yet, and the gradient is that of an
#   entropy, almost without noise. At the end every ratio falls, as there is less left to learn. So
#   profile after some hundred steps, from where the run would go on, and not before training.
# - **Left.** The model has been trained with K = 10. With K = 1 or 3 the gradient is clear because
#   those bounds pull the encoder elsewhere, to the optimum of a looser bound: a clear signal to the
#   wrong place. Among K that lead to about the same place, 10 and more, samples add nothing under
#   REG, or take away; under DReG they add signal.
# - **Right.** A step with K = 30 takes a third longer than one with K = 1, with K = 100 more than
#   twice as long: in the limit K samples cost as much as a minibatch K times as large, whose SNR
#   rises like a root, too. So take the K at which the line begins to rise, and a larger one for the
#   tighter bound's sake, with DReG.
