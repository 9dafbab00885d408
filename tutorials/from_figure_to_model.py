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
# Is it true for your model? This tutorial takes one that has nothing to do with Gaussian processes,
# a small variational auto-encoder written in plain Pyro, and goes from the question to an answer:
# where REG falls and DReG rises, which K to take, and the effect.

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
# ## Your own model
#
# Images of digits of 8 by 8 pixels, black or white, with two latent variables for each image. The
# bounds need nothing but the plate, which says what a datum is.

# %%
pixels = torch.as_tensor(load_digits().data > 7, dtype=torch.get_default_dtype())
pixels = pixels[torch.as_tensor(np.random.default_rng(0).permutation(len(pixels)))]
x, x_test = pixels[:1500], pixels[1500:]


class VAE(nn.Module):
    def __init__(self, num_data=1500, num_latents=2, width=64):
        super().__init__()
        self.num_data = num_data
        self.encoder = nn.Sequential(
            nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 2 * num_latents)
        )
        self.decoder = nn.Sequential(nn.Linear(num_latents, width), nn.Tanh(), nn.Linear(width, 64))
        self.num_latents = num_latents

    def plate(self, x):
        # x is the minibatch already: of the plate only the scale N/B is used, not its random rows.
        return pyro.plate("images", self.num_data, subsample_size=len(x))

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with self.plate(x):
            z = pyro.sample("z", dist.Normal(x.new_zeros(self.num_latents), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with self.plate(x):
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
# The gradient of an untrained encoder is not typical, so the model is first trained for some
# hundred steps, with K = 30. Then the gradient for the first 16 images is drawn many times, for
# each K and both estimators: the encoder's entries only, by their names in Pyro's param store. They
# begin with "encoder", the name given to `pyro.module`.
#
# The ratio below is the root mean square (RMS) of the ratios of these entries, with the noise
# subtracted (`debiased`), as in `advice` and `slope`. The paper's figures show the mean of the
# plain ratios (`snr`). Where entries differ, as here, an RMS exceeds a mean.


# %%
def trained(loss, num_steps, seed=0):
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    vae = VAE()
    optim = annealed_adam(0.003, num_steps)
    fit(vae.model, vae.guide, loss, (x,), num_steps=num_steps, optim=optim, progress=False)
    return vae


vae = trained(DRegIWELBO(K=30), num_steps // 2)
encoder = [n for n in parameters_of(vae.model, vae.guide, (x,)) if n.startswith("encoder")]
estimators = {"REG": PartiallyCollapsedIWELBO, "DReG": DRegIWELBO}
sweep = snr_sweep(
    vae.model,
    vae.guide,
    (x[:16],),
    estimators,
    samples,
    groups={"encoder": encoder},
    num_draws=num_draws,
    progress=False,
)
for estimator in estimators:
    points = sweep.select(estimator=estimator, group="encoder")
    slope, error = sweep.slope(estimator=estimator, group="encoder")
    print(f"{estimator:5s}", *(f"K = {p.K}: {p.debiased:.3f}  " for p in points))
    print(f"      SNR ~ K^({slope:.2f} ± {error:.2f})")
    print(f"      {sweep.advice(estimator=estimator, group='encoder')}")

# %%
_, ax = plt.subplots(figsize=(5, 3.5))
for estimator in estimators:
    points = sweep.select(estimator=estimator, group="encoder")
    snr, error = [p.debiased for p in points], [p.debiased_error for p in points]
    ax.errorbar(samples, snr, error, marker="o", capsize=2, label=estimator)
ax.axhline(0, color="grey", lw=1, ls=":", label="no signal")
ax.set(xscale="log", xlabel="K", ylabel="encoder's RMS ratio, noise subtracted")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# REG falls, and from K = 30 on there is no signal above the noise. DReG rises, more slowly than the
# sqrt(K) of large K; from 10 to 100 it rises by little more than the standard error of the latter.
# So with REG more samples than one tighten the bound, but weaken the encoder's gradient. With DReG
# none of the K tried costs signal, and the ratio changes little from K = 10 to 100: choose among
# these by the bound and by the time of a step, which [Choosing K](choosing_K.ipynb) measures, too.

# %% [markdown]
# ## The effect
#
# Models trained from scratch, with equal numbers of steps: with K = 1, and with K = 100 and either
# gradient. For test images: an estimate of log p(x), the bound with K = 1000; the ELBO, whose
# distance from it says how far the encoder's q(z | x) is from the posterior; and the effective
# sample size of 1000 samples of q. Means of three seeds.

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
        with torch.no_grad():  # per image: the plate scales a bound to all of them
            bounds = [-b.loss(vae.model, vae.guide, x_test) / vae.num_data for b in (tight, elbo)]
        found.append([*bounds, tight.weight_diagnostics().effective_sample_size.mean().item()])
    scores[name] = np.array(found)

print(f"{'':14s}{'log p(x)':>16s}{'ELBO':>16s}{'effective samples':>20s}")
for name, found in scores.items():
    mean, error = found.mean(0), found.std(0) / max(1, len(seeds) - 1) ** 0.5
    parts = (f"{m:9.2f} ± {e:.2f}" for m, e in zip(mean, error, strict=True))
    print(f"{name:14s}", *parts)

# %% [markdown]
# - With K = 100 log p(x) is higher than with K = 1, by 0.6 nats per image, and equally so under
#   either gradient: for the same encoder, the decoder's gradient has the same expectation, and its
#   ratio does not fall with K.
# - The encoders differ. Under REG the ELBO is 1.9 nats below log p(x), under DReG 0.7, and the
#   effective sample size is 408 or 627 of 1000: after equally many steps, the q(z | x) of DReG has
#   1.5 times as many effective samples.
# - With K = 1 the encoder is nearest to the posterior, for which it is trained, with 803 effective
#   samples, but its decoder is worse.
