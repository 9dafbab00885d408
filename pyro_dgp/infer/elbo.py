r"""Importance-weighted ELBOs for any Pyro model and guide.

The classes estimate the same bounds (:mod:`pyro_dgp.infer.bounds`) by one engine
(:mod:`pyro_dgp.infer.engine`) and differ in the gradient (:mod:`pyro_dgp.infer.estimators`).
"""

from typing import Any

from pyro_dgp.infer.engine import ImportanceWeightedELBO
from pyro_dgp.infer.estimators import VIMCO, DReG, Estimator, GDReG, Reparameterised

__all__ = ["VIMCOIWELBO", "DRegIWELBO", "GDRegIWELBO", "PartiallyCollapsedIWELBO"]


class PartiallyCollapsedIWELBO(ImportanceWeightedELBO):
    r"""Importance-weighted ELBO with the ordinary reparameterisation gradient (REG).

    Latent sites in the data plate (or, without any plate, all of them) are drawn K times and enter
    the importance weights; those outside are drawn once and enter through their KL, in closed form
    where Pyro has one. Every datum has its own weight, and the N/B of a minibatch is applied
    outside the logarithm, so the expectation of the bound over minibatches is the bound of all
    data. ``poutine.scale`` is applied inside: it tempers densities, as in annealing. (To scale the
    loss, multiply the loss.) Latent sites in the data plate that are marked with ``infer={"shared":
    True}``, or on whose draw no observation depends, have one draw per datum and enter outside,
    too. The model may be "partially collapsed": a site whose ``log_prob`` integrates a variable
    out, as :class:`~pyro_dgp.gp.GaussianLikelihood` does, is used as it is.

    The signal-to-noise ratio of the guide's gradient falls like :math:`1/\sqrt K`;
    :class:`DRegIWELBO` has the same value and a gradient without this problem.

    Source: Burda et al. (2015); Rudner et al. (2021), eq. 1.

    :param int K: Number of importance samples per datum.
    :param int num_particles: Number M of independent estimates of the bound, which are averaged
        (MIWAE), each with K samples and its own draw of the global sites.
    :param float beta: Share of the ordinary ELBO in the bound, from 0 to 1 (CIWAE).
    :param bool piwae: Whether the guide has the gradient of this bound, and the model that of the
        bound with one set of M K samples, which ``loss`` reports (PIWAE). A parameter of both has
        the sum.
    :param int chunk_size: Number of samples to hold in memory at once; None for all M K. The
        gradient is exact: samples are drawn twice from the same state of the random number
        generators, first for their weights and then for their gradient, at the cost of one more
        forward pass. Hooks on parameters see the gradient of each chunk before that of the whole.
    :param max_plate_nesting: Number of dimensions reserved for the model's plates; by default found
        by a run of model and guide. Set it if plates nest more deeply in some calls than in others.
    :param bool vectorize_particles: Whether to draw samples in one run of model and guide, in a
        dimension to the left of their plates. False runs them once per sample, for models that
        cannot broadcast.
    :param bool retain_graph: Whether to keep the graph after ``loss_and_grads``.
    :param float alpha: Order of the bound, from 0 to below 1: weights are raised to the power 1 -
        alpha (VR-IWAE), for a bound between this one and the ordinary ELBO. Source: Daudel et al.
        (2023).
    :raises ValueError: If K, ``num_particles`` or ``chunk_size`` is not a positive integer, or
        ``beta`` or ``alpha`` out of range.
    :raises NotImplementedError: If ``alpha`` and ``piwae`` are both given.
    """

    @property
    def estimator(self) -> Estimator:
        """How the bound is differentiated."""
        return Reparameterised(self.piwae)


class DRegIWELBO(ImportanceWeightedELBO):
    r"""Importance-weighted ELBO with the doubly reparameterised gradient (DReG).

    The value is that of :class:`PartiallyCollapsedIWELBO`. For what the local latents z are
    reparameterised by, the gradient is

    .. math::
        \sum_k \tilde w_k^2\, \frac{\partial \log w_k}{\partial z_k} \frac{d z_k}{d\phi},
        \qquad \tilde w_k = w_k \big/ \sum_j w_j,

    and :math:`\sum_k \tilde w_k\, \partial \log w_k` for everything else. It has the same
    expectation, and its signal-to-noise ratio grows like :math:`\sqrt K`. The densities see copies
    of z whose gradient is multiplied by :math:`\tilde w_k` on its way to the sampler; in log q the
    guide's parameters, and global latents that it depends on, are held fixed. One forward and one
    backward pass. With K = 1 or ``beta`` = 1 this is the "sticking the landing" gradient of the
    ordinary ELBO (Roeder et al., 2017).

    Source: Tucker et al. (2019); Rudner et al. (2021), eq. 5 and appendix D. Parameters are those
    of :class:`PartiallyCollapsedIWELBO`.

    :raises NotImplementedError: Besides the conditions there, if a ``Delta`` or ``pyro.factor``
        among the guide's local sites depends both on a local draw and on parameters, if a local
        site's density cannot be evaluated (a flow without an inverse), if a scale is learned, or
        if local sites that depend on each other are scaled differently, or masked differently
        where the model reads what the guide's mask hides.
    :raises ValueError: If the derivative of log q by a draw is not finite.
    """

    @property
    def estimator(self) -> Estimator:
        """How the bound is differentiated."""
        return DReG()


class GDRegIWELBO(ImportanceWeightedELBO):
    r"""Importance-weighted ELBO with the generalised doubly reparameterised gradient (GDReG).

    As :class:`DRegIWELBO`, but the gradient of the parameters of a local prior, too, comes through
    the draws, as if the prior had drawn them, in place of the prior's score. It is less noisy where
    the data carry little information about each draw and the guide is near the prior, and may be
    noisier elsewhere; :class:`~pyro_dgp.infer.SNRProfiler` measures which of the two has more
    signal.

    The ordinary gradient is used for priors that depend on other local draws, and where the guide's
    draw is a Delta of another one (``AutoNormal``), has no gradient, or is masked or scaled.

    Source: Bauer and Mnih (2021). Parameters are those of :class:`PartiallyCollapsedIWELBO`.

    :raises NotImplementedError: Besides the conditions of :class:`DRegIWELBO`, if ``piwae`` is
        given or it is not known how a prior that has parameters draws. Known are Normal (also
        multivariate), Laplace, Cauchy, Logistic, Exponential and StudentT distributions, and
        transforms of them that have an inverse.
    :raises FloatingPointError: If no noise is found with which the prior would have produced a
        draw, as where a transform is saturated.
    """

    def __init__(self, K: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(K, *args, **kwargs)
        if self.piwae:
            raise NotImplementedError(
                "piwae=True has no such gradient of the priors; use DRegIWELBO, or leave it out."
            )

    @property
    def estimator(self) -> Estimator:
        """How the bound is differentiated."""
        return GDReG()


class VIMCOIWELBO(ImportanceWeightedELBO):
    r"""Importance-weighted ELBO for local latents that are not reparameterised, discrete ones for
    instance, by their scores (VIMCO).

    The value is that of :class:`PartiallyCollapsedIWELBO`, and so is the gradient as far as it
    comes through reparameterised draws. For the others,
    :math:`\sum_k (L - L_{-k})\, \nabla \log q(z_k)` is added, where :math:`L_{-k}` has the mean of
    the other samples' log weights in place of the k-th: a baseline that needs no learning.

    Source: Mnih and Rezende (2016). Parameters are those of :class:`PartiallyCollapsedIWELBO`.

    :raises ValueError: If K is 1, which leaves no other samples.
    :raises NotImplementedError: If ``piwae`` is given.
    """

    scores = True

    def __init__(self, K: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(K, *args, **kwargs)
        if self.K == 1:
            raise ValueError("K must be at least 2: the baseline comes from the other samples.")
        if self.piwae:
            raise NotImplementedError("piwae=True has no scores that are known; leave it out.")

    @property
    def estimator(self) -> Estimator:
        """How the bound is differentiated."""
        return VIMCO()
