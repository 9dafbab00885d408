# %% [markdown]
# # Choosing K with the profiler
#
# More importance samples K make the bound tighter and a step longer. What they do to the gradient
# can be measured before a long run, for any Pyro model: `snr_sweep` draws many gradients at the
# same parameters and tells signal from noise. Background is in `signal_to_noise.py`.
#
# Run this file with `python tutorials/choosing_K.py` (five minutes), or cell by cell in an editor
# that knows percent cells.

# %%
import runpy
import sys
import time
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import pyro
from pyro.infer import SVI

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO, fit, plots, snr_sweep
from pyro_dgp.infer import SNRAlongTraining, SNRSweep, annealed_adam, parameters_of

HERE = Path(__file__).parent
ESTIMATORS = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}
simulate = runpy.run_path(str(HERE / "first_steps.py"))["simulate"]

# %% [markdown]
# ## What to measure
#
# The encoder's gradient is the one at risk, so its parameters make a group. The same few rows are
# used every time. `measure` leaves parameters and random state alone, so it may be called at any
# moment of training, here after 10, 100, ... steps by a callback.


# %%
def encoder_of(dgp, X, y):
    return {"encoder": [n for n in parameters_of(dgp.model, dgp.guide, (X, y)) if ".encoder" in n]}


def profile(dgp, X, y, K, num_draws):
    groups = encoder_of(dgp, X, y)
    return snr_sweep(
        dgp.model, dgp.guide, (X, y), ESTIMATORS, K, groups=groups, num_draws=num_draws,
        progress=False,
    )  # fmt: skip


def train(dgp, X, y, rows, K, num_steps, num_draws):
    def measure():
        return profile(dgp, X[rows], y[rows], K, num_draws)

    moments = sorted({max(1, num_steps * share // 1000) for share in (5, 20, 50, 200, 500)})
    callback = SNRAlongTraining(measure, moments)
    fit(
        dgp.model, dgp.guide, DRegIWELBO(K=10), (X, y), num_steps=num_steps, batch_size=128,
        optim=annealed_adam(0.03, num_steps), callback=callback,
    )  # fmt: skip
    return callback.sweeps


# %% [markdown]
# ## What a step costs
#
# For small K the time goes into what does not depend on K, and samples are free.


# %%
def step_times(dgp, X, y, K, num_rounds):
    steps = {}
    for k in K:
        optim = pyro.optim.Adam({"lr": 0.0})
        steps[k] = SVI(dgp.model, dgp.guide, optim, loss=DRegIWELBO(K=k)).step
    seconds = {k: [] for k in K}
    for _ in range(num_rounds):
        for k, step in steps.items():  # in turn: noise is large
            start = time.perf_counter()
            step(X, y)
            seconds[k].append(time.perf_counter() - start)
    return {k: median(s[1:]) for k, s in seconds.items()}


# %% [markdown]
# ## What to conclude
#
# ![](figures/choosing_K.png)
#
# - **Middle.** At the start REG looks fine: z is not used yet, and the gradient is that of an
#   entropy, almost without noise. At the end every ratio falls, as there is less left to learn. So
#   profile after some hundred steps, from where the run would go on, and not before training.
# - **Left.** The model has been trained with K = 10. With K = 1 or 3 the gradient is clear because
#   those bounds pull the encoder elsewhere, to the optimum of a looser bound: a clear signal to the
#   wrong place. Among K that lead to about the same place, 10 and more, samples add nothing under
#   REG, or take away; under DReG they add signal.
# - **Right.** A step's time hardly depends on K up to about 10 here. From there on it grows: in the
#   limit K samples cost as much as a minibatch K times as large, whose SNR rises like a root, too.
#   So take the K at which the line begins to rise, and a larger one for the tighter bound's sake,
#   with DReG.


# %%
def picture(along, moment, seconds, path):
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name in ESTIMATORS:
        points = along[moment].select(estimator=name, group="encoder")
        K, snr, error = zip(*((p.K, p.debiased, p.debiased_error) for p in points), strict=True)
        axes[0].errorbar(K, snr, error, marker="o", capsize=2, label=name)
    title = f"Encoder's gradient after {moment} steps"
    axes[0].set(xlabel="K", ylabel="SNR without bias", title=title)
    axes[0].legend(frameon=False)
    some = {n: SNRSweep([p for p in s.points if p.K in (10, 100)]) for n, s in along.items()}
    if any(sweep.points for sweep in some.values()):
        plots.snr_along_training(some, "encoder", ax=axes[1]).set_xscale("log")
    axes[2].plot(list(seconds), [1e3 * s for s in seconds.values()], "o-")
    axes[2].set(xlabel="K", ylabel="ms", title="A DReG step of 128 rows", ylim=(0, None))
    for ax in (axes[0], axes[2]):
        ax.set_xscale("log")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(num_steps=1500, num_draws=500, K=(1, 3, 10, 30, 100), num_rounds=12, path=None):
    """Trains and measures; returns the sweeps along training and seconds by K."""
    pyro.set_rng_seed(0)
    X, y = simulate(500)
    dgp = LatentDGP.from_data(X, y, num_inducing=30)
    along = train(dgp, X, y, slice(0, 16), K, num_steps, num_draws)
    moment = max(1, num_steps // 5)
    for name in ESTIMATORS:
        print(along[moment].advice(estimator=name, group="encoder"))
    seconds = step_times(dgp, X[:128], y[:128], K, num_rounds)
    print("ms per step:", {k: round(1e3 * s) for k, s in seconds.items()})
    picture(along, moment, seconds, path or HERE / "figures" / "choosing_K.png")
    return along, seconds


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
