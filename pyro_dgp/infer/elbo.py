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
    where Pyro has one. Every datum has a weight of its own, and a minibatch's N/B stands outside
    the logarithm, so the bound under subsampling has the full data's bound as its expectation.
    ``poutine.scale`` stands inside: it tempers densities, as annealing does. (To scale the loss,
    multiply the loss.) Latent sites in the data plate that are marked with
    ``infer={"shared": True}``, or whose draw no observation reads, have one draw per datum and
    enter outside, too. What is "partially collapsed" is up to the model: a site whose ``log_prob``
    integrates something out, as :class:`~pyro_dgp.gp.GaussianLikelihood` does, is used as it is.

    The signal-to-noise ratio of the guide's gradient falls like :math:`1/\sqrt K`;
    :class:`DRegIWELBO` has the same value, and a gradient without that fault.

    Source: Burda et al. (2015); Rudner et al. (2021), eq. 1.

    :param int K: Importance samples per datum.
    :param int num_particles: M, independent estimates of the bound to average (MIWAE), each with K
        samples and a draw of its own of the global sites.
    :param float beta: Share of the ordinary ELBO in the bound, from 0 to 1 (CIWAE).
    :param bool piwae: The guide has the gradient of this bound, the model that of the bound with
        one set of M K samples, which ``loss`` reports (PIWAE). A parameter of both has the sum.
    :param int chunk_size: Samples to hold in memory at once; None for all M K. The gradient is
        exact: samples are drawn twice from one state of the random number generators, for their
        weights and then for their gradient, which costs a forward pass more. Hooks on parameters
        see the gradient of each chunk before that of the whole.
    :param max_plate_nesting: Dimensions to leave to the model's plates; found by a run of the model
        and guide unless given. Give it where plates nest more deeply in some calls than in others.
    :param bool vectorize_particles: Draw samples in one run of model and guide, as a dimension to
        the left of their plates. False runs them once for every sample, for models that cannot
        broadcast.
    :param bool retain_graph: Keep the graph after ``loss_and_grads``.
    :param float alpha: Weights are raised to the power 1 - alpha, from 0 to below 1 (VR-IWAE): a
        bound between this one and the ordinary ELBO. Source: Daudel et al. (2023).
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
    guide's parameters, and global latents that it reads, are held fixed. One forward and one
    backward pass. With K = 1 or ``beta`` = 1 this is the "sticking the landing" gradient of the
    ordinary ELBO (Roeder et al., 2017).

    Source: Tucker et al. (2019); Rudner et al. (2021), eq. 5 and appendix D. Parameters as in
    :class:`PartiallyCollapsedIWELBO`.

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

    As :class:`DRegIWELBO`, but the gradient of a local prior's parameters, too, comes by way of
    the draws, as if the prior had drawn them, in place of the prior's score. Its noise is less
    where the data say little about each draw and the guide is near the prior, and may be more
    elsewhere; :class:`~pyro_dgp.infer.SNRProfiler` tells which of the two has more signal.

    The ordinary gradient is kept by priors that read other local draws, and where the guide's
    draw is a point made of another one (``AutoNormal``), has no gradient, or is masked or scaled.

    Source: Bauer and Mnih (2021). Parameters as in :class:`PartiallyCollapsedIWELBO`.

    :raises NotImplementedError: Besides the conditions of :class:`DRegIWELBO`, if ``piwae`` is
        given or it is not known how a prior that has parameters draws. Known are Normal (also
        multivariate), Laplace, Cauchy, Logistic, Exponential and StudentT distributions, and
        transforms of them that have an inverse.
    :raises FloatingPointError: If no noise is found by which the prior would have made a draw,
        as in the range where a transform is saturated.
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

    Source: Mnih and Rezende (2016). Parameters as in :class:`PartiallyCollapsedIWELBO`.

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
