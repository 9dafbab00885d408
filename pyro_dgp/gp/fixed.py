"""Copies of Pyro modules that hold values in place of parameters.

Reading a ``PyroParam`` or a ``PyroSample`` sends a message to Pyro's handlers and param store, both
of which all threads share. Reading an attribute of such a copy does not.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.parameterized import Parameterized
from pyro.nn import PyroModule
from pyro.nn.module import _Context
from torch import Tensor, nn
from torch.distributions import biject_to, transform_to

__all__ = ["captured", "fixed_copy", "has_priors", "mapped_copy"]

M = TypeVar("M", bound=nn.Module)


def has_priors(module: nn.Module) -> bool:
    """Whether the module or one of its submodules has a ``PyroSample``."""
    return any(getattr(part, "_pyro_samples", None) for part in module.modules())


def captured(module: M) -> M:
    """The module with the present values of its parameters, with their gradients.

    Within a ``pyro_method`` these are the values that Pyro's handlers give them. A density that is
    evaluated after the method has returned would not have those otherwise.
    """

    def read(part: PyroModule) -> dict[str, Tensor]:
        names = [*part._pyro_params, *part._pyro_samples]
        names += [n for n in part._parameters if n.removesuffix("_unconstrained") not in names]
        return {name: getattr(part, name) for name in names}

    return _with_values(module, read, {})


def fixed_copy(module: M, generator: torch.Generator | None = None) -> M:
    """The module with every parameter replaced by its value, detached.

    A hyperparameter with a prior is replaced by a draw from its guide, or from its prior if it has
    no guide. Buffers, and submodules that are no ``PyroModule``, are shared with the module.

    :param torch.nn.Module module: Module, for instance a :class:`~pyro_dgp.gp.LatentDGP`.
    :param torch.Generator generator: Source of the draws; None for torch's global generator.
    :returns: A module that can be called, but not trained.
    """

    def read(part: PyroModule) -> dict[str, Tensor | None]:
        given = {n: p for n, p in part._parameters.items() if p is not None}
        values = {n: _stored(part, n, p).detach().clone() for n, p in given.items()}
        for name, (constraint, _) in part._pyro_params.items():
            values[name] = transform_to(constraint)(values[f"{name}_unconstrained"])
        draws = {name: _draw(part, name, values, generator) for name in part._pyro_samples}
        return {**dict.fromkeys(part._parameters), **values, **draws}

    return _with_values(module, read, {})


def _with_values(
    module: M, read: Callable[[PyroModule], Mapping[str, Tensor | None]], memo: dict
) -> M:
    if id(module) in memo:
        return memo[id(module)]
    new = memo[id(module)] = object.__new__(type(module))
    new.__dict__.update(module.__dict__)
    new.__dict__["_modules"] = {
        name: part if part is None else _with_values(part, read, memo)
        for name, part in module._modules.items()
    }
    if isinstance(module, PyroModule):
        # Python finds an entry of the instance's dictionary before it calls Pyro's __getattr__.
        new.__dict__.update(
            read(module), _parameters={}, _pyro_params={}, _pyro_samples={},
            _pyro_context=_Context(),
        )  # fmt: skip
    return new


def _stored(module: PyroModule, name: str, parameter: Tensor) -> Tensor:
    """The param store's value if it has one, since a loaded store is newer than the module."""
    prefix = f"{module._pyro_name}." if module._pyro_name else ""
    name = prefix + name.removesuffix("_unconstrained")
    return pyro.get_param_store()._params.get(name, parameter)


def _draw(
    module: PyroModule, name: str, values: dict[str, Tensor], generator: torch.Generator | None
) -> Tensor:
    if not isinstance(module, Parameterized) or name not in module._guides:
        # Pyro annotates the values as PyroSamples, but stores their priors.
        prior = vars(module)["_pyro_samples"][name]
        prior = prior if hasattr(prior, "sample") else prior(module)
        return prior if isinstance(prior, Tensor) else prior.sample()
    kind, names = module._guides[name]
    arguments = {argument: values[f"{name}_{argument}"] for argument in names}
    if kind is dist.Delta:
        return arguments["map"]
    # A normal distribution in unconstrained space, as in Pyro's `Parameterized`.
    loc = arguments["loc"]
    noise = torch.randn(loc.shape, dtype=loc.dtype, device=loc.device, generator=generator)
    if kind is dist.Normal:
        unconstrained = loc + arguments["scale"] * noise
    else:
        unconstrained = loc + (arguments["scale_tril"] @ noise.unsqueeze(-1)).squeeze(-1)
    return biject_to(module._priors[name].support)(unconstrained)


def mapped_copy(module: M, fn: Callable[[Tensor], Tensor]) -> M:
    """A copy of a module of values, with ``fn`` applied to each value and each buffer.

    :param torch.nn.Module module: Module that :func:`captured` or :func:`fixed_copy` has returned.
    :param fn: Function of a tensor.
    """
    new = object.__new__(type(module))
    new.__dict__.update(
        {name: fn(v) if isinstance(v, Tensor) else v for name, v in module.__dict__.items()}
    )
    for kind, apply in (("_modules", lambda part: mapped_copy(part, fn)), ("_buffers", fn)):
        new.__dict__[kind] = {
            n: v if v is None else apply(v) for n, v in getattr(module, kind).items()
        }
    return new
