# %% [markdown]
# # Signal-to-noise ratios of gradients
#
# A stochastic gradient g is useful as far as its mean stands out of its noise,
#
#     SNR = |E g| / sqrt(Var g).
#
# More importance samples K give a tighter bound, but under the ordinary gradient (REG) the
# encoder's SNR falls like 1/sqrt(K): the tighter the bound, the less the encoder learns (Rainforth
# et al., 2018; Rudner et al., 2021, for deep Gaussian processes). The doubly reparameterised
# gradient (DReG) has the same mean and an SNR that rises like sqrt(K). `SNRProfiler` measures it
# for any Pyro model, guide and loss.
#
# Run this file with `python tutorials/signal_to_noise.py`, or cell by cell: some ten minutes to the
# end of the third section, an hour or two with the paper's figures. Models and results are kept in
# a folder, so that it goes on where it was interrupted.

# %%
import sys
from dataclasses import replace
from pathlib import Path

import pyro

from pyro_dgp import DRegIWELBO, SNRProfiler, snr_sweep
from pyro_dgp.experiments.reproduce import STUDIES, demo_config, encoders, some_data, trained

# %% [markdown]
# ## A profile
#
# Of a deep GP of two layers with a latent input, trained on the paper's demo data. One call gives
# mean, standard deviation and SNR of every entry of every parameter's gradient, with intervals. The
# encoder's gradients are drawn in batches, as they reach the loss only through q(z | x, y); the
# layers' own parameters take an evaluation for each draw.


# %%
def profile(dgp, X, y, num_draws):
    sites = encoders.encoder_sites(dgp, X, y)
    found = SNRProfiler(dgp.model, dgp.guide, DRegIWELBO(K=50), num_draws, sites, seed=0).run(X, y)
    print(f"mean SNR of the encoder at K = 50: {found.mean_snr():.3f}")
    print(f"what noise alone would have:       {found.floor:.3f}")
    for site in sites:
        low, high = found.interval()[site]
        print(
            f"  {site.split('$$$')[-1]:18s} first entry: SNR {found.snr[site].flatten()[0]:.3f}, "
            f"95% interval {low.flatten()[0]:.3f} to {high.flatten()[0]:.3f}"
        )


# %% [markdown]
# ## Against K
#
# The plain estimate |mean| / std of Q draws is about sqrt(2 / (pi Q)) where there is no signal at
# all, so a ratio that falls with K seems to level off at that floor. Orders are fitted to an
# estimate without that bias. Single data differ: where few samples carry the weight, DReG's
# gradient has long tails, and its ratio rises late. Hence means over data, as in the paper.


# %%
def against_K(dgp, X, y, K, num_draws):
    sweep = encoders.snr_against_K(dgp, X, y, K, num_draws, progress=False)
    slopes = {}
    for name in encoders.ESTIMATORS:
        for p in sweep.select(estimator=name, group="encoder"):
            print(f"{name:5s} K = {p.K:5d}: SNR {p.snr:8.4f}, without bias {p.debiased:8.4f}")
        print(sweep.advice(estimator=name, group="encoder"))
        try:
            slopes[name] = sweep.slope(estimator=name, group="encoder")
            print("{}: SNR ~ K^({:.2f} +- {:.2f})".format(name, *slopes[name]))
        except ValueError as error:  # too few draws for so little signal
            print(error)
    return slopes


# %% [markdown]
# ## The GP's own parameters
#
# They do not suffer: as the decoder of a VAE, they have an SNR that rises like sqrt(K) under both
# estimators, which differ in the guide's gradient only. With 300 draws of a minibatch of 16,
#
# | | K = 1 | 10 | 100 | order |
# |---|---|---|---|---|
# | last layer's inducing means | 0.43 | 0.98 | 3.60 | 0.43 ± 0.01 |
# | hidden layer's inducing means | 0.37 | 0.66 | 2.40 | 0.47 ± 0.01 |
# | scales of both | 0.45 | 1.87 | 6.60 | 0.61 ± 0.01 |
# | lengthscales | 0.65 | 0.46 | 2.00 | 0.24 ± 0.01 |


# %%
def own_parameters(dgp, X, y, K, num_draws):
    with pyro.poutine.trace(param_only=True) as capture:
        dgp.guide(X, y)
    names = list(capture.trace.nodes)
    groups = {
        "inducing means": [n for n in names if n.endswith("u_loc")],
        "inducing scales": [n for n in names if n.endswith("u_scale_tril")],
    }
    sweep = snr_sweep(
        dgp.model, dgp.guide, (X, y), encoders.ESTIMATORS, K, groups=groups, num_draws=num_draws,
        progress=False,
    )  # fmt: skip
    for p in sweep.points:
        print(f"{p.group:16s} {p.estimator:5s} K = {p.K:5d}: SNR {p.snr:8.4f}")
    return sweep


# %% [markdown]
# ## The paper's figures
#
# `pyro-dgp reproduce figure3` (and 1, 2, 8, 9) trains the models of a figure, measures and draws;
# here at a size for two cores, with models of 2000 steps. The paper has ten data and 1000 draws.
#
# **Figure 1**: four weights of the encoder against K, at one datum of the demo data.
#
# ![](figures/snr_figure1.png)
#
# **Figures 2 and 8**: 10,000 gradients of one weight, on one axis for all K, and each on its own.
# At K = 1 the tails of both are far longer than the axis.
#
# ![](figures/snr_figure2.png)
# ![](figures/snr_figure8.png)
#
# **Figure 3**: means over the encoder and five data, by depth and K.
#
# ![](figures/snr_figure3.png)
#
# REG falls with K to the floor, DReG rises, for every data set and depth. Fitted orders in K:
#
# | layers | demo, REG | DReG | forest, REG | DReG | solar, REG | DReG |
# |---|---|---|---|---|---|---|
# | 1 | -0.46 ± 0.12 | 0.49 ± 0.01 | -0.48 ± 0.11 | 0.49 ± 0.00 | -0.32 ± 0.07 | 0.50 ± 0.00 |
# | 2 | -0.87 ± 0.18 | 0.30 ± 0.01 | -0.30 ± 0.02 | 0.11 ± 0.02 | -0.51 ± 0.08 | 0.49 ± 0.01 |
# | 3 | -0.12 ± 0.08 | 0.39 ± 0.05 | -0.30 ± 0.03 | 0.08 ± 0.01 | -0.60 ± 0.13 | 0.41 ± 0.02 |
# | 4 | no signal | 0.48 ± 0.03 | -0.36 ± 0.04 | 0.14 ± 0.02 | -0.28 ± 0.06 | 0.43 ± 0.01 |
#
# A shallow GP has the asymptotic orders. The deeper models of forest have larger weights to average
# (few of the K samples carry them), and approach those orders at larger K. Errors are those of the
# draws alone, not of the choice of data and of one model each.
#
# **Figure 9**: the configuration of Table 1 (two layers, K = 50, a minibatch of 64) along training,
# with two seeds. An untrained model does not use z, its weights are equal, and REG's gradient is
# the entropy's, with almost no noise. As soon as z matters that signal is gone, and from some
# hundred steps on DReG's is the clearer one.
#
# ![](figures/snr_figure9.png)

# %%
SIZES = {
    "figure1": {"steps": 2000},
    "figure2": {"steps": 2000},
    "figure8": {"steps": 2000},
    "figure3": {"steps": 2000, "points": 5, "draws": 500},
    "figure9": {"steps": 2000},
}


def reproduce(folder, sizes, output):
    for name, size in sizes.items():
        study = STUDIES[name]
        results = study.compute(replace(study.size, **size), folder, False)
        print(f"{name}:", *study.table(results), sep="\n")
        study.draw(results).savefig(output / f"snr_{name}.png", dpi=110)


# %%
def main(folder, steps=2000, num_draws=1000, K=(1, 5, 10, 20, 50, 100), num_points=10):
    """Trains and measures; returns the slopes of log SNR in log K."""
    config = demo_config(steps)
    dgp = trained(config, Path(folder), progress=False)
    _, X, y = some_data(config, max(16, num_points))
    profile(dgp, X[:1], y[:1], num_draws)
    slopes = against_K(dgp, X[:num_points], y[:num_points], K, num_draws)
    own_parameters(dgp, X[:16], y[:16], [min(K), max(K)], max(20, num_draws // 3))
    return slopes


if __name__ == "__main__":
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    main(results)
    reproduce(results, SIZES, Path(__file__).parent / "figures")
