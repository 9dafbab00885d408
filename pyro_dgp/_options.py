"""Command-line options that are the fields of a dataclass, described by its docstring."""

import argparse
import re
import types
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["add_options", "given_options"]


def add_options(
    parser: argparse.ArgumentParser,
    cls: type,
    only: Iterable[str] | None = None,
    **defaults: Any,
) -> None:
    """Adds an option for each field; options that are not given are absent from the arguments.

    A field ``num_steps`` becomes ``--steps``, a truth value ``--name`` and ``--no-name``, a tuple
    takes several values. Choices are those of the field's ``metadata``, and the help is the
    ``:param:`` of the docstring.

    :param parser: Parser to which options are added.
    :param type cls: A dataclass.
    :param only: Names of fields; None for all that have a default.
    :param defaults: Defaults for the help that differ from those of the dataclass; None for none.
    """
    hints, texts = get_type_hints(cls), _parameters(cls)
    for field in fields(cls):
        if field.default is MISSING or (only is not None and field.name not in only):
            continue
        default = defaults.get(field.name, field.default)
        text = texts[field.name].replace("%", "%%") + _shown(default)
        choices = field.metadata.get("choices")
        kind = _kind(hints[field.name])
        if choices:
            kind["choices"] = choices
        elif "type" in kind:
            kind["metavar"] = _option(field)[2:].upper().replace("-", "_")
        parser.add_argument(
            _option(field), dest=field.name, default=argparse.SUPPRESS, help=text, **kind
        )


def given_options(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Values of the fields that were given."""
    found = {f.name: getattr(args, f.name) for f in fields(cls) if hasattr(args, f.name)}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}


def _option(field: Field) -> str:
    return "--" + field.name.removeprefix("num_").replace("_", "-")


def _kind(hint: Any) -> dict[str, Any]:
    """Arguments of ``add_argument`` for a type."""
    if get_origin(hint) in (types.UnionType, Union):  # T | None
        (hint,) = (t for t in get_args(hint) if t is not type(None))
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is tuple:
        return {"type": get_args(hint)[0], "nargs": "+"}
    return {"type": hint}


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    return "" if default is None or isinstance(default, bool) else f" (default {default})"


def _parameters(cls: type) -> dict[str, str]:
    """Texts of the ``:param:`` fields of a docstring, without reST markup."""
    found = re.findall(
        r":param (?:\w+ )?(\w+): (.*?)(?=\n\s*:(?:param|r)|\n\n|\Z)", cls.__doc__ or "", re.S
    )
    return {name: _plain(text) for name, text in found}


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", " ".join(text.split()))
    return text.replace("``", "").rstrip(".")
