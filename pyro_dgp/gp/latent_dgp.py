"""The latent-variable deep GP as a Pyro model and guide."""

import copy
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.contrib.gp.likelihoods.likelihood import Likelihood
from pyro.nn import PyroModule, PyroParam, pyro_method
from torch import Tensor, nn

from pyro_dgp._checks import check_integer
from pyro_dgp.gp.constraints import softplus_above
from pyro_dgp.gp.encoders import GaussianEncoder
from pyro_dgp.gp.initialization import inducing_inputs, principal_mixing, published_mixing
from pyro_dgp.gp.kernels import RBF
from pyro_dgp.gp.layers import GPLayer, LatentLayer
from pyro_dgp.gp.likelihoods import GaussianLikelihood
from pyro_dgp.gp.predictive import PredictiveMixture

__all__ = ["LatentDGP"]

# Rows [samples x inputs] that a prediction pushes through the layers at once.
_PREDICT_ROWS = 2**13

_MIXINGS = {"principal": principal_mixing, "published": published_mixing}


class LatentDGP(PyroModule):
    r"""Latent-variable deep Gaussian process.

    .. math:: y_n = f^{(L)}(\dots f^{(1)}([x_n, z_n]) \dots) + \varepsilon_n, \quad z_n \sim N(0, I)

    :meth:`model` and :meth:`guide` are for ``SVI`` with any Pyro ELBO. Sites that all data share
    (inducing values ``u``, hyperparameters with a prior) stand outside the data plate; the latent
    inputs ``z``, the hidden layers' standardised draws ``epsilon`` and the observation ``y`` inside
    it. The last GP layer is integrated by the likelihood.

    Sites and parameters are named ``{name}.layers.0.z`` and so on. The name is unique in the
    process unless given, because modules with one name share parameters through Pyro's param store;
    it stays when the model becomes part of a larger ``PyroModule``.

    Source: Rudner et al. (2021), section 2.1; Salimbeni et al. (2019).

    :param layers: :class:`~pyro_dgp.gp.GPLayer` and :class:`~pyro_dgp.gp.LatentLayer` in order, the
        last a GP layer without ``mixing``.
    :param likelihood: For instance :class:`~pyro_dgp.gp.GaussianLikelihood`.
    :param int num_data: N, by which a minibatch is scaled.
    :param str name: Prefix of site names, for instance to load a saved param store.
    :raises ValueError: If the layers do not fit one another or ``num_data`` is not positive.
    """

    def __init__(
        self,
        layers: Sequence[GPLayer | LatentLayer],
        likelihood: Likelihood,
        num_data: int,
        name: str | None = None,
    ) -> None:
        _check_layers(layers)
        if hasattr(likelihood, "check_output_dim"):
            likelihood.check_output_dim(layers[-1].output_dim)
        super().__init__(name or _unique_name())
        _register(self)
        self.num_data = check_integer("num_data", num_data, 1)
        self.layers = PyroModule[nn.ModuleList](layers)
        self.likelihood = likelihood

    @classmethod
    def from_data(
        cls,
        X: Tensor,
        y: Tensor,
        *,
        num_layers: int = 2,
        latent_dim: int = 1,
        num_inducing: int = 128,
        num_gps: int = 5,
        encoder_widths: Sequence[int] | None = (20, 20),
        noise_variance: float = 0.01,
        mixing: str = "principal",
        kernel: Callable[[int], Kernel] | None = None,
        jitter: float = 1e-6,
        name: str | None = None,
    ) -> "LatentDGP":
        """The paper's configuration for data with columns of mean 0 and standard deviation 1.

        Random initial values come from torch's generator, so ``pyro.set_rng_seed`` fixes them.

        :param torch.Tensor X: Training inputs, [N, D]; their dtype and device are the model's.
        :param torch.Tensor y: Training targets, [N] or [N, P].
        :param int num_layers: L, the number of GP layers; 1 is a shallow GP.
        :param int latent_dim: Dimension of the latent input; 0 for a plain deep GP.
        :param int num_inducing: Inducing inputs a layer.
        :param int num_gps: GPs in a hidden layer; with ``mixing="principal"`` at most D are used.
        :param encoder_widths: Hidden widths of q(z | x, y); None fixes q(z) to the prior.
        :param float noise_variance: Initial noise variance.
        :param str mixing: "principal" for the first principal directions, "published" for the
            matrix of the authors' code (:func:`~pyro_dgp.gp.initialization.published_mixing`).
        :param kernel: From an input dimension to a kernel; None for the paper's ARD RBF kernel,
            whose variance is trained in the last layer only.
        :param float jitter: Relative jitter of the inducing inputs' kernel matrices.
        :param str name: See :class:`LatentDGP`.
        :raises TypeError: If X or y is not a floating-point tensor.
        :raises ValueError: If X or y has a wrong shape or non-finite values, or an option is out of
            range.
        """
        _check_data(X, y)
        num_layers = check_integer("num_layers", num_layers, 1)
        latent_dim = check_integer("latent_dim", latent_dim, 0)
        num_inducing = check_integer("num_inducing", num_inducing, 1)
        num_gps = check_integer("num_gps", num_gps, 1)
        if mixing not in _MIXINGS:
            raise ValueError(f"mixing must be one of {', '.join(_MIXINGS)}, but it is {mixing!r}.")

        num_inputs, num_outputs = X.shape[1], 1 if y.dim() == 1 else y.shape[1]
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        inputs = X.detach().double().cpu().numpy()

        def tensor(array) -> Tensor:
            return torch.as_tensor(array, dtype=X.dtype, device=X.device)

        P = tensor(_MIXINGS[mixing](inputs, num_gps))
        layers: list[GPLayer | LatentLayer] = []
        input_dim = num_inputs
        if latent_dim:
            encoder = None
            if encoder_widths is not None:
                encoder = GaussianEncoder(
                    num_inputs + num_outputs, latent_dim, encoder_widths, X.dtype
                )
            layers.append(LatentLayer(latent_dim, encoder))
            input_dim += latent_dim
        for depth in range(1, num_layers + 1):
            last = depth == num_layers
            Xu = inducing_inputs(inputs, num_inducing, input_dim - num_inputs, rng)
            k = _rbf(input_dim, last) if kernel is None else kernel(input_dim)
            if last:
                layer = GPLayer(k, tensor(Xu), num_outputs, jitter=jitter)
            else:
                A = tensor(np.eye(num_inputs, input_dim))
                layer = GPLayer(k, tensor(Xu), P.shape[1], P, A, u_scale=1e-5, jitter=jitter)
            layers.append(layer)
            input_dim = num_inputs
        noise = torch.as_tensor(noise_variance, dtype=X.dtype)
        likelihood = GaussianLikelihood(noise, event_dim=y.dim() - 1)
        return cls(layers, likelihood, len(X), name).to(dtype=X.dtype, device=X.device)

    @property
    def name(self) -> str:
        """Prefix of the names of this model's sites and parameters."""
        return self._pyro_name

    @pyro_method
    def model(self, X: Tensor, y: Tensor | None = None) -> Tensor:
        """p(y, z, u | X) with each GP layer's function marginalised as q(f).

        :param torch.Tensor X: A minibatch of inputs, [B, D].
        :param torch.Tensor y: Its targets, [B] or [B, P]; None draws them.
        :returns: y, or draws of it.
        :raises TypeError: If X or y is not a floating-point tensor of the model's dtype.
        :raises ValueError: If a shape is wrong or a value is not finite.
        """
        self._check(X, y)
        self.likelihood.set_mode("model")
        self.likelihood._load_pyro_samples()
        plate = self.plate(X)
        f_loc, f_var = self.function(X, plate)
        with plate:
            return self.likelihood(f_loc, f_var, y)

    @pyro_method
    def guide(self, X: Tensor, y: Tensor | None = None) -> None:
        """q(u) and, given y, q(z | x, y).

        :param torch.Tensor X: A minibatch of inputs, [B, D].
        :param torch.Tensor y: Its targets; None, as in prediction, leaves z to its prior.
        """
        self._check(X, y)
        self._guide_globals()
        # Without y a LatentLayer draws nothing, and a plate without a site confuses Predictive.
        drawn = [m for m in self.layers[:-1] if y is not None or isinstance(m, GPLayer)]
        if drawn:
            with self.plate(X):
                for layer in drawn:
                    layer.guide_local(X, y)

    @pyro_method
    def plate(self, X: Tensor) -> pyro.plate:
        """The data plate of a minibatch, dim -1; it scales by num_data / B.

        :param torch.Tensor X: [B, D].
        """
        size = max(self.num_data, len(X))
        subsample = torch.arange(len(X), device=X.device)
        return pyro.plate(self._pyro_get_fullname("data"), size, subsample=subsample, dim=-1)

    @pyro_method
    def function(self, X: Tensor, plate: pyro.plate) -> tuple[Tensor, Tensor]:
        """The model up to its last layer: what a likelihood, or a larger model, takes from there.

        Call it outside the plate; it enters the plate by itself. :meth:`guide` is its guide.

        :param torch.Tensor X: [B, D].
        :param plate: :meth:`plate` of X.
        :returns: Marginal means and variances of the last layer, [..., B, P] each.
        """
        self._refuse_batched([layer.model() for layer in self._gp_layers])
        return self._propagate(X, plate)

    @torch.no_grad()
    def predict(
        self,
        X: Tensor,
        num_samples: int = 1000,
        *,
        shared_draws: bool = False,
        z: Tensor | None = None,
    ) -> PredictiveMixture:
        """Predictive distribution of the targets at new inputs.

        An equal mixture over draws of z from its prior and of the hidden layers from q, each with
        the last layer and the noise integrated. Hyperparameters with a prior are drawn from their
        guide, anew for every sample.

        :param torch.Tensor X: New inputs, [N, D].
        :param int num_samples: S, the number of components.
        :param bool shared_draws: Give all rows the same draws of z and of the hidden layers' noise.
            The distribution of a row is as good an estimate; it then varies smoothly with the
            inputs, and does not depend on the rows it is asked for with.
        :param torch.Tensor z: Fix the latent input of every row, [latent_dim], instead of drawing
            it, to see what it does. Needs a single :class:`~pyro_dgp.gp.LatentLayer`.
        :returns: A distribution with batch shape [N], and event shape [P] for targets [N, P].
        :raises TypeError: If X is not a floating-point tensor of the model's dtype.
        :raises ValueError: If X has a wrong shape or non-finite values, z does not fit the model,
            or ``num_samples < 1``.
        """
        self._check(X, None)
        num_samples = check_integer("num_samples", num_samples, 1)
        if not hasattr(self.likelihood, "predictive"):
            raise NotImplementedError(
                f"{type(self.likelihood).__name__} has no `predictive`; draw from the model with "
                "pyro.infer.Predictive instead."
            )
        event_shape = (self.layers[-1].output_dim,) if self.likelihood.event_dim else ()
        locs = X.new_empty((num_samples, len(X), *event_shape))
        scales = torch.empty_like(locs)
        with poutine.block():
            given = {} if z is None else self._given_z(z)
            if shared_draws:
                with poutine.trace() as capture:
                    self._draw_predictive(X[:1], num_samples, given)
                given = self._local_values(capture.trace)
            rows = 0
            for x in X.split(_PREDICT_ROWS):
                step = 1 if self._has_priors else max(1, _PREDICT_ROWS // len(x))
                for start in range(0, num_samples, step):
                    stop = min(start + step, num_samples)
                    part = slice(start, stop), slice(rows, rows + len(x))
                    some = {name: v[start:stop] if len(v) > 1 else v for name, v in given.items()}
                    locs[part], scales[part] = self._draw_predictive(x, stop - start, some)
                rows += len(x)
        return PredictiveMixture(locs, scales, self.likelihood.event_dim)

    @pyro_method
    def _draw_predictive(
        self, X: Tensor, num_samples: int, given: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        self._guide_globals()
        samples = pyro.plate(self._pyro_get_fullname("samples"), num_samples, dim=-2)
        with samples, poutine.condition(data=given):
            loc, var = self._propagate(X.expand(num_samples, -1, -1), self.plate(X))
        return self.likelihood.predictive(loc, var)

    @pyro_method
    def _given_z(self, z: Tensor) -> dict[str, Tensor]:
        latent = [layer for layer in self.layers if isinstance(layer, LatentLayer)]
        if len(latent) != 1 or z.shape != (latent[0].latent_dim,):
            raise ValueError(
                f"z has shape {tuple(z.shape)}, but the model's latent layers have the dimensions "
                f"{[layer.latent_dim for layer in latent]}, and one with z of [latent_dim] is "
                "needed."
            )
        return {latent[0]._pyro_get_fullname("z"): z.expand(1, 1, -1)}

    @pyro_method
    def _local_values(self, trace: poutine.Trace) -> dict[str, Tensor]:
        """Values of the latent sites in the data plate."""
        plate = self._pyro_get_fullname("data")
        return {
            name: site["value"]
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and plate in {f.name for f in site["cond_indep_stack"]}
        }

    def _guide_globals(self) -> None:
        self.likelihood.set_mode("guide")
        self.likelihood._load_pyro_samples()
        self._refuse_batched([layer.guide() for layer in self._gp_layers])

    def _refuse_batched(self, inducing_values: list[Tensor]) -> None:
        if self._has_priors and any(u.shape[:-2].numel() > 1 for u in inducing_values):
            raise NotImplementedError(
                f"{self.name}: hyperparameters with a prior cannot be drawn for several particles "
                "at once, because Pyro's kernels take no batches of them. Use "
                "vectorize_particles=False, or parallel=False with Predictive; the ELBOs of "
                "pyro_dgp draw them once for all importance samples."
            )

    @property
    def _has_priors(self) -> bool:
        return any(getattr(module, "_pyro_samples", None) for module in self.modules())

    def _propagate(self, h: Tensor, plate: pyro.plate) -> tuple[Tensor, Tensor]:
        with plate:
            for layer in self.layers[:-1]:
                h = layer.model_local(h)
        return self.layers[-1].marginal(h)

    @property
    def _gp_layers(self) -> list[GPLayer]:
        return [layer for layer in self.layers if isinstance(layer, GPLayer)]

    def _check(self, X: Tensor, y: Tensor | None) -> None:
        _check_data(X, y)
        first = next(i for i, layer in enumerate(self.layers) if isinstance(layer, GPLayer))
        Xu = self.layers[first].Xu
        width = Xu.shape[1] - sum(layer.latent_dim for layer in self.layers[:first])
        if X.shape[1] != width:
            raise ValueError(f"X has {X.shape[1]} columns, but the model was built for {width}.")
        for argument, value in (("X", X), ("y", y)):
            if value is not None and (value.dtype, value.device) != (Xu.dtype, Xu.device):
                raise TypeError(
                    f"{argument} is {value.dtype} on {value.device}, but the model is {Xu.dtype} "
                    f"on {Xu.device}; convert one of them with .to(dtype=..., device=...)."
                )
        if y is None:
            return
        if len(X) > self.num_data:
            raise ValueError(f"The batch has {len(X)} rows, more than num_data = {self.num_data}.")
        event_dim = getattr(self.likelihood, "event_dim", y.dim() - 1)
        outputs = self.layers[-1].output_dim
        if y.dim() - 1 != event_dim or (event_dim and y.shape[1] != outputs):
            expected = f"[B, {outputs}]" if event_dim else "[B]"
            raise ValueError(f"y has shape {tuple(y.shape)}, but the model expects {expected}.")

    def _pyro_set_supermodule(self, name, context):
        # Two larger modules that call their part `dgp` must not share its parameters.
        super()._pyro_set_supermodule(self._pyro_name, context)

    def __deepcopy__(self, memo):
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        new._take_own_name()
        return new

    def __copy__(self):
        # A shallow copy would share submodules, each of which has one name.
        return copy.deepcopy(self)

    def __setstate__(self, state):
        super().__setstate__(state)
        self._take_own_name()

    def _take_own_name(self) -> None:
        old, new = self._pyro_name, self._pyro_name
        if _is_taken(old):
            new = _unique_name()
        for module in self.modules():
            if isinstance(module, PyroModule):
                module._pyro_name = new + module._pyro_name.removeprefix(old)
        _register(self)


def _rbf(input_dim: int, train_variance: bool) -> RBF:
    kernel = RBF(input_dim)
    lengthscale = torch.full((input_dim,), float(input_dim), dtype=torch.float64).sqrt()
    kernel.lengthscale = PyroParam(lengthscale, softplus_above(1e-6))
    del kernel.variance
    if train_variance:
        kernel.variance = PyroParam(torch.ones((), dtype=torch.float64), softplus_above(1e-6))
    else:
        kernel.register_buffer("variance", torch.ones(()))
    return kernel


def _check_layers(layers: Sequence[GPLayer | LatentLayer]) -> None:
    if not layers or not isinstance(layers[-1], GPLayer):
        raise ValueError("layers must end with a GPLayer.")
    if layers[-1].mixing is not None:
        raise ValueError(
            "The last layer's GPs are the outputs: build it without `mixing`, one GP an output."
        )
    width, latent_inputs = None, 0
    for i, layer in enumerate(layers):
        if getattr(layer, "_pyro_name", "") or any(layer is other for other in layers[:i]):
            raise ValueError(
                f"layers[{i}] is already part of a model: give every model layers of its own."
            )
        if isinstance(layer, LatentLayer):
            latent_inputs += layer.latent_dim
            width = None if width is None else width + layer.latent_dim
        elif isinstance(layer, GPLayer):
            if width is None and layer.input_dim <= latent_inputs:
                raise ValueError(
                    f"layers[{i}] takes {layer.input_dim} inputs, all of them latent: none is left "
                    "for X."
                )
            if width not in (None, layer.input_dim):
                raise ValueError(
                    f"layers[{i}] takes {layer.input_dim} inputs, but the layers before it give "
                    f"{width}."
                )
            width = layer.output_dim
        else:
            raise ValueError(
                f"layers[{i}] is a {type(layer).__name__}, neither a GPLayer nor a LatentLayer."
            )


def _check_data(X: Tensor, y: Tensor | None) -> None:
    for argument, value in (("X", X), ("y", y)):
        if value is None and argument == "y":
            continue
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{argument} must be a torch.Tensor, but it is a {type(value).__name__}; use "
                f"torch.as_tensor({argument})."
            )
        if not value.is_floating_point():
            raise TypeError(
                f"{argument} must be floating point, but it is {value.dtype}; use "
                f"{argument}.double()."
            )
    if X.dim() != 2 or X.shape[1] < 1:
        raise ValueError(
            f"X must have shape [N, D], but its shape is {tuple(X.shape)}; for a single input "
            "column use X.unsqueeze(-1)."
        )
    if len(X) == 0:
        raise ValueError("X has no rows.")
    if y is not None and (y.dim() not in (1, 2) or y.shape[-1] < 1):
        raise ValueError(f"y must have shape [N] or [N, P], but its shape is {tuple(y.shape)}.")
    if y is not None and len(y) != len(X):
        raise ValueError(f"X has {len(X)} rows, but y has {len(y)}.")
    for argument, value in (("X", X), ("y", y)):
        if value is not None and not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            raise ValueError(
                f"{argument} holds {bad} NaN or infinite values; drop or impute those rows."
            )


_live: "weakref.WeakValueDictionary[str, LatentDGP]" = weakref.WeakValueDictionary()


def _register(dgp: LatentDGP) -> None:
    _live[dgp._pyro_name] = dgp


def _is_taken(name: str) -> bool:
    return name in _live or any(key.startswith(f"{name}.") for key in pyro.get_param_store())


def _unique_name() -> str:
    name, number = "dgp", 1
    while _is_taken(name):
        number += 1
        name = f"dgp{number}"
    return name
