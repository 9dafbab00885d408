"""What the ELBO classes cost, printed as ratios of steps timed in turn.

python -m tests.benchmarks.elbo_steps vae      a VAE step: plain torch, REG, DReG
python -m tests.benchmarks.elbo_steps chunks   K = 5,000 in chunks of 50 against K = 50
"""

import argparse
import resource
import subprocess
import sys
import time
from statistics import median

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, RenyiELBO
from torch.distributions import Bernoulli, Normal

from pyro_dgp import DRegIWELBO, LatentDGP, PartiallyCollapsedIWELBO


class VAE(torch.nn.Module):
    """The one-layer model of Burda et al. (2015): 784 pixels, 200 and 200 units, 50 latents."""

    def __init__(self, num_pixels=784, num_hidden=200, num_latents=50):
        super().__init__()

        def net(size):
            hidden = [torch.nn.Linear(size, num_hidden), torch.nn.Tanh()]
            return [*hidden, torch.nn.Linear(num_hidden, num_hidden), torch.nn.Tanh()]

        self.num_latents = num_latents
        self.encoder = torch.nn.Sequential(*net(num_pixels))
        self.loc = torch.nn.Linear(num_hidden, num_latents)
        self.scale = torch.nn.Linear(num_hidden, num_latents)
        self.decoder = torch.nn.Sequential(
            *net(num_latents), torch.nn.Linear(num_hidden, num_pixels)
        )

    def posterior(self, x):
        hidden = self.encoder(x)
        return self.loc(hidden), self.scale(hidden).exp()

    def model(self, x):
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            prior = dist.Normal(x.new_zeros(self.num_latents), 1.0).to_event(1)
            z = pyro.sample("z", prior)
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(*self.posterior(x)).to_event(1))

    def plain_loss(self, x, K):
        """The same bound as one would write it by hand."""
        q = Normal(*self.posterior(x))
        z = q.rsample((K,))
        log_w = Normal(0.0, 1.0).log_prob(z).sum(-1) - q.log_prob(z).sum(-1)
        log_w = log_w + Bernoulli(logits=self.decoder(z)).log_prob(x).sum(-1)
        return -(log_w.logsumexp(0) - torch.tensor(float(K)).log()).sum()


def in_turn(programs, num_rounds):
    """Median seconds of each program, run alternately, and of their ratios to the first."""
    seconds = {name: [] for name in programs}
    for round_ in range(num_rounds + 3):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            if round_ >= 3:
                seconds[name].append(time.perf_counter() - start)
    first = next(iter(programs))
    for name, times in seconds.items():
        ratios = [t / t0 for t, t0 in zip(times, seconds[first], strict=True)]
        print(f"{name:32s} {1000 * median(times):8.1f} ms  ratio to first {median(ratios):.3f}")
    return seconds


def vae(K, batch_size, num_rounds):
    torch.manual_seed(0)
    x = (torch.rand(batch_size, 784) < 0.2).float()
    plain = VAE()
    optim = torch.optim.Adam(plain.parameters(), lr=1e-3)

    def plain_step():
        optim.zero_grad()
        loss = plain.plain_loss(x, K)
        loss.backward()
        optim.step()
        return loss.item()

    def svi_step(loss):
        ours = VAE()
        pyro_optim = pyro.optim.PyroOptim(torch.optim.Adam, {"lr": 1e-3})
        return lambda: SVI(ours.model, ours.guide, pyro_optim, loss=loss).step(x)

    with pyro.validation_enabled(False):
        torch.distributions.Distribution.set_default_validate_args(False)
        print(f"VAE, K = {K}, batch {batch_size}, {torch.get_num_threads()} threads")
        programs = {"plain torch": plain_step}
        losses = {
            "PartiallyCollapsedIWELBO": PartiallyCollapsedIWELBO(K=K),
            "DRegIWELBO": DRegIWELBO(K=K),
            "RenyiELBO(alpha=0), vectorised": RenyiELBO(
                0.0, num_particles=K, vectorize_particles=True
            ),
        }
        for name, loss in losses.items():
            programs[name] = svi_step(loss)
        seconds = in_turn(programs, num_rounds)
        reg, dreg = (seconds[n] for n in ("PartiallyCollapsedIWELBO", "DRegIWELBO"))
        ratio = median(d / r for d, r in zip(dreg, reg, strict=True))
        print(f"DRegIWELBO to PartiallyCollapsedIWELBO: {ratio:.3f}")


def chunks(estimator, num_rounds):
    """In processes of their own, for the peak memory of each."""
    for K, chunk_size in ((50, None), (5000, 50)):
        command = [sys.executable, "-m", "tests.benchmarks.elbo_steps", "one"]
        command += ["--K", str(K), "--chunk-size", str(chunk_size or 0)]
        command += ["--estimator", estimator, "--rounds", str(num_rounds if K == 50 else 2)]
        subprocess.run(command, check=True)


def one(K, chunk_size, estimator, num_rounds):
    torch.manual_seed(0)
    X, y = torch.randn(10_000, 8), torch.randn(10_000)
    dgp = LatentDGP.from_data(X[:1000], y[:1000])
    loss = {"reg": PartiallyCollapsedIWELBO, "dreg": DRegIWELBO}[estimator](
        K=K, chunk_size=chunk_size or None
    )
    times = []
    for _ in range(num_rounds):
        start = time.perf_counter()
        loss.loss_and_grads(dgp.model, dgp.guide, X[:64], y[:64])
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    each = 1e6 * median(times[1:]) / K
    print(
        f"{estimator} K = {K}, chunks of {chunk_size or K}: {each:.0f} us a sample, {peak:.0f} MiB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["vae", "chunks", "one"])
    parser.add_argument("--K", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--chunk-size", type=int, default=0)
    parser.add_argument("--estimator", choices=["reg", "dreg"], default="dreg")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if options.what == "vae":
        vae(options.K, options.batch_size, options.rounds)
    elif options.what == "chunks":
        chunks(options.estimator, options.rounds)
    else:
        one(options.K, options.chunk_size, options.estimator, options.rounds)
