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
# Run this file with `python tutorials/signal_to_noise.py` (some ten minutes), or cell by cell.

# %%
import sys
from pathlib import Path

import pyro
import torch

from pyro_dgp import DRegIWELBO, LatentDGP, fit
from pyro_dgp.experiments import datasets, figures, paper
from pyro_dgp.infer import SNRProfiler

# %% [markdown]
# ## A trained model
#
# A deep GP of two layers with a latent input, on the paper's demo data.


# %%
def train(num_steps, X, y):
    pyro.set_rng_seed(0)
    dgp = LatentDGP.from_data(X, y, num_layers=2, num_inducing=50, noise_variance=0.1)
    optim = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.05 ** (1 / num_steps)})
    loss = DRegIWELBO(K=10)
    fit(dgp.model, dgp.guide, loss, (X, y), num_steps=num_steps, batch_size=256, optim=optim)
    return dgp


# %% [markdown]
# ## A profile
#
# One call gives mean, standard deviation and SNR of every entry of every parameter's gradient, with
# intervals. The encoder's gradients are drawn in batches, as they reach the loss only through
# q(z | x, y); the layers' own parameters take an evaluation for each draw.


# %%
def profile(dgp, X, y, num_draws):
    sites = paper.encoder_sites(dgp, X, y)
    found = SNRProfiler(dgp.model, dgp.guide, DRegIWELBO(K=50), num_draws, sites, seed=0).run(X, y)
    print(f"mean SNR of the encoder at K = 50: {found.mean_snr():.3f}")
    print(f"what noise alone would have:       {found.floor:.3f}")
    for site in sites:
        low, high = found.interval()[site]
        print(
            f"  {site.split('$$$')[-1]:18s} first entry: SNR {found.snr[site].flatten()[0]:.3f}, "
            f"95% interval {low.flatten()[0]:.3f} to {high.flatten()[0]:.3f}"
        )
    return found


# %% [markdown]
# ## Against K
#
# The plain estimate |mean| / std of Q draws is about sqrt(2 / (pi Q)) where there is no signal at
# all, so a ratio that falls with K seems to level off at that floor. Orders are fitted to an
# estimate without that bias. Means over ten data are the paper's Figure 1; histograms of one
# weight's gradient its Figures 2 (a common axis) and 8 (axes of their own). Single data differ:
# where few samples carry the weight, DReG's gradient has long tails, and its ratio rises late.


# %%
def main(num_steps=4000, num_draws=1000, K=(1, 5, 10, 20, 50, 100), num_points=10, output=None):
    """Trains, profiles and draws; returns the slopes of log SNR in log K."""
    data = datasets.load("demo", 0)
    X, y = torch.as_tensor(data.X_train), torch.as_tensor(data.y_train)
    rows = torch.linspace(0, len(X) - 1, num_points).long()
    return study(train(num_steps, X, y), X[rows], y[rows], num_draws, K, output)


def study(dgp, X, y, num_draws, K, output):
    profile(dgp, X[-1:], y[-1:], num_draws)
    sweep = paper.snr_against_K(dgp, X, y, K, num_draws, progress=False)
    slopes = {}
    for name in paper.ESTIMATORS:
        for p in sweep.select(estimator=name, group="encoder"):
            print(f"{name:5s} K = {p.K:5d}: SNR {p.snr:8.4f}, without bias {p.debiased:8.4f}")
        print(sweep.advice(estimator=name, group="encoder"))
        try:
            slopes[name] = sweep.slope(estimator=name, group="encoder")
            print("{}: SNR ~ K^({:.2f} +- {:.2f})".format(name, *slopes[name]))
        except ValueError as error:  # too few draws for so little signal
            print(error)
    if output:
        folder = Path(output)
        folder.mkdir(exist_ok=True)
        parameters = [g for g in dict.fromkeys(p.group for p in sweep.points) if g != "encoder"]
        figures.snr_figure(sweep, parameters[-4:]).savefig(folder / "snr_figure1.png", dpi=110)
        three = [k for k in (1, 10, 100) if k in K]
        draws = paper.gradient_draws(dgp, X[-1:], y[-1:], three, 10 * num_draws, progress=False)
        figures.histogram_figure(draws).savefig(folder / "snr_figure2.png", dpi=110)
        figures.histogram_figure(draws, False).savefig(folder / "snr_figure8.png", dpi=110)
    return slopes


# %%
if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main(*map(int, sys.argv[1:]), output=Path(__file__).parent / "figures")
