"""One name per model in Pyro's param store, where modules of one name would share parameters."""

import copy
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyro
from pyro.nn import PyroModule
from pyro.params.param_store import param_with_module_name
from torch import nn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["UniquelyNamed"]


class UniquelyNamed(PyroModule):
    """A root module with a name that is unique in the process, also among copies.

    :param str name: Prefix of the names of its sites and parameters; None for ``dgp``, ``dgp2`` and
        so on. If Pyro's param store already has parameters of that name (after it has been loaded,
        for instance), a subclass takes their values with :meth:`_go_on_from_store`.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name or _unique_name())
        _live[self._pyro_name] = self

    @property
    def name(self) -> str:
        """Prefix of the names of this model's sites and parameters."""
        return self._pyro_name

    def _pyro_set_supermodule(self, name: str, context: Any) -> None:
        # Two larger modules with a submodule `dgp` each must not share its parameters.
        super()._pyro_set_supermodule(self._pyro_name, context)

    def __deepcopy__(self, memo: dict) -> "Self":
        new = object.__new__(type(self))
        memo[id(self)] = new
        vars(new).update(copy.deepcopy(vars(self), memo))
        new._take_own_name()
        return new

    def __copy__(self) -> "Self":
        # A shallow copy would share submodules, each of which has one name.
        return copy.deepcopy(self)

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._take_own_name()

    def _go_on_from_store(self) -> None:
        """Copies the values of parameters from the param store, and registers these in their place.

        Pyro registers a module's parameters at their first use. If the store already has others of
        the same names, optimisers would train those, while the module computes with its own.

        :raises ValueError: If shapes differ; nothing is changed then.
        """
        store = pyro.get_param_store()
        stored = dict(store.named_parameters())
        mine = {key: p for key, p in self._named_as_in_store() if key in stored}
        for key, p in mine.items():
            if p.shape != stored[key].shape:
                raise ValueError(
                    f"The param store has '{key}' with shape {tuple(stored[key].shape)}, but this "
                    f"model's is {tuple(p.shape)}. Make it as the stored one was made, give it "
                    "another name, or call pyro.clear_param_store()."
                )
        for key, p in mine.items():
            p.data = stored[key].detach().to(p, copy=True)
            del store[key]

    def _named_as_in_store(self) -> Iterator[tuple[str, nn.Parameter]]:
        for module in self.modules():
            if not isinstance(module, PyroModule):
                continue
            for name, p in module.named_parameters(recurse=False):
                yield f"{module._pyro_name}.{name.removesuffix('_unconstrained')}", p
            for child_name, child in module.named_children():
                if not isinstance(child, PyroModule):
                    for name, p in child.named_parameters():
                        yield param_with_module_name(f"{module._pyro_name}.{child_name}", name), p

    def _take_own_name(self) -> None:
        old, new = self._pyro_name, self._pyro_name
        if _is_taken(old):
            new = _unique_name()
        for module in self.modules():
            if isinstance(module, PyroModule):
                module._pyro_name = new + module._pyro_name.removeprefix(old)
        _live[new] = self


_live: "weakref.WeakValueDictionary[str, UniquelyNamed]" = weakref.WeakValueDictionary()


def _is_taken(name: str) -> bool:
    return name in _live or any(key.startswith(f"{name}.") for key in pyro.get_param_store())


def _unique_name() -> str:
    name, number = "dgp", 1
    while _is_taken(name):
        number += 1
        name = f"dgp{number}"
    return name
