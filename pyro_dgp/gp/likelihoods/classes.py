"""Classes, without an order (Categorical) and with one (Ordinal)."""

import functools
import math

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.nn.functional import one_hot
from torch.quasirandom import SobolEngine

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.constraints import constrained
from pyro_dgp.gp.likelihoods.base import Likelihood
from pyro_dgp.gp.likelihoods.quadrature import Bends
from pyro_dgp.gp.likelihoods.special import log_interval

__all__ = ["Categorical", "Ordinal"]

_TILTING_STEPS = 16
_NUM_QUASI_RANDOM = 128
# More classes than this are taken for identifiers.
_MOST_CLASSES = 10_000


class _Classes(Likelihood):
    discrete = True
    fixed = ("num_classes",)

    def __init__(self, num_classes: int, probs: Tensor | None = None, event_dim: int = 0) -> None:
        super().__init__(event_dim)
        self.num_classes = check_integer("num_classes", num_classes, 2)
        self.support = constraints.integer_interval(0, num_classes - 1)
        self.accepts = f"classes 0 to {num_classes - 1}"
        self._start_from(_checked_probs(num_classes, probs))

    def _start_from(self, probs: Tensor) -> None:
        """Makes the parameters that give classes these probabilities, [C]."""
        raise NotImplementedError

    @classmethod
    def for_targets(cls, y: Tensor) -> "Likelihood":
        """As many classes as the largest target implies, with their shares of the targets."""
        cls(2).refuse(y, ~constraints.nonnegative_integer.check(y), "classes 0, 1, 2, ...")
        num_classes = max(2, int(y.max()) + 1)
        if num_classes > _MOST_CLASSES:
            raise ValueError(
                f"{cls.__name__} would have {num_classes} classes: number them from 0 without gaps."
            )
        counts = torch.bincount(y.long().reshape(-1), minlength=num_classes)
        shares = (counts + 0.5).to(torch.get_default_dtype()) / (counts + 0.5).sum()
        return cls(num_classes, shares, event_dim=y.dim() - 1)


class Categorical(_Classes):
    r"""One of C classes, by softmax of C functions.

    :math:`E[\log p(y | f)] = m_y - E[\log \sum_c e^{f_c}]` has no closed form. Training uses the
    lower bound

    .. math:: E\Big[\log \sum_c e^{f_c}\Big] \le \tfrac12 \sum_c a_c^2 v_c
        + \log \sum_c e^{m_c + (1 - 2 a_c) v_c / 2}, \qquad a_c \in [0, 1],

    valid for any a, here the one where a = softmax(m + (1 - 2 a) v / 2) and it is tightest.
    (It is Jensen's inequality for a = 0.) Predictive probabilities are means of the softmax over
    128 quasi-random points.

    Source: Knowles and Minka (2011), "Non-conjugate variational message passing for multinomial and
    binary regression", section 5.3: the tilted bound.

    :param int num_classes: Number of classes C, which are 0 to C - 1.
    :param torch.Tensor probs: Initial probabilities, [C]; None for equal ones.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If there are fewer than two classes, or probabilities are not positive.
    """

    def _start_from(self, probs: Tensor) -> None:
        self.num_functions = self.num_classes
        self.intercept = nn.Parameter(probs.log())

    def conditional(self, *f: Tensor) -> Distribution:
        """Categorical(softmax(f))."""
        return dist.Categorical(logits=torch.stack(f, -1), validate_args=False)

    def expected_log_prob(self, y: Tensor, loc: Tensor, var: Tensor) -> Tensor:
        """The lower bound."""
        with torch.no_grad():
            a = _tilting(loc, var)
        log_sum = 0.5 * (a.square() * var).sum(0) + (loc + (0.5 - a) * var).logsumexp(0)
        shape = torch.broadcast_shapes(y.shape, loc.shape[1:])
        index = y.long().expand(shape).unsqueeze(0)
        return loc.expand(len(loc), *shape).gather(0, index).squeeze(0) - log_sum

    def marginal(self, loc: Tensor, var: Tensor) -> Distribution:
        """Categorical."""
        x = _standard_normals(len(loc)).to(loc).reshape(-1, len(loc), *[1] * (loc.dim() - 1))
        sd, total = var.sqrt(), torch.zeros_like(loc)
        for x_q in x:
            total = total + (loc + sd * x_q).softmax(0)
        return _Unordered(probs=(total / len(x)).movedim(0, -1), validate_args=False)

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """One indicator per class."""
        return one_hot(y.long(), self.num_classes).to(dtype).flatten(1)


class Ordinal(_Classes):
    r"""Classes in an order, by intervals of f + N(0, 1) between trained cut points.

    .. math:: p(y = k | f) = \Phi(c_{k+1} - f) - \Phi(c_k - f), \qquad c_0 = -\infty,\ c_C = \infty

    The predictive probabilities are closed.

    Source: Chu and Ghahramani (2005), "Gaussian processes for ordinal regression".

    :param int num_classes: Number of classes C, which are 0 to C - 1.
    :param torch.Tensor probs: Initial probabilities at f = 0, [C]; None for equal ones.
    :param int event_dim: 0 for targets [N], 1 for targets [N, P].
    :raises ValueError: If there are fewer than two classes, or probabilities are not positive.
    """

    closed_marginal = True

    def _start_from(self, probs: Tensor) -> None:
        p = probs.double() / probs.double().sum()
        below, above = p.cumsum(0)[:-1], p.flip(0).cumsum(0).flip(0)[1:]
        # From the end that is nearer: beside 1, a small probability is lost.
        far = torch.special.ndtri(torch.minimum(below, above))
        cuts = torch.where(below < above, far, -far)
        # Between equal numbers, a class would have no derivatives.
        narrowest = 16 * torch.finfo(probs.dtype).eps * (1 + cuts.abs().max())
        widths = cuts.diff().clamp_min(narrowest)
        cuts = torch.cat([cuts[:1], cuts[0] + widths.cumsum(0)])
        self.cut_points = constrained(cuts.to(probs.dtype), dist.constraints.ordered_vector)

    def conditional(self, f: Tensor) -> Distribution:
        """Categorical."""
        edges = self._edges()
        logits = log_interval(edges[:-1] - f.unsqueeze(-1), edges[1:] - f.unsqueeze(-1))
        return _Ordered(logits=logits, validate_args=False)

    def conditional_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        edges, y = self._edges(), y.long()
        return log_interval(edges[y] - f, edges[y + 1] - f)

    def bends(self, y: Tensor) -> Bends:
        """At the class's cut points."""
        y, cuts = y.long(), self.cut_points
        last = len(cuts) - 1
        # The outermost classes have one cut point, which is used twice.
        low, high = (y - 1).clamp(0, last), y.clamp(0, last)
        return Bends((cuts[low], cuts[high]), 2.0)

    def marginal(self, loc: Tensor, var: Tensor) -> Distribution:
        """Categorical: f + N(0, 1) is N(m, 1 + v)."""
        edges, sd = self._edges(), (1 + var[0]).sqrt().unsqueeze(-1)
        m = loc[0].unsqueeze(-1)
        logits = log_interval((edges[:-1] - m) / sd, (edges[1:] - m) / sd)
        return _Ordered(logits=logits, validate_args=False)

    def encode(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """From -1 to 1."""
        return 2 * y.to(dtype) / (self.num_classes - 1) - 1

    def _edges(self) -> Tensor:
        # In place of infinity, which has no derivatives; far beyond any f.
        end = self.cut_points.new_full((1,), 1e4)
        return torch.cat([-end, self.cut_points, end])


class _Unordered(dist.Categorical):
    @property
    def mean(self) -> Tensor:
        raise NotImplementedError("Classes without an order have no mean; see probs.")

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError("Classes without an order have no variance; see probs.")

    def cdf(self, value: Tensor) -> Tensor:
        raise NotImplementedError("Classes without an order have no P(target <= y): see probs.")


class _Ordered(dist.Categorical):
    lattice = 0.0, 1.0

    @property
    def _classes(self) -> Tensor:
        return torch.arange(self._num_events, dtype=self.logits.dtype, device=self.logits.device)

    @property
    def mean(self) -> Tensor:
        return self.probs @ self._classes

    @property
    def variance(self) -> Tensor:
        return self.probs @ self._classes.square() - self.mean.square()

    def cdf(self, value: Tensor) -> Tensor:
        return (self.probs * (self._classes <= value.unsqueeze(-1))).sum(-1)


def _checked_probs(num_classes: int, probs: Tensor | None) -> Tensor:
    check_integer("num_classes", num_classes, 2)
    if probs is None:
        return torch.full((num_classes,), 1.0 / num_classes)
    if probs.shape != (num_classes,) or not bool((probs > 0).all()):
        raise ValueError(f"probs must be {num_classes} positive numbers, but it is {probs}.")
    return probs / probs.sum()


def _tilting(m: Tensor, v: Tensor) -> Tensor:
    """The a where the bound is tightest, [C, ...].

    By Newton's method on that convex function of a, its Hessian diag(v + v^2 p) - (v p)(v p)'
    inverted by Sherman and Morrison's formula. (A whole step is safe where it changes no logit by
    much beside the others; simple iteration of the fixed point diverges from v = 8 or so.) Source
    of the damping: Bach (2010), "Self-concordant analysis for logistic regression".
    """
    a = torch.full_like(m, 1 / len(m))
    for _ in range(_TILTING_STEPS):
        p = (m + (0.5 - a) * v).softmax(0)
        q = 1 / (1 + v * p)
        step = q * (a - p)
        step = step + p * q * ((v * p * step).sum(0) / (p * q).sum(0))
        change = v * step
        d = (change.amax(0) - change.amin(0)).clamp_min(1e-6)
        a = a - (d.log1p() / d) * step
    return a


@functools.cache
def _standard_normals(num_functions: int) -> Tensor:
    """Quasi-random, [num_points, J]."""
    u = SobolEngine(num_functions, scramble=True, seed=0).draw(
        _NUM_QUASI_RANDOM, dtype=torch.float64
    )
    return math.sqrt(2) * torch.erfinv(2 * u.clamp(1e-9, 1 - 1e-9) - 1)
