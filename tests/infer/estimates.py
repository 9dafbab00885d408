"""Many estimates of a bound and its gradient, and how far they are from what they should be."""

from functools import cache

import torch

from tests.infer.models import CASES, log_mean_exp

# Of some 2,000 scores the largest is expected near 3.5.
LIMIT = 4.5


def estimates(case, loss, num_draws):
    """Values of the bound [num_draws] and its gradients [num_draws, ...] by parameter."""
    parameters, values = case.setup(), []
    grads = {name: [] for name in parameters}
    for _ in range(num_draws):
        values.append(-loss.loss_and_grads(case.model, case.guide, *case.args))
        for name, p in parameters.items():
            grads[name].append(torch.zeros_like(p) if p.grad is None else -p.grad.clone())
            p.grad = None
    return torch.tensor(values), {name: torch.stack(g) for name, g in grads.items()}


def z_score(x, expected):
    """Largest distance of a sample mean to its expectation in standard errors.

    Rounding counts as none.
    """
    error = x.std(0) / len(x) ** 0.5
    return ((x.mean(0) - expected).abs() / (error + 1e-9)).max().item()


def scores(found, expected):
    (values, grads), (value, gradient) = found, expected
    return {"bound": z_score(values, value)} | {
        name: z_score(grads[name], gradient[name]) for name in grads
    }


@cache
def exact(name, K, mean=None):
    return CASES[name]().exact_gradient(K, mean)


def draws(case, loss):
    """Many estimates: in one evaluation, whose time hardly grows with their number, unless those
    would share a draw."""
    if case.iid:
        loss.num_particles, num_draws = 1600, 30
    elif case.shared:
        loss.num_particles, num_draws = 200, 100
    else:  # global draws are of each estimate
        loss.num_particles, num_draws = 500, 30
    return estimates(case, loss, num_draws)


@cache
def ciwae(beta):
    return lambda log_w, dim: beta * log_w.mean(dim) + (1 - beta) * log_mean_exp(log_w, dim)


@cache
def vr_iwae(alpha, beta=0.0):
    """A share 1 - beta of VR-IWAE and beta of the ordinary ELBO."""

    def mean(log_w, dim):
        power = log_mean_exp((1 - alpha) * log_w, dim) / (1 - alpha)
        return beta * log_w.mean(dim) + (1 - beta) * power

    return mean


def slope(x, log_y):
    log_x = torch.tensor(x).log()
    log_x = log_x - log_x.mean()
    return ((log_x * torch.stack(log_y)).sum() / log_x.square().sum()).item()


def mean_of(loss, model, guide, num_draws=400):
    """Of the bound, and its standard error."""
    with torch.no_grad():
        values = torch.tensor([-loss.loss(model, guide) for _ in range(num_draws)])
    return values.mean().item(), (values.std() / num_draws**0.5).item()
