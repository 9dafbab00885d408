"""The latent-variable deep Gaussian process as a Pyro model and guide."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn

from pyro_dgp._checks import check_integer
from pyro_dgp.gp import configuration, prediction
from pyro_dgp.gp.checks import LastBatch, check_data, check_layers, input_width, output_width
from pyro_dgp.gp.fixed import has_priors
from pyro_dgp.gp.layers import Layer
from pyro_dgp.gp.layers.latent import has_all_parameters
from pyro_dgp.gp.likelihoods import Likelihood, check_likelihood
from pyro_dgp.gp.naming import UniquelyNamed

__all__ = ["LatentDGP"]


class LatentDGP(UniquelyNamed):
    r"""Latent-variable deep Gaussian process.

    .. math:: y_n \sim p(y \mid f_n), \qquad f_n = f^{(L)}(\dots f^{(1)}([x_n, z_n]) \dots),
        \quad z_n \sim N(0, I)

    :meth:`model` and :meth:`guide` are for ``SVI`` with any Pyro ELBO. Sites that all data share
    (inducing values ``u``, hyperparameters with a prior) are outside the data plate; the latent
    inputs ``z``, the hidden layers' standardised draws ``epsilon`` and the observation ``y`` are
    inside. The likelihood integrates over the functions of the last GP layer.

    Sites and parameters are named ``{name}.layers.0.z`` and so on. Unless given, the name is unique
    in the process, because modules with the same name share parameters through Pyro's param store.
    It does not change when the model becomes part of a larger ``PyroModule``.

    Source: Rudner et al. (2021), section 2.1; Salimbeni et al. (2019).

    :param layers: Layers in order, each a :class:`~pyro_dgp.gp.Layer`; for instance
        :class:`~pyro_dgp.gp.LatentLayer` and :class:`~pyro_dgp.gp.GPLayer`, the last one a GP layer
        without ``mixing`` whose outputs are the likelihood's functions.
    :param likelihood: Likelihood of the targets, a :class:`~pyro_dgp.gp.Likelihood`.
    :param int num_data: Number of training data N, to which a minibatch is scaled.
    :param str name: Prefix of the names of sites and parameters. If Pyro's param store has
        parameters of these names, after it has been loaded for instance, the model takes their
        values.
    :raises TypeError: If the likelihood is not a :class:`~pyro_dgp.gp.Likelihood`, for instance one
        of Pyro's own.
    :raises ValueError: If the layers do not fit together or ``num_data`` is not positive.
    """

    layers: Sequence[Layer]
    likelihood: Likelihood

    from_data = classmethod(configuration.from_data)
    predict = prediction.predict
    fit_latent_prior = prediction.fit_latent_prior
    reset_latent_prior = prediction.reset_latent_prior
    draw_functions = prediction.draw_functions

    def __init__(
        self,
        layers: Sequence[Layer],
        likelihood: Likelihood,
        num_data: int,
        name: str | None = None,
    ) -> None:
        check_layers(layers)
        check_likelihood(likelihood)
        if likelihood._pyro_name:
            raise ValueError(
                "likelihood is already part of a model: give every model a likelihood of its own."
            )
        likelihood.check_output_dim(output_width(layers))
        super().__init__(name)
        self.num_data = check_integer("num_data", num_data, 1)
        # Pyro does not annotate what PyroModule[...] returns.
        self.layers = PyroModule[nn.ModuleList](layers)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        self.likelihood = likelihood
        self._last_batch = LastBatch()
        if name is not None:
            self._go_on_from_store()

    @pyro_method
    def model(self, X: Tensor, y: Tensor | None = None, **covariates: Tensor) -> Tensor:
        """p(y, z, u | X) with each GP layer's function marginalised as q(f).

        The functions follow q(u), whatever the value of the site ``u``, which only contributes its
        KL divergence. To condition on ``u``, or to run the model without the guide, is therefore
        not to draw from the prior.

        :param torch.Tensor X: Inputs of a minibatch, [B, D].
        :param torch.Tensor y: Targets of the minibatch, [B] or [B, P]; None to draw them.
        :param covariates: Covariates of the likelihood per row, such as ``exposure`` [B]; and
            ``weight`` [B], by which a row's log density is multiplied.
        :returns: Targets, given or drawn.
        :raises TypeError: If X or y is not a tensor of the model's dtype.
        :raises ValueError: If a shape is wrong, or a value is not finite or not a possible target.
        """
        self._check(X, y, covariates)
        self.likelihood.model()
        plate = self.plate(X)
        f_loc, f_var = self.function(X, plate)
        with plate:
            return self.likelihood(f_loc, f_var, y, **covariates)

    @pyro_method
    def guide(self, X: Tensor, y: Tensor | None = None, **covariates: Tensor) -> None:
        """q(u) and, given y, q(z | x, y).

        :param torch.Tensor X: Inputs of a minibatch, [B, D].
        :param torch.Tensor y: Targets of the minibatch; None, as in prediction, to leave z to its
            prior.
        :param covariates: Covariates as in :meth:`model`, which the guide does not use.
        """
        self._check(X, y, covariates)
        self.likelihood.guide()
        self._refuse_batched([layer.guide() for layer in self.layers])
        # Without y no latent input is drawn, and Predictive cannot handle a plate without a site.
        drawn = [layer for layer in self.layers[:-1] if layer.noise_dim]
        drawn = [layer for layer in drawn if y is not None or not layer.latent_dim]
        if drawn:
            seen = None if y is None else self.likelihood.encode(y, X.dtype)
            with self.plate(X):
                for layer in drawn:
                    layer.guide_local(X, seen)

    @pyro_method
    def plate(self, X: Tensor) -> pyro.plate:
        """The data plate of a minibatch, dim -1; it scales by num_data / B.

        :param torch.Tensor X: Inputs of the minibatch, [B, D].
        """
        size = max(self.num_data, len(X))
        subsample = torch.arange(len(X), device=X.device)
        return pyro.plate(self._pyro_get_fullname("data"), size, subsample=subsample, dim=-1)

    @pyro_method
    def function(self, X: Tensor, plate: pyro.plate) -> tuple[Tensor, Tensor]:
        """The model without its likelihood, for a larger model that has its own.

        Call it outside the plate, which it enters itself. Its guide is :meth:`guide`.

        :param torch.Tensor X: Inputs of a minibatch, [B, D].
        :param plate: Data plate, the :meth:`plate` of X.
        :returns: Marginal means and variances of the last layer's F functions, [..., B, F] each.
        """
        self._refuse_batched([layer.model() for layer in self.layers])
        h = X
        with plate:
            for layer in self.layers[:-1]:
                h = layer.model_local(h)
        return self.layers[-1].marginal(h)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        # Of a latent layer without an encoder, a state without a prior has nothing; so it is the
        # model that can tell it from a state of other layers. The layers are loaded afterwards.
        if has_all_parameters(state_dict, self, prefix):
            self.reset_latent_prior()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _refuse_batched(self, inducing_values: list[Tensor | None]) -> None:
        batched = any(u is not None and u.shape[:-2].numel() > 1 for u in inducing_values)
        if batched and has_priors(self):
            raise NotImplementedError(
                f"{self.name}: hyperparameters with a prior cannot be drawn for several particles "
                "at once, because Pyro's kernels take no batches of them. Use "
                "vectorize_particles=False, or parallel=False with Predictive."
            )

    def _fixed_inputs(self, z: Tensor | None) -> dict[Layer, Tensor]:
        """The latent layer and its z, if z is to be fixed."""
        if z is None:
            return {}
        latent = [layer for layer in self.layers if layer.latent_dim]
        if len(latent) != 1 or z.shape != (latent[0].latent_dim,):
            raise ValueError(
                f"z has shape {tuple(z.shape)}, but the model's latent layers have the dimensions "
                f"{[layer.latent_dim for layer in latent]}, and one with z of [latent_dim] is "
                "needed."
            )
        like = next(self.parameters())
        z = z.to(like)
        if not bool(z.isfinite().all()):
            raise ValueError("z must be finite.")
        return {latent[0]: z}

    def _check(self, X: Tensor, y: Tensor | None, covariates: Mapping[str, Tensor]) -> None:
        like = next(self.parameters())
        batch = {"X": X, "y": y, **covariates, f"{like.dtype} {like.device}": None}
        if self._last_batch.is_again(batch):
            return
        likelihood = self.likelihood
        check_data(X, y, covariates, likelihood.discrete)
        likelihood.check_covariates(covariates)
        width = input_width(self.layers)
        if width not in (None, X.shape[1]):
            raise ValueError(f"X has {X.shape[1]} columns, but the model was built for {width}.")
        for argument, value in (("X", X), ("y", y), *covariates.items()):
            if value is None:
                continue
            dtype = like.dtype if value.is_floating_point() else value.dtype
            if (value.dtype, value.device) != (dtype, like.device):
                raise TypeError(
                    f"{argument} is {value.dtype} on {value.device}, but the model is {like.dtype} "
                    f"on {like.device}; convert one of them with .to(dtype=..., device=...)."
                )
        if y is not None:
            if len(X) > self.num_data:
                raise ValueError(
                    f"The batch has {len(X)} rows, more than num_data = {self.num_data}."
                )
            likelihood.check_shape(y, output_width(self.layers))
            given = {name: v for name, v in covariates.items() if name != "weight"}
            likelihood.check_targets(y, **given)
        self._last_batch.keep(batch)
