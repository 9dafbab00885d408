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
# # From a paper's figure to your model
#
# The paper's figure 1: the signal-to-noise ratio of four weights' gradients of a deep GP's encoder,
# against the number K of importance samples. Under the ordinary gradient (REG) it falls, under the
# doubly reparameterised one (DReG) it rises.
#
# ![Signal-to-noise ratios of four weights against K](figures/snr_figure1.png)
#
# Is that so of a model of yours? This tutorial takes one that has nothing to do with Gaussian
# processes, a small variational auto-encoder written in plain Pyro, and goes from the question to
# an answer: where REG falls and DReG rises, which K to take, and what comes of it.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from sklearn.datasets import load_digits
from torch import nn

from pyro_dgp import DRegIWELBO, PartiallyCollapsedIWELBO, fit, snr_sweep
from pyro_dgp.infer import annealed_adam, parameters_of

SMOKE = "PYRO_DGP_SMOKE" in os.environ  # the tests run this in small
num_draws, samples = (200, [1, 10]) if SMOKE else (400, [1, 3, 10, 30, 100])
num_steps, seeds = (40, [0]) if SMOKE else (1000, [0, 1, 2])

# %% [markdown]
# ## A model of one's own
#
# Images of digits of 8 by 8 pixels, black or white. Two latent variables for each image; all that
# the bounds need to know is the plate, which says what a datum is.

# %%
pixels = torch.as_tensor(load_digits().data > 7, dtype=torch.get_default_dtype())
pixels = pixels[torch.as_tensor(np.random.default_rng(0).permutation(len(pixels)))]
x, x_test = pixels[:1500], pixels[1500:]


class VAE(nn.Module):
    def __init__(self, num_latents=2, width=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 2 * num_latents)
        )
        self.decoder = nn.Sequential(nn.Linear(num_latents, width), nn.Tanh(), nn.Linear(width, 64))
        self.num_latents = num_latents

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("images", 1500, subsample=torch.arange(len(x))):
            z = pyro.sample("z", dist.Normal(x.new_zeros(self.num_latents), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with pyro.plate("images", 1500, subsample=torch.arange(len(x))):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


figure, axes = plt.subplots(1, 10, figsize=(8, 1))
for ax, image in zip(axes, x, strict=False):
    ax.imshow(image.reshape(8, 8).numpy(), cmap="gray_r")
    ax.axis("off")
plt.show()

# %% [markdown]
# ## The figure again
#
# An untrained encoder says little, so first some hundred steps, with K = 30. Then the gradient for
# the first 16 images is drawn many times over, for each K and both estimators. Of its entries those
# of the encoder are asked for, by the names that they have in Pyro's param store.


# %%
def trained(loss, num_steps, seed=0):
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    vae = VAE()
    fit(
        vae.model, vae.guide, loss, (x,), num_steps=num_steps, batch_size=64,
        optim=annealed_adam(0.003, num_steps), progress=False,
    )  # fmt: skip
    return vae


vae = trained(DRegIWELBO(K=30), num_steps // 2)
encoder = [n for n in parameters_of(vae.model, vae.guide, (x,)) if n.startswith("encoder")]
estimators = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}
sweep = snr_sweep(
    vae.model, vae.guide, (x[:16],), estimators, samples, groups={"encoder": encoder},
    num_draws=num_draws, progress=False,
)  # fmt: skip
for estimator in estimators:
    points = sweep.select(estimator=estimator, group="encoder")
    slope, error = sweep.slope(estimator=estimator, group="encoder")
    print(f"{estimator:5s}", *(f"K = {p.K}: {p.snr:.3f}  " for p in points))
    print(f"      SNR ~ K^({slope:.2f} ± {error:.2f})")
    print(f"      {sweep.advice(estimator=estimator, group='encoder')}")

# %%
plt.figure(figsize=(5, 3.5))
for estimator in estimators:
    points = sweep.select(estimator=estimator, group="encoder")
    snr, error = [p.snr for p in points], [p.snr_error for p in points]
    plt.errorbar(samples, snr, error, marker="o", capsize=2, label=estimator)
floor = (2 / (np.pi * num_draws)) ** 0.5
plt.axhline(floor, color="grey", lw=1, ls=":", label=f"noise alone, {num_draws} draws")
plt.loglog(), plt.xlabel("K"), plt.ylabel("encoder's SNR"), plt.legend(frameon=False)
plt.show()

# %% [markdown]
# REG falls, and from K = 30 on it cannot be told from noise. DReG rises, if more slowly than the
# sqrt(K) of large K. So with REG more samples than one buy a tighter bound at the encoder's
# expense, and with DReG none of the K tried costs signal: 100, unless the time of a step forbids
# it, which [Choosing K](choosing_K.ipynb) measures, too.

# %% [markdown]
# ## What comes of it
#
# Models trained from scratch, with equal steps: with K = 1, and with K = 100 under either gradient.
# Of images that training has not seen, an estimate of log p(x), the bound with K = 1000; the ELBO,
# whose distance from it is how far the encoder's q(z | x) is from the posterior; and how many of
# those 1000 samples of q count, the effective sample size. Means of three seeds.

# %%
rows = {"K = 1": DRegIWELBO(K=1)} | {
    f"K = 100, {name}": estimator(K=100) for name, estimator in estimators.items()
}
scores = {}
tight, elbo = PartiallyCollapsedIWELBO(K=1000), PartiallyCollapsedIWELBO(K=1, num_particles=100)
for name, loss in rows.items():
    found = []
    for seed in seeds:
        vae = trained(loss, num_steps, seed)
        with torch.no_grad():  # the plate scales a bound to all 1500 images
            bounds = [-b.loss(vae.model, vae.guide, x_test) / 1500 for b in (tight, elbo)]
        found.append([*bounds, tight.weight_diagnostics().effective_sample_size.mean().item()])
    scores[name] = np.array(found)

print(f"{'':14s}{'log p(x)':>16s}{'ELBO':>16s}{'effective samples':>20s}")
for name, found in scores.items():
    mean, error = found.mean(0), found.std(0) / max(1, len(seeds) - 1) ** 0.5
    parts = (f"{m:9.2f} ± {e:.2f}" for m, e in zip(mean, error, strict=True))
    print(f"{name:14s}", *parts)

# %% [markdown]
# - With K = 100 images are likelier than with K = 1, by 0.4 nats each, and equally so under either
#   gradient: the decoder's own gradient is the same, and does not suffer.
# - The encoder is where they differ. Under REG the ELBO is 1.75 nats below log p(x), under DReG
#   0.57, and of 1000 samples 416 count, or 638. Who uses q(z | x), as a representation or to
#   estimate anything, has half as much again of it at equal steps.
# - K = 1 has the encoder that is nearest to its posterior, as that is what it is trained for, of a
#   decoder that is the worse for it.
